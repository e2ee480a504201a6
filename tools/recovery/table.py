"""Runs the faults of one framework, and judges what came of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from recovery.cases import Expected, Fault, Framework
from recovery.jobs import Broken, Job, Trial
from recovery.memory import Memory

Say = Callable[[str], None]
_NUMBER = count()


@dataclass
class Cell:
    """What one fault did to one framework."""

    framework: str
    fault: str
    verdict: str = ""
    cause: str = ""
    counted: int = 0
    seconds: float | None = None
    """To recover; where the job failed, to its end."""
    epoch: int | None = None
    loss: float | None = None
    """Of the checkpoint from which it went on."""
    undisturbed: bool = False
    """Training went on meanwhile."""
    none: str = ""
    """Why there is no such fault."""
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
    """All the cells of a column. What ends in one restart of all ranks happens to one job, fault after fault."""
    for fault in faults:
        told = fault.expected(framework)
        if isinstance(told, str):
            yield Cell(framework.name, fault.name, none=told)
    there = [fault for fault in faults if isinstance(fault.expected(framework), Expected)]
    alone = [fault for fault in there if fault.alone or framework.alone]
    together = [fault for fault in there if fault not in alone]
    while together:
        cells = befall(framework, together, folder / f"job-{next(_NUMBER)}", say)
        yield from cells
        together = together[len(cells) :]  # a job that a fault has ended cannot meet the others
    for fault in alone:
        yield from befall(framework, [fault], folder / f"job-{next(_NUMBER)}", say)


def befall(framework: Framework, faults: Sequence[Fault], directory: Path, say: Say) -> list[Cell]:
    """One job. The last cell is that of the fault that ended it, if one did."""
    memory = Memory(f"allranks-recovery-{os.getpid()}") if any(fault.needs_memory for fault in faults) else None
    raises = framework.first.blamed if any(fault.raises for fault in faults) else ""
    with Job(framework.layout, directory, len(faults), raises, memory) as job:
        trials = live_through(job, framework, faults, say)
    if job.left_behind:
        trials[-1].problem = f"processes were left behind: {job.left_behind}"
    cells = [
        judge(framework, fault, trial, number, job.status, job.metrics)
        for number, (fault, trial) in enumerate(zip(faults, trials, strict=False))
    ]
    for cell in cells:
        say(f"{cell.framework}: {cell.fault}: {str(cell).replace('<br>', ', ')}")
    return cells


def live_through(job: Job, framework: Framework, faults: Sequence[Fault], say: Say) -> list[Trial]:
    """One fault after the other, until the job ends or does not go on."""
    trials: list[Trial] = []
    try:
        for fault in faults:
            say(f"{framework.name}: {fault.name}")
            expected = fault.expected(framework)
            undisturbed = isinstance(expected, Expected) and expected.undisturbed
            trials.append(Trial() if fault.raises else job.befall(fault.act(framework), undisturbed))
            if trials[-1].problem:
                return trials
        seconds = job.finish()
        if trials[-1].seconds is None:
            trials[-1].seconds = seconds
    except Broken as error:
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
    """Fault `number` of a job, by its final status and what rank 0 and metrics.jsonl say."""
    expected = fault.expected(framework)
    assert isinstance(expected, Expected)
    past = [entry for entry in status.get("history", []) if entry.get("failure")]
    ended = past[number] if number < len(past) else {}
    last = status.get("lastFailure") or {}
    failure = ended.get("failure", last)
    if failure.get("pod") == last.get("pod"):
        failure = last  # the same, with all of its lines
    cell = Cell(framework.name, fault.name, status.get("phase", "no verdict"), cause_of(failure), seconds=trial.seconds)
    if fault.alone or framework.alone:
        cell.counted = status.get("restarts", {}).get("counted", 0)
    else:
        cell.counted = int(ended.get("counted", False))
    cell.epoch, cell.loss = trial.resumed or (None, None)
    cell.undisturbed = expected.undisturbed
    told = differences(expected, cell, failure, status, failure is last)
    if trial.problem:
        told = [trial.problem, *told]
    elif expected.undisturbed:
        told += undisturbed(trial, status, metrics)
    elif expected.verdict == "Succeeded":
        told += resumed(trial, metrics)
    cell.wrong = told
    return cell


def differences(
    expected: Expected, cell: Cell, failure: dict[str, Any], status: dict[str, Any], in_full: bool
) -> list[str]:
    """What the status should have said. `in_full`: the failure is there with all of its last lines."""
    conditions = [one for one in status.get("conditions", []) if one["type"] == "Failed" and one["status"] == "True"]
    twice = any("the same way twice" in condition["message"] for condition in conditions)
    checks = [
        (cell.verdict == expected.verdict, f"{expected.verdict} was expected"),
        (cell.counted in expected.counted, f"{expected.counted} counted was expected"),
        (failure.get("exitCode") in expected.exit_codes, f"exit code {expected.exit_codes} was expected"),
        (not expected.blamed or pod_of(failure) in expected.blamed, f"{expected.blamed} was the cause"),
        (expected.rank in (None, failure.get("rank")), f"rank {expected.rank} was the cause"),
        (expected.signal in (None, failure.get("signal")), f"signal {expected.signal} was expected"),
        (failure.get("reason") in expected.reasons, f"reason {expected.reasons} was expected"),
        (not in_full or expected.message in failure.get("message", ""), "its last lines do not say why"),
        (expected.verdict != "Failed" or twice, "it failed, but not for failing the same way twice"),
    ]
    return [told for right, told in checks if not right]


def resumed(trial: Trial, metrics: list[dict[str, Any]]) -> list[str]:
    """Why training did not go on from the newest checkpoint with the loss it had, each epoch once; empty: it did."""
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
        (metrics[epoch]["loss"] < metrics[0]["loss"], "the loss is that of a beginning"),
    ]
    return [told for right, told in checks if not right]


def undisturbed(trial: Trial, status: dict[str, Any], metrics: list[dict[str, Any]]) -> list[str]:
    """Why something of the work was lost; empty: nothing was."""
    epochs = [line["epoch"] for line in metrics]
    checks = [
        (trial.resumed is None, "a checkpoint was read"),
        (status.get("attempt") == 0, f"attempt {status.get('attempt')} was begun"),
        (epochs == list(range(1, len(epochs) + 1)), f"metrics.jsonl has epochs {epochs}"),
    ]
    return [told for right, told in checks if not right]


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
