"""How a run ended, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from allranks.api.job import API_VERSION, KIND
from allranks.api.status import Failure, Status
from allranks.cli.format.yaml import dump, without_empty
from allranks.cli.live.summary import duration, ended_how
from allranks.control_sequences import clean
from allranks.core.naming import replica_key


def resource(name: str, namespace: str, status: Status) -> dict[str, Any]:
    """The job with its status, as the cluster would show it."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "status": without_empty(status.model_dump(by_alias=True, exclude_none=True, mode="json")),
    }


def rendered(shown: dict[str, Any], output: str) -> str:
    """`output`: yaml or json. Documents may follow one another."""
    return json.dumps(shown, indent=2) + "\n" if output == "json" else "---\n" + dump([shown])


def summary(name: str, status: Status, elapsed: float, how: str) -> str:
    """One line. `elapsed` in seconds, for a job that has not come to its end."""
    if status.start_time and status.completion_time:
        elapsed = (status.completion_time - status.start_time).total_seconds()
    took = duration(elapsed)
    if how == "stopped":
        return f"{name} was interrupted after {took}: no process of it is left"
    if how == "suspended":
        return f"{name} is suspended (spec.suspend: true), so nothing runs: add --set suspend=false"
    if how == "settled":
        return f"{name} is {status.phase} and nothing more will happen"
    counted, disruptions = status.restarts.counted, status.restarts.disruptions
    ranks = sum(role.desired for role in status.roles.values())
    parts = [f"{ranks} pod{'s' * (ranks != 1)}", f"{counted or 'no'} restart{'s' * (counted != 1)}"]
    if disruptions:
        parts.append(f"{disruptions} disruption{'s' * (disruptions != 1)}")
    failed = status.condition("Failed")
    why = f": {failed.reason}" if failed and failed.status == "True" else ""
    return f"{name} {status.phase} {'in' if status.phase == 'Succeeded' else 'after'} {took}{why} ({', '.join(parts)})"


def failure_block(status: Status, logs: Path | None = None) -> Iterator[str]:
    """The verdict, the first rank that failed, its last lines, and, of a run on this machine, where all of them are."""
    failed = status.condition("Failed")
    if failed and failed.status == "True" and failed.message:
        yield failed.message
    failure = status.last_failure
    if failure is None:
        return
    yield f"First failure: {who_failed(failure)}"
    yield from (f"  | {clean(line.encode(), colour=False)}" for line in failure.message.splitlines())
    if logs is not None and (log := logs / f"{failure.pod}.log").exists():
        yield f"Full log: {log}"


def who_failed(failure: Failure) -> str:
    """Who failed first, when and how, in one line."""
    rank = "" if failure.rank is None else f" (rank {failure.rank})"
    how = ended_how(failure.exit_code, failure.signal, failure.reason)
    ran = "" if failure.ran_seconds is None else f", after {duration(failure.ran_seconds)}"
    who = replica_key(failure.role, failure.index)
    return f"{who}{rank} in attempt {failure.attempt}{ran}: {how}"
