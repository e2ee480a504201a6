"""The ranks of a job: replicas with their pods and what they report. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from allranks.api.status import Failure
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import replica_key
from allranks.local.run_directories import INTERRUPTED
from allranks.ui.entries import Entry
from allranks.views.format.outcome import ended_how
from allranks.views.format.progress import pod_state


class Rank(BaseModel):
    """A replica of the job in its current attempt."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    replica: str = Field(description="ROLE-INDEX.")
    role: str
    index: int
    rank: int | None = Field(description="Its rank; null for a replica without one, such as a parameter server.")
    attempt: int
    pod: str = Field("", description="Name of its newest pod; empty if it has none.")
    node: str = ""
    state: str = Field(description="Phase of the pod, or of the job if there is no pod.")
    reason: str = Field("", description="Why it does not run, or how it ended.")
    restarts: int = Field(0, description="Restarts of this replica alone in the attempt.")
    failed_first: bool = Field(False, description="It is the first failure of the last attempt that failed.")
    step: int | None = Field(None, description="Completed steps. Only the slowest 16 ranks are reported.")
    lag: int | None = Field(None, description="Steps behind the most advanced rank.")
    step_seconds: float | None = None
    busy_seconds: float | None = Field(None, description="Seconds of a step in which it computed and did not wait.")
    loading: bool | None = Field(None, description="Of a straggler: whether it is slow because it waits for data.")
    slowdown: float | None = Field(None, description="Of a straggler: its step time divided by its peers' step time.")


def ranks(entry: Entry, pods: Sequence[Pod]) -> list[Rank]:
    """Return the replicas, by rank, then replicas without a rank. `pods`: none for a run of this machine."""
    status = entry.status
    newest: dict[str, Pod] = {}
    for candidate in pods:
        key = replica_key(candidate.role, candidate.index)
        if candidate.attempt == status.attempt and candidate.restart >= getattr(newest.get(key), "restart", 0):
            newest[key] = candidate
    failure = status.last_failure
    first = replica_key(failure.role, failure.index) if failure and failure.attempt == status.attempt else ""
    reports = {report.replica: report for report in status.progress.ranks} if status.progress else {}
    stragglers = {straggler.replica: straggler for straggler in status.progress.stragglers} if status.progress else {}
    replicas = []
    for key, number in entry.ranks.items():
        role, _, index = key.rpartition("-")
        pod, report, straggler = newest.get(key), reports.get(key), stragglers.get(key)
        restarts = status.replica_restarts.get(key)
        values: dict[str, Any] = {}
        if report:
            values = {"step": report.step, "lag": report.lag}
            values |= {"step_seconds": report.step_seconds, "busy_seconds": report.busy_seconds}
        replicas.append(
            Rank(
                replica=key,
                role=role,
                index=int(index),
                rank=number,
                attempt=status.attempt,
                pod=pod.name if pod else "",
                node=(pod.node if pod else None) or "",
                state=_state(pod, entry, failed=key == first),
                reason=_reason(pod, failure if key == first else None),
                restarts=restarts.count if restarts else 0,
                failed_first=key == first,
                slowdown=straggler.slowdown if straggler else None,
                loading=True if straggler and straggler.loading else None,
                **values,
            )
        )
    return replicas


def _state(pod: Pod | None, entry: Entry, *, failed: bool) -> str:
    if pod is not None:
        return "Stopping" if pod.deleted_at else str(pod.phase)
    if failed:
        return "Failed"
    if entry.source == "jobs":
        return "No pod"
    # A run stores no pods: if it failed, the others were stopped.
    return "Stopped" if entry.phase in ("Failed", INTERRUPTED) else entry.phase


def _reason(pod: Pod | None, failure: Failure | None) -> str:
    if pod is None:
        return ended_how(failure.exit_code, failure.signal, failure.reason) if failure else ""
    if pod.exit:
        return "" if pod.exit.code == 0 else ended_how(pod.exit.code, pod.exit.signal, pod.exit.reason)
    if pod.phase == "Running":
        return ""
    state = pod_state(pod)
    return pod.waiting_message or pod.waiting_reason or pod.waiting_for or (state if state != pod.phase else "")
