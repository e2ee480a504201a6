"""Runs a sweep on this machine: its trials are processes of `allranks run`, a few at a time.

The status in the run directory takes the place of that on the API server, and is written before each decision is
carried out. A sweep that was killed continues in the same run directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from allranks.api.job import API_VERSION, Job
from allranks.api.status import FINISHED, Condition, Status
from allranks.api.sweep import KIND, Sweep, SweepSpec
from allranks.api.sweep_status import SweepStatus
from allranks.core.facts import gpu_count
from allranks.core.facts.model import Event, Manifest
from allranks.core.sweeps import trial_job
from allranks.core.sweeps.model import Suggestion, SweepObserved, TrialJob
from allranks.core.sweeps.plan import plan
from allranks.errors import CannotRun
from allranks.fields import decode, encode
from allranks.local import run_directories
from allranks.local.errors import LocalRunError
from allranks.local.gpus import ORDER, VISIBLE, list_gpus
from allranks.local.options import Options
from allranks.local.runner import LocalRun
from allranks.local.sweep_files import SWEEP_FILE, TRIALS
from allranks.parent_death import end_with_parent
from allranks.suggest.process import suggest
from allranks.text import last_lines

BEST_FILE = "best.yaml"
POLL_SECONDS = 0.2
_WRITE_SECONDS = 1.0


class SweepListener(Protocol):
    """Receives the status and the events. Called on the event loop's thread: must not block."""

    def status(self, status: SweepStatus) -> None: ...

    def event(self, event: Event) -> None: ...


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Options of one sweep."""

    run_dir: Path
    workdir: Path = field(default_factory=Path.cwd)
    volumes: Mapping[str, Path] = field(default_factory=dict)
    grace: float | None = None
    code: Path | None = None
    """The directory with the code of all trials."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    suggest: Callable[[SweepSpec, Suggestion], Awaitable[dict[str, str]]] = suggest


class LocalSweep:
    """One sweep on this machine. `job` is the job of its template."""

    def __init__(self, sweep: Sweep, job: Job, options: SweepOptions) -> None:
        self.options = options
        self._job = job
        self._gpus_of_trial = _gpus(job)
        self._gpus = list_gpus(options.environ) if self._gpus_of_trial else []
        self.sweep = self._fitting(sweep)
        self.status = SweepStatus()
        self._trials: dict[str, LocalTrial] = {}
        self._held: dict[str, list[str]] = {}
        self._suggested: dict[int, dict[str, str]] = {}
        self._stopping = False
        self._wake = asyncio.Event()
        self._wrote_at = float("-inf")

    @property
    def continues(self) -> bool:
        """Return whether the run directory has the trials of an earlier run."""
        return bool(self.status.trials)

    def check(self) -> set[str]:
        """Return the names that `options.volumes` may have. Raise CannotRun if trials cannot run on this machine."""
        options = self.options
        run_options = Options(
            run_dir=options.run_dir, workdir=options.workdir, volumes=options.volumes, environ=options.environ
        )
        # Each trial collects the code by itself.
        job = self._job.model_copy(update={"spec": self._job.spec.model_copy(update={"code": None})})
        run = LocalRun(job, run_options)
        run.check()
        return run.volume_names

    def load(self) -> None:
        """Read what an earlier run left. Raise CannotRun if the directory has another sweep."""
        path = self.options.run_dir / SWEEP_FILE
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            status = decode(SweepStatus, stored["status"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, ValidationError) as error:
            raise CannotRun(f"{path} cannot be read ({error}): use another --run-dir") from error
        fixed = ("parameters", "objective", "algorithm", "seed", "template")
        same = all(stored["spec"].get(name) == self._document()["spec"].get(name) for name in fixed)
        if not same or stored["metadata"]["name"] != self.sweep.name:
            raise CannotRun(f"{path} has another sweep: use another --run-dir")
        self.status = status
        unended = [trial.job for trial in status.trials if not trial.ended]
        self._trials = {name: LocalTrial(name, self._folder) for name in unended}

    @property
    def _folder(self) -> Path:
        return self.options.run_dir / TRIALS

    async def run(self, listener: SweepListener) -> SweepStatus:
        """Run the sweep to its end, or until `stop`. Then no process is left. Raise LocalRunError, CannotRun and
        CannotSuggest."""
        self._make_directory()
        try:
            with run_directories.in_use(self.options.run_dir):
                for trial in self._trials.values():
                    await trial.wait_until_unused()
                while not self._stopping:
                    if not await self._step(listener) and self.status.finished:
                        break
        finally:
            await self._end(listener)
        if best := self.status.best:
            self._write(BEST_FILE, json.dumps(trial_job.best(self.sweep, best.parameters), indent=1) + "\n")
        return self.status

    def stop(self) -> None:
        """Stop all trials as Ctrl-C does: after a checkpoint. A second call kills their ranks."""
        self._stopping = True
        for trial in self._trials.values():
            trial.stop()
        self._wake.set()

    def terminate(self) -> None:
        """Stop all trials by SIGTERM."""
        self._stopping = True
        for trial in self._trials.values():
            trial.terminate()
        self._wake.set()

    async def _step(self, listener: SweepListener) -> bool:
        """Observe once and carry out the plan. Return False if nothing is left to do for now."""
        jobs = {name: job for name, trial in self._trials.items() if (job := trial.observe()) is not None}
        next_plan = plan(SweepObserved(self.sweep, self.status, jobs, datetime.now(UTC), self._suggested))
        if next_plan.status is not None:
            self.status = next_plan.status
            if next_plan.write_ahead or time.monotonic() - self._wrote_at > _WRITE_SECONDS:
                self._save()
            listener.status(self.status)
        for event in next_plan.events:
            listener.event(event)
        if next_plan.write_ahead:
            return True
        for manifest in next_plan.create:
            await self._start(manifest)
        for name in next_plan.stop:
            self._trials[name].stop()
        if next_plan.ask:
            self._suggested[next_plan.ask.number] = await self.options.suggest(self.sweep.spec, next_plan.ask)
            return True
        if next_plan.create or next_plan.stop:
            return True
        if self.status.finished and not any(trial.alive for trial in self._trials.values()):
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await self._wake.wait()
        return True

    async def _start(self, manifest: Manifest) -> None:
        name = manifest["metadata"]["name"]
        trial = self._trials[name] = LocalTrial(name, self._folder)
        # A run here has no owner.
        metadata = {key: value for key, value in manifest["metadata"].items() if key != "ownerReferences"}
        options = self.options
        volumes = {**self._checkpoints(), **options.volumes}
        arguments = ["--workdir", str(options.workdir)]
        arguments += [part for key, path in volumes.items() for part in ("--volume", f"{key}={path}")]
        arguments += [] if options.grace is None else ["--grace-period", str(options.grace)]
        arguments += [] if options.code is None else ["--code", str(options.code)]
        environ = trial_environment(self._take_gpus(name), options.environ)
        await trial.start({**manifest, "metadata": metadata}, arguments, environ)

    def _checkpoints(self) -> dict[str, Path]:
        """Return claim -> directory of the checkpoints. All trials share it, so that a trial that is run again finds
        its checkpoints."""
        claim = (self.sweep.template.get("checkpoint") or {}).get("claim")
        return {claim: self.options.run_dir.absolute() / "volumes" / claim} if claim else {}

    def _take_gpus(self, name: str) -> list[str]:
        if len(self._gpus) < self._gpus_of_trial:
            return []  # `allranks run` says so
        held = {gpu for other, gpus in self._held.items() if self._trials[other].alive for gpu in gpus}
        free = [gpu for gpu in self._gpus if gpu not in held]
        self._held[name] = free[: self._gpus_of_trial]
        return self._held[name]

    def _fitting(self, sweep: Sweep) -> Sweep:
        """Return the sweep with as many parallel trials as there are GPUs for."""
        if not self._gpus_of_trial or len(self._gpus) < self._gpus_of_trial:
            return sweep
        parallel = min(sweep.spec.parallel, len(self._gpus) // self._gpus_of_trial)
        return Sweep(sweep.metadata, sweep.spec.model_copy(update={"parallel": parallel}))

    async def _end(self, listener: SweepListener) -> None:
        """End all trials: none outlives the sweep."""
        if any(trial.alive for trial in self._trials.values()) and not self._stopping:
            self.terminate()
        for trial in self._trials.values():
            await trial.wait()
        self._save()
        listener.status(self.status)

    def _make_directory(self) -> None:
        try:
            self.options.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise LocalRunError.from_os(error, f"{self.options.run_dir} cannot be created") from error
        self._save()

    def _save(self) -> None:
        """Store the sweep. Raise LocalRunError if that fails: a sweep whose decisions cannot be stored must not carry
        them out."""
        self._wrote_at = time.monotonic()
        self._write(SWEEP_FILE, json.dumps(self.document(), indent=1))

    def document(self) -> Manifest:
        """Return the sweep with its status, as the API server returns it."""
        status = encode(self.status)
        return {**self._document(), "status": status}

    def _write(self, name: str, text: str) -> None:
        path = self.options.run_dir / name
        unfinished = path.with_name(f".{name}.tmp")
        try:
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(path)
        except OSError as error:
            raise LocalRunError.from_os(error, f"{path} cannot be written") from error

    def _document(self) -> Manifest:
        spec = self.sweep.spec.model_dump(by_alias=True, exclude_unset=True, mode="json")
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": self.sweep.name}, "spec": spec}


def _gpus(job: Job) -> int:
    """Count the GPUs of all ranks of a trial, as far as `resources` say."""
    spec, total = job.spec, 0
    for role in spec.roles.values():
        resources = role.resources or spec.resources
        total += role.replicas * gpu_count.gpus(resources.model_dump() if resources else None)
    return total


# --- a trial: a process of `allranks run`, which has its own run directory --------------------------------------------

STATE_INTERVAL = 0.5
"""Seconds between two writes of a trial's state, from which the sweep reads its progress."""
_NOT_STARTED = 2


class LocalTrial:
    """`start` it, or read what an earlier process left."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.run_dir = folder / name
        self.log = folder / f"{name}.log"
        self._manifest = folder / f"{name}.yaml"
        self._process: asyncio.subprocess.Process | None = None
        self._stopped = False
        self._read: tuple[int, Status] | None = None
        """(modification time of the state in ns, status)"""

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, manifest: Manifest, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start the trial from the beginning, in an empty directory. Raise LocalRunError."""
        try:
            await self.wait_until_unused()
            shutil.rmtree(self.run_dir, ignore_errors=True)
            self.run_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._manifest.write_text(json.dumps(manifest, indent=1))
            with self.log.open("wb") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "allranks", "run", str(self._manifest), "--run-dir", str(self.run_dir)),
                    *("--quiet", "--no-logs", "--state-interval", str(STATE_INTERVAL), *arguments),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=dict(environ),
                    start_new_session=True,  # Ctrl-C is for the sweep, which stops its trials
                    preexec_fn=end_with_parent,
                )
        except OSError as error:
            raise LocalRunError.from_os(error, f"trial {self.name} cannot be started") from error

    def observe(self) -> TrialJob | None:
        """Return the job; None if none was started or its process was killed."""
        status = self._status()
        if self.alive:
            return TrialJob(self.name, status or Status(), suspended=self._stopped)
        if status is not None and (status.phase in FINISHED or self._stopped):
            return TrialJob(self.name, status, suspended=self._stopped)
        if self._process is not None and self._process.returncode == _NOT_STARTED:
            return TrialJob(self.name, self._not_started())
        return TrialJob(self.name, Status(), suspended=True) if self._stopped else None

    def stop(self) -> None:
        """Ask the ranks for a checkpoint, then end them. A second call ends them at once."""
        self._stopped = True
        self._signal(signal.SIGINT)

    def terminate(self) -> None:
        """End the ranks with SIGTERM and the grace period."""
        self._stopped = True
        self._signal(signal.SIGTERM)

    async def wait(self) -> None:
        if self._process is not None:
            await self._process.wait()

    def _signal(self, number: int) -> None:
        if self._process is not None and self.alive:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _status(self) -> Status | None:
        path = self.run_dir / run_directories.RUN_FILE
        try:
            changed = path.stat().st_mtime_ns
            if self._read is None or self._read[0] != changed:
                status = json.loads(path.read_text(encoding="utf-8"))["status"]
                self._read = changed, decode(Status, status)
        except (OSError, ValueError, KeyError, ValidationError):
            return self._read[1] if self._read else None
        return self._read[1]

    def _not_started(self) -> Status:
        with contextlib.suppress(OSError):
            text = last_lines(self.log.read_text(errors="replace"), 1, 1000).removeprefix("error: ")
            return _failed(text)
        return _failed("it did not start")

    async def wait_until_unused(self) -> None:
        """Wait until no process uses the run directory: a killed sweep leaves trials that end their ranks first."""
        while self.run_dir.is_dir():
            with contextlib.suppress(BlockingIOError), run_directories.lock(self.run_dir):
                return
            await asyncio.sleep(0.2)


def _failed(message: str) -> Status:
    now = datetime.now(UTC)
    condition = Condition(type="Failed", status="True", reason="NotStarted", message=message, last_transition_time=now)
    return Status(phase="Failed", conditions=[condition])


def trial_environment(gpus: Sequence[str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a trial that may use these GPUs."""
    if not gpus:
        return dict(environ)
    order = {} if VISIBLE in environ else {ORDER: "PCI_BUS_ID"}
    return {**environ, VISIBLE: ",".join(gpus), **order}
