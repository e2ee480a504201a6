"""The stored sweeps of this machine, `runs/SWEEP/TIME/sweep.json` with `trials/TRIAL/job.json`, beside its runs.

A sweep with `--run-dir runs/NAME` is `runs/NAME/sweep.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from allranks.api.sweep_status import ENDED
from allranks.core.facts.model import Manifest
from allranks.local import run_directories
from allranks.local.run_directories import ROOT, RUN_FILE, RunsError, StoredRun, stored_runs

SWEEP_FILE = "sweep.json"
"""The sweep with its status, in a run directory."""
TRIALS = "trials"
"""The directory with the run directories of the trials."""


class StoredSweep(StoredRun):
    """The run directory of a sweep. It is listed and removed as one, with its trials."""

    file: ClassVar[str] = SWEEP_FILE

    @cached_property
    def running(self) -> bool:
        # The ranks of a sweep that was killed end a little later.
        return self._locked or any(trial.running for trial in self.trials)

    @cached_property
    def trials(self) -> tuple[StoredTrial, ...]:
        """Those that were started, by number."""
        status = {str(trial.get("job")): trial for trial in self._status_of_trials()}
        numbers = {job: number for number, job in enumerate(status)}
        stored = [
            path.parent for path in (self.directory / TRIALS).glob(f"*/{RUN_FILE}") if not path.parent.is_symlink()
        ]
        stored.sort(key=lambda path: (numbers.get(path.name, len(numbers)), path.name))
        return tuple(StoredTrial(path, self, str(status.get(path.name, {}).get("phase", ""))) for path in stored)

    @property
    def summary(self) -> str:
        """`7/20`: trials that have ended, and all trials."""
        return str(self.status.get("summary") or "")

    @property
    def ended(self) -> datetime | None:
        end = _moment(self.status.get("completionTime"))
        if end or self.running:
            return end
        moments = [_moment(trial.get(key)) for trial in self._status_of_trials() for key in ("startTime", "endTime")]
        moments += [trial.ended for trial in self.trials]
        return max((moment for moment in moments if moment), default=None)

    def _status_of_trials(self) -> list[dict[str, Any]]:
        trials = self.status.get("trials")
        return [trial for trial in trials if isinstance(trial, dict)] if isinstance(trials, list) else []


@dataclass(frozen=True)
class StoredTrial(StoredRun):
    """The run of a trial: `SWEEP/TIME/TRIAL`."""

    sweep: StoredSweep
    decided: str = ""
    """The phase of the trial in the status of its sweep."""

    @property
    def job(self) -> str:
        return self.directory.name

    @property
    def name(self) -> str:
        return f"{self.sweep.name}/{self.job}"

    @property
    def phase(self) -> str:
        """The phase in the sweep if it has ended the trial (`Stopped`, because others are better), else of the run."""
        return self.decided if self.decided in ENDED else super().phase

    def remove(self) -> None:
        raise RunsError(f"{self.name} is a trial: remove its sweep, {self.sweep.name}")


def _moment(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except (ValueError, TypeError):
        return None


# --- runs and sweeps -------------------------------------------------------------------------------------------------


def list_stored(root: Path = ROOT) -> list[StoredRun]:
    """Return all runs and sweeps below `root`, by name, the oldest first."""
    return sorted([*stored_runs(root), *stored_sweeps(root)], key=lambda run: (run.job, run.age_key))


def find_stored(name: str, root: Path = ROOT) -> StoredRun:
    """Return the run or sweep `JOB/TIME`, the newest of JOB, or a trial: `SWEEP/TIME/TRIAL`, or the newest TRIAL. Raise
    RunsError."""
    entries = list_stored(root)
    whole, _, trial = name.rpartition("/")
    named = [run for run in entries if run.named and run.name == whole]
    if found_trial := next(_trials(named, trial), None):
        return found_trial
    if "/" in whole:
        sweep = run_directories.find_run(whole, root, entries)
        if found_trial := next(_trials([sweep], trial), None):
            return found_trial
        raise RunsError(f"{sweep.name} has no trial {trial} that was started: allranks runs --trials lists them")
    try:
        return run_directories.find_run(name, root, entries)
    except RunsError:
        if trials := list(_trials(entries, name)):
            return max(trials, key=lambda trial: trial.sweep.age_key)
        raise


def _trials(runs: list[StoredRun], name: str) -> Iterator[StoredTrial]:
    sweeps = [run for run in runs if isinstance(run, StoredSweep)]
    return (trial for sweep in sweeps for trial in sweep.trials if trial.job == name)


def require_job(run: StoredRun) -> StoredRun:
    """Return the run itself. Raise RunsError for a sweep, which has no ranks and no logs of its own."""
    if isinstance(run, StoredSweep):
        example = f", for example {run.trials[0].name}" if run.trials else ""
        raise RunsError(f"{run.name} is a sweep: name one of its trials{example} (allranks runs --trials lists them)")
    return run


# --- sweeps ----------------------------------------------------------------------------------------------------------


def find_sweep(name: str, root: Path = ROOT) -> Path | None:
    """Return the newest run directory of the sweep."""
    directories = [path.parent for path in (root / name).glob(f"*/{SWEEP_FILE}") if not path.parent.is_symlink()]
    return max(directories, key=lambda path: path.name, default=None)


def stored_sweeps(root: Path = ROOT) -> list[StoredSweep]:
    """Return all sweeps below `root`, by name, the oldest first."""
    named = {False: root.glob(f"*/*/{SWEEP_FILE}"), True: root.glob(f"*/{SWEEP_FILE}")}
    sweeps = [
        StoredSweep(path.parent, named=is_named)
        for is_named, files in named.items()
        for path in files
        if not path.parent.is_symlink()
    ]
    return sorted(sweeps, key=lambda sweep: (sweep.job, sweep.age_key))


def read_sweep(run_dir: Path, name: str = "") -> Manifest:
    """Return the sweep in a run directory. Raise RunsError if it cannot be read, or has another name than `name`."""
    path = run_dir / SWEEP_FILE
    try:
        document: Manifest = json.loads(path.read_text(encoding="utf-8"))
        stored = str(document["metadata"]["name"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunsError(f"{path} has no sweep that can be read: {error}") from error
    if name and stored != name:
        raise RunsError(f"{run_dir} has the sweep {stored}, not {name}")
    return document
