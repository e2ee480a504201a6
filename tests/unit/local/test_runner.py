"""The reconcile loop of `allranks run`: its input, and when it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from allranks.core.facts.model import Event, Exit, Observed, Plan, Pod
from allranks.core.reconcile import reconcile
from allranks.local import LocalRun, Options, runner
from allranks.local.pod import PodHost, initial_status
from allranks.local.prepare import PodPlan
from support.builders import job, table


class Brief:
    """A pod that runs until the test ends it."""

    last: Brief

    def __init__(self, plan: PodPlan, logs: Path, grace: float | None, host: PodHost) -> None:
        self.status = replace(initial_status(plan.manifest), phase="Running", started_at=datetime.now(UTC))
        self.alive, self.grace, self.gone, self._host = False, 0.0, asyncio.Event(), host
        Brief.last = self

    def start(self) -> None:
        self.alive = True

    def end(self) -> None:
        ending = Exit(1, datetime.now(UTC))
        self.status, self.alive = replace(self.status, phase="Failed", exit=ending), False
        self._host.changed()

    def delete(self, grace: float | None = None) -> None:
        self.gone.set()


class NullListener:
    def status(self, *_: Any) -> None: ...

    def event(self, event: Event) -> None: ...

    def output(self, pod: Pod, container: str, data: bytes) -> None: ...


def test_a_pod_that_ends_right_after_a_reconcile_is_reconciled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(observed: Observed) -> Plan:
        plan = reconcile(observed)
        if plan.empty and [pod.phase for pod in observed.pods] == ["Running"]:
            asyncio.get_running_loop().call_soon(Brief.last.end)  # a change right after an empty plan
        return plan

    monkeypatch.setattr(runner, "LocalPod", Brief)
    one = job(roles={"worker": {}}, command=["train"], restart={"maxRestarts": 0})
    run = LocalRun(one, Options(run_dir=tmp_path / "run"), reconcile=decide)
    how = asyncio.run(asyncio.wait_for(run.run(NullListener()), 300))
    assert (how, run.status.phase) == ("finished", "Failed")


class Recorder(NullListener):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def event(self, event: Event) -> None:
        self.messages.append(event.message)


@table(
    ("which are asked to end", True, "waits for the end of job-worker-0-0: at most 40 s of grace period"),
    ("which may continue after the success", False, "waits for the end of job-worker-0-0"),
)
def test_a_finished_job_says_once_for_which_pods_it_waits(case: Any, tmp_path: Path) -> None:
    asked, sentence = case
    now = datetime.now(UTC)
    run = LocalRun(job(roles={"worker": {}}, command=["train"]), Options(run_dir=tmp_path / "run"))
    listener = run._listener = Recorder()
    run.status = replace(run.status, phase="Succeeded", completion_time=now - timedelta(seconds=3))
    status = SimpleNamespace(name="job-worker-0-0", deleted_at=now if asked else None)
    run._pods = {"job-worker-0-0": SimpleNamespace(alive=True, grace=40.0, status=status)}  # type: ignore[dict-item]
    run._report_remaining_pods()
    run._report_remaining_pods()
    assert listener.messages == [sentence]
