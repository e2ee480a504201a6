"""A simulated cluster for sweeps: stores the status and the jobs, trains in ticks, and kills the driver after a write.

The driver here does what those of the operator and of the laptop do: it carries out one plan after the other.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from allranks.api.status import Condition, Failure, ProgressStatus, Status
from allranks.api.sweep import Sweep
from allranks.api.sweep_status import SweepStatus
from allranks.core.sweeps.model import Suggestion, SweepObserved, TrialJob
from allranks.core.sweeps.plan import plan

NOW = datetime(2026, 3, 4, 10, 0, 0, tzinfo=UTC)
STEPS = 90
"""Steps of a training; ten in each tick."""


class Killed(Exception):
    """The driver died right after a write."""


def share(*of: Any) -> float:
    """A number from 0 to 1 that depends on the arguments alone."""
    digest = hashlib.sha256(json.dumps(of).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def fake_tpe(request: Suggestion) -> dict[str, str]:
    """Depends on everything that the real algorithm may read."""
    learned = [(trial.number, trial.parameters, trial.value) for trial in request.ended]
    return {"lr": f"{share(request.number, learned):.4g}"}


@dataclass
class World:
    """`fate(job, parameters)` is "Succeeded", "Failed" or "Disrupted" for each job."""

    sweep: Sweep
    fate: Callable[[str, dict[str, str]], str] = lambda job, parameters: "Succeeded"
    metrics: Callable[[dict[str, str], int], dict[str, float]] = lambda parameters, step: {
        "loss": share(parameters) + 1 / (1 + step)
    }
    dies_after: int = -1
    """Number of the write after which the driver dies; -1: never."""
    status: SweepStatus = field(default_factory=SweepStatus)
    jobs: dict[str, TrialJob] = field(default_factory=dict)
    parameters: dict[str, dict[str, str]] = field(default_factory=dict)
    creates: Counter[str] = field(default_factory=Counter)
    now: datetime = NOW
    writes: int = 0
    suggested: dict[int, dict[str, str]] = field(default_factory=dict)

    def run(self, ticks: int = 100_000) -> SweepStatus:
        for _ in range(ticks):
            self.settle()
            if self.status.finished:
                return self.status
            self.now += timedelta(seconds=10)
            self._train()
        raise AssertionError(f"the sweep has not ended after {ticks} ticks: {self.status.summary}")

    def settle(self) -> None:
        """Carries out plans until nothing is left to do. A killed driver starts again, with an empty memory."""
        while True:
            try:
                while self._step():
                    pass
                return
            except Killed:
                self.suggested = {}

    def _step(self) -> bool:
        """Whether there may be more to do."""
        wanted = plan(SweepObserved(self.sweep, self.status, dict(self.jobs), self.now, self.suggested))
        if wanted.status is not None:
            self.status = wanted.status
            self._wrote()
        if wanted.write_ahead:
            return True
        for manifest in wanted.create:
            name = manifest["metadata"]["name"]
            self.creates[name] += 1
            variables = {each["name"]: each["value"] for each in manifest["spec"]["env"]}
            self.parameters[name] = {
                key.removeprefix("ALLRANKS_PARAM_").lower(): value for key, value in variables.items()
            }
            self.jobs[name] = TrialJob(name, Status(phase="Pending"))
            self._wrote()
        for name in wanted.stop:
            self.jobs[name] = replace(self.jobs[name], suspended=True)
            self._wrote()
        for name in wanted.resume:
            self.jobs[name] = replace(self.jobs[name], suspended=False)
            self._wrote()
        if wanted.ask:
            self.suggested[wanted.ask.number] = fake_tpe(wanted.ask)
            return True
        return bool(wanted.create or wanted.stop or wanted.resume or wanted.status)

    def _wrote(self) -> None:
        self.writes += 1
        if self.dies_after in (0, self.writes):
            raise Killed

    def _train(self) -> None:
        for name, job in self.jobs.items():
            if job.suspended or job.status.phase in ("Succeeded", "Failed"):
                continue
            step = (job.status.progress.step or 0 if job.status.progress else 0) + 10
            self.jobs[name] = replace(job, status=self._status(name, step))

    def _status(self, name: str, step: int) -> Status:
        metrics = self.metrics(self.parameters[name], step)
        progress = ProgressStatus(step=step, total_steps=STEPS, metrics=metrics)
        fate = self.fate(name, self.parameters[name])
        if step < (STEPS if fate == "Succeeded" else STEPS // 3):
            return Status(phase="Running", progress=progress)
        if fate == "Succeeded":
            return Status(phase="Succeeded", progress=progress)
        return failed_status("Error" if fate == "Failed" else "NodeLost", self.now, progress)


def failed_status(reason: str, now: datetime, progress: ProgressStatus | None = None) -> Status:
    condition = Condition(type="Failed", status="True", reason=reason, message="it failed", last_transition_time=now)
    code = 1 if reason == "Error" else None
    cause = Failure(reason=reason, exit_code=code, message="a\nValueError: bad shape", time=now)
    return Status(phase="Failed", conditions=[condition], last_failure=cause, progress=progress)


def kills(world: Callable[[int], World]) -> Iterator[World]:
    """The world with the driver killed after each of its writes, one at a time."""
    reference = world(-1)
    reference.run()
    for number in range(1, reference.writes + 1):
        yield world(number)
