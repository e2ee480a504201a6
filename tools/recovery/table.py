"""Runs the faults of one framework and compares the results with the expectations."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from recovery.cases import Expected, Fault, Framework
from recovery.jobs import Job, JobError, Trial
from recovery.memory import Memory

Say = Callable[[str], None]
_NUMBER = count()


@dataclass
class Cell:
    """The result of one fault with one framework."""

    framework: str
    fault: str
    verdict: str = ""
    cause: str = ""
    counted: int = 0
    seconds: float | None = None
    """Time to recover; for a failed job, time to its end."""
    epoch: int | None = None
    loss: float | None = None
    """Loss of the checkpoint from which training resumed."""
    undisturbed: bool = False
    """Training continued without interruption."""
    none: str = ""
    """Why this framework has no such fault."""
    wrong: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if self.none:
            return self.none
        parts = [f"**{self.verdict}**", self.cause, f"{self.counted} counted" if self.counted else "not counted"]
        if self.epoch is not None:
            parts.append(f"from epoch {self.epoch}, loss {self.loss:.4f}")
        elif self.undisturbed:
            parts.append("nothing lost")
        if self.seconds is not None:
            parts.append(f"{self.seconds:.1f} s")
        if self.wrong:
            parts.insert(0, f"WRONG: {'; '.join(self.wrong)}")
        return "<br>".join(parts)


def run(framework: Framework, faults: Sequence[Fault], folder: Path, say: Say) -> Iterator[Cell]:
    """All cells of a column. Faults that lead to one restart of all ranks share a job, one after the other."""
    for fault in faults:
        expected = fault.expected(framework)
        if isinstance(expected, str):
            yield Cell(framework.name, fault.name, none=expected)
    applicable = [fault for fault in faults if isinstance(fault.expected(framework), Expected)]
    alone = [fault for fault in applicable if fault.alone or framework.alone]
    together = [fault for fault in applicable if fault not in alone]
    while together:
        cells = inject(framework, together, folder / f"job-{next(_NUMBER)}", say)
        yield from cells
        together = together[len(cells) :]  # a fault that ended the job leaves the rest for another one
    for fault in alone:
        yield from inject(framework, [fault], folder / f"job-{next(_NUMBER)}", say)


def inject(framework: Framework, faults: Sequence[Fault], directory: Path, say: Say) -> list[Cell]:
    """Runs one job. If a fault ends it, the last cell is that of this fault."""
    memory = Memory(f"allranks-recovery-{os.getpid()}") if any(fault.needs_memory for fault in faults) else None
    raises = framework.first.pod if any(fault.raises for fault in faults) else ""
    with Job(framework.layout, directory, len(faults), raises, memory) as job:
        trials = run_trials(job, framework, faults, say)
    if job.left_behind:
        trials[-1].problem = f"processes were left behind: {job.left_behind}"
    cells = [
        judge(framework, fault, trial, number, job.status, job.metrics)
        for number, (fault, trial) in enumerate(zip(faults, trials, strict=False))
    ]
    for cell in cells:
        say(f"{cell.framework}: {cell.fault}: {str(cell).replace('<br>', ', ')}")
    return cells


def run_trials(job: Job, framework: Framework, faults: Sequence[Fault], say: Say) -> list[Trial]:
    """Injects one fault after the other, until the job ends or does not continue."""
    trials: list[Trial] = []
    try:
        for fault in faults:
            say(f"{framework.name}: {fault.name}")
            expected = fault.expected(framework)
            undisturbed = isinstance(expected, Expected) and expected.undisturbed
            trials.append(Trial() if fault.raises else job.inject(fault.act(framework), undisturbed))
            if trials[-1].problem:
                return trials
        seconds = job.finish()
        if trials[-1].seconds is None:
            trials[-1].seconds = seconds
    except JobError as error:
        if len(trials) < len(faults):
            trials.append(Trial())
        trials[-1].problem = str(error)
    return trials


def judge(
    framework: Framework,
    fault: Fault,
    trial: Trial,
    number: int,
    status: dict[str, Any],
    metrics: list[dict[str, Any]],
) -> Cell:
    """The cell of fault `number` of a job, from its final status, rank 0's output and metrics.jsonl."""
    expected = fault.expected(framework)
    assert isinstance(expected, Expected)
    past = [entry for entry in status.get("history", []) if entry.get("failure")]
    ended = past[number] if number < len(past) else {}
    last = status.get("lastFailure") or {}
    failure = ended.get("failure", last)
    if failure.get("pod") == last.get("pod"):
        failure = last  # the same failure, with all of its lines
    cell = Cell(framework.name, fault.name, status.get("phase", "no result"), cause_of(failure), seconds=trial.seconds)
    if fault.alone or framework.alone:
        cell.counted = status.get("restarts", {}).get("counted", 0)
    else:
        cell.counted = int(ended.get("counted", False))
    cell.epoch, cell.loss = trial.resumed or (None, None)
    cell.undisturbed = expected.undisturbed
    wrong = differences(expected, cell, failure, status, failure is last)
    if trial.problem:
        wrong = [trial.problem, *wrong]
    elif expected.undisturbed:
        wrong += undisturbed(trial, status, metrics)
    elif expected.verdict == "Succeeded":
        wrong += resumed(trial, metrics)
    cell.wrong = wrong
    return cell


def differences(
    expected: Expected, cell: Cell, failure: dict[str, Any], status: dict[str, Any], in_full: bool
) -> list[str]:
    """Differences between the status and the expectation. `in_full`: the failure has all of its last lines."""
    conditions = [one for one in status.get("conditions", []) if one["type"] == "Failed" and one["status"] == "True"]
    twice = any("the same way twice" in condition["message"] for condition in conditions)
    checks = [
        (cell.verdict == expected.verdict, f"expected {expected.verdict}"),
        (cell.counted in expected.counted, f"expected {expected.counted} counted restarts"),
        (failure.get("exitCode") in expected.exit_codes, f"expected exit code {expected.exit_codes}"),
        (not expected.pods or pod_of(failure) in expected.pods, f"expected root cause {expected.pods}"),
        (expected.rank in (None, failure.get("rank")), f"expected root cause rank {expected.rank}"),
        (expected.signal in (None, failure.get("signal")), f"expected signal {expected.signal}"),
        (failure.get("reason") in expected.reasons, f"expected reason {expected.reasons}"),
        (not in_full or expected.message in failure.get("message", ""), "its last lines do not show the cause"),
        (expected.verdict != "Failed" or twice, "it failed, but not because it failed the same way twice"),
    ]
    return [problem for right, problem in checks if not right]


def resumed(trial: Trial, metrics: list[dict[str, Any]]) -> list[str]:
    """Problems of the resume: not from the newest checkpoint, another loss, a repeated epoch. Empty: none."""
    if not trial.resumed:
        return ["it did not resume"]
    epoch, loss = trial.resumed
    epochs = [line["epoch"] for line in metrics]
    if epochs != list(range(1, len(epochs) + 1)) or epoch >= len(epochs):
        return [f"metrics.jsonl has epochs {epochs}"]
    had = metrics[epoch - 1]["loss"]
    checks = [
        (epoch >= trial.epoch_before, f"resumed from epoch {epoch}, epoch {trial.epoch_before} was done"),
        (abs(had - loss) < 1e-4, f"resumed with loss {loss}, the epoch had {had}"),
        (metrics[epoch]["loss"] < metrics[0]["loss"], "the loss is that of a fresh start"),
    ]
    return [problem for right, problem in checks if not right]


def undisturbed(trial: Trial, status: dict[str, Any], metrics: list[dict[str, Any]]) -> list[str]:
    """Signs that work was lost. Empty: none."""
    epochs = [line["epoch"] for line in metrics]
    checks = [
        (trial.resumed is None, "a checkpoint was read"),
        (status.get("attempt") == 0, f"attempt {status.get('attempt')} was started"),
        (epochs == list(range(1, len(epochs) + 1)), f"metrics.jsonl has epochs {epochs}"),
    ]
    return [problem for right, problem in checks if not right]


def pod_of(failure: dict[str, Any]) -> str:
    return f"{failure.get('role', '')}-{failure.get('index', 0)}"


def cause_of(failure: dict[str, Any]) -> str:
    """`worker-1 (rank 2): signal 9, Error`."""
    if not failure:
        return "no cause"
    rank = f" (rank {failure['rank']})" if failure.get("rank") is not None else ""
    code = f"exit code {failure.get('exitCode')}"
    if failure.get("signal") is not None and failure.get("exitCode") != 138:  # 138 is not signal 10
        code = f"signal {failure['signal']}"
    return f"{pod_of(failure)}{rank}: {code}, {failure['reason']}"
