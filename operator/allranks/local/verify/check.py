"""Runs a job twice, without and with kills, each in its own directory with its own checkpoints, and compares both."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from allranks.api.job import Job, Restart, RestartRule
from allranks.api.status import Status
from allranks.core.diagnosis.reasons import cause_line, describe_failure
from allranks.core.facts.model import Pod
from allranks.errors import CannotRun
from allranks.local.options import NullListener, Options
from allranks.local.runner import LocalRun
from allranks.local.verify import weights
from allranks.local.verify.plan import Plan, plan
from allranks.local.verify.records import Ending, Evidence, FileResult, Kill, Run, starts
from allranks.local.verify.watch import Watch, pattern_of

UNBROKEN, KILLED = "unbroken", "killed"
"""The directories of the two runs."""
STEPS = "steps"
_CHECKPOINT = "checkpoint"
"""The name of the volume for checkpoints."""
_SPARE_RESTARTS = 3
_COMPARE_SECONDS = 600.0
_LONGEST = 200
"""Characters of a failure, of which some libraries write a paragraph."""


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """Options of one verification."""

    run: Options
    """Options of both runs; `run_dir` contains their directories."""
    kills: int = 4
    seed: int = 0
    time_limit: float = 600.0
    """Seconds that each of the two runs may take."""
    until: int | None = None
    """Compare up to this step, and end the runs there."""
    tolerance: float | None = None


class NoCheckpoints(CannotRun):
    """The job has no directory for checkpoints, so that nothing can be said about its resumption."""


class Verification:
    """One verification. Raises NoCheckpoints."""

    def __init__(self, job: Job, options: VerifyOptions) -> None:
        if job.spec.checkpoint is None:
            raise NoCheckpoints(
                "spec.checkpoint: the job has no checkpoint directory, so that nothing can be said: add checkpoint: "
                "{claim: NAME}, let the program save to the directory in ALLRANKS_CHECKPOINT_DIR, and load from it at "
                "the start"
            )
        self._options = options
        self._unbroken = self._local_run(UNBROKEN, job, Restart(max_restarts=0, scope=job.spec.restart.scope))
        kills = RestartRule(signals=[9], action="RestartUncounted")
        restart = Restart(
            max_restarts=options.kills + _SPARE_RESTARTS, backoff_seconds=0, scope=job.spec.restart.scope, rules=[kills]
        )
        self._killed = self._local_run(KILLED, job, restart)
        self._current: LocalRun | None = None
        self._watch: Watch | None = None
        self._comparison: asyncio.subprocess.Process | None = None
        self._stopped = False
        self._last: int | None = options.until

    def _local_run(self, name: str, job: Job, restart: Restart) -> LocalRun:
        """Return a run that uploads nothing, with a directory for its checkpoints."""
        changes = {"restart": restart, "outputs": None, "suspend": False}
        job = job.model_copy(update={"spec": job.spec.model_copy(update=changes)})
        run_dir = self._options.run.run_dir / name
        volumes = {**self._options.run.volumes, _CHECKPOINT: run_dir / "volumes" / _CHECKPOINT}
        return LocalRun(
            job, replace(self._options.run, run_dir=run_dir, volumes=volumes, claims={}, step_log=run_dir / STEPS)
        )

    def check(self) -> list[str]:
        """Return notes on settings that have no effect here. Raise CannotRun if the job cannot run here."""
        self._killed.check()
        return self._unbroken.check()

    @property
    def volume_names(self) -> set[str]:
        return self._unbroken.volume_names

    @property
    def progress(self) -> str:
        """What is done at the moment, for a line on the screen."""
        if self._watch is None:
            return "comparing the checkpoints"
        name = "without kills" if self._current is self._unbroken else "with kills"
        step = f"step {self._watch.step}" if self._watch.step >= 0 else "starting"
        last = f" of {self._last}" if self._last and self._watch.step >= 0 else ""
        kills = f", {len(self._watch.kills)} kills" if self._current is self._killed else ""
        return f"run {name}: {step}{last}{kills}"

    @property
    def stopped(self) -> bool:
        return self._stopped

    def stop(self) -> None:
        """End the current run: SIGTERM, and the second time SIGKILL."""
        again, self._stopped = self._stopped, True
        if self._current:
            self._current.stop(at_once=again)
        if self._comparison and self._comparison.returncode is None:
            self._comparison.kill()

    async def run(self) -> Evidence | None:
        """Run the job twice; then none of its processes is left. Return None if it was stopped.

        Raise LocalRunError or CannotRun."""
        options = self._options
        unbroken, watched = await self._run(self._unbroken, options.until)
        evidence = Evidence(unbroken, None, tolerance=options.tolerance, until=options.until)
        if self._stopped:
            return None
        if unbroken.ending == "TimedOut":  # the comparison ends where it has ended
            evidence = replace(evidence, until=max((start.last for start in unbroken.starts), default=0))
        if unbroken.ending == "Failed" or not unbroken.starts or not unbroken.saves:
            return evidence
        planned = plan(unbroken.starts, watched.saves, self._left(self._unbroken), options.kills, options.seed)
        if not planned.aims:
            return evidence
        self._last = max(start.last for start in unbroken.starts)
        killed, watched = await self._run(self._killed, evidence.until, planned)
        if self._stopped:
            return None
        self._watch = None
        torn = tuple(torn_files(self._folder(self._killed), planned.checkpoints))
        evidence = replace(evidence, killed=killed, kills=tuple(watched.kills), torn=torn)
        if evidence.until is None and killed.ending == "Succeeded":
            python = next((line.python for line in watched.lines if line.python), "")
            evidence = replace(evidence, files=tuple(await self._compare(python, watched.kills)))
        return evidence

    async def _run(self, run: LocalRun, until: int | None, planned: Plan | None = None) -> tuple[Run, Watch]:
        steps = run.options.run_dir / STEPS
        for folder in (steps, self._folder(run)):
            folder.mkdir(parents=True, exist_ok=True)
        loop, listener = asyncio.get_running_loop(), _Failures()
        watch = Watch(
            self._folder(run),
            steps,
            lambda: loop.call_soon_threadsafe(run.stop),
            until=until,
            **({"plan": planned} if planned else {}),
        )
        began, late = time.monotonic(), False

        def end_late_run() -> None:
            nonlocal late
            late = True
            run.stop()

        timer = loop.call_later(self._options.time_limit, end_late_run)
        self._current, self._watch = run, watch
        try:
            with watch:
                await run.run(listener)
        finally:
            timer.cancel()
            self._current = None
        if watch.error:
            raise watch.error
        listener.note(run.status)
        record = Run(
            _ending(run.status, watch, late),
            starts(watch.lines),
            tuple(listener.failures.items()),
            time.monotonic() - began,
            len([save for save in watch.saves if save.step >= 0]),
        )
        return record, watch

    def _folder(self, run: LocalRun) -> Path:
        return run.options.volumes[_CHECKPOINT]

    def _left(self, run: LocalRun) -> set[str]:
        folder = self._folder(run)
        return {pattern_of(os.path.relpath(path, folder)) for path in folder.rglob("*") if path.is_file()}

    async def _compare(self, python: str, kills: Sequence[Kill]) -> list[FileResult]:
        """Compare the final checkpoints of both runs, in the Python of the program."""
        folder, other = self._folder(self._unbroken), self._folder(self._killed)
        since = kills[0].time if kills else 0.0
        pairs = pair(_times(folder), {path: at for path, at in _times(other).items() if at >= since})
        # The packages of the program, and not what lies beside this script.
        environment = {**os.environ, "PYTHONSAFEPATH": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        process = self._comparison = await asyncio.create_subprocess_exec(
            *(python or shutil.which("python3") or "python3", weights.__file__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
        )
        question = json.dumps([(str(folder / path), str(other / path_)) for path, path_ in pairs]).encode()
        try:
            async with asyncio.timeout(_COMPARE_SECONDS):
                output, _ = await process.communicate(question)
        except TimeoutError:
            output = b""
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        answers = [json.loads(line) for line in output.splitlines() if line.startswith(b'{"result"')]
        missing = [{"result": "not compared", "detail": "the comparison ended"}] * (len(pairs) - len(answers))
        return [
            FileResult(path, path_, **answer) for (path, path_), answer in zip(pairs, [*answers, *missing], strict=True)
        ]


def _ending(status: Status, watch: Watch, late: bool) -> Ending:
    if watch.stopped:
        return "Stopped"
    if status.phase == "Succeeded":
        return "Succeeded"
    return "TimedOut" if late else "Failed"


class _Failures(NullListener):
    """Keeps what failed in each attempt, without what was killed."""

    def __init__(self) -> None:
        self.failures: dict[int, str] = {}

    def status(self, status: Status, pods: Sequence[Pod]) -> None:
        self.note(status)

    def note(self, status: Status) -> None:
        failure = status.last_failure
        if failure and failure.signal != signal.SIGKILL:
            line = cause_line(failure)
            text = describe_failure(failure) + (f": {line}" if line else "")
            self.failures[failure.attempt] = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
        elif failure:
            self.failures.pop(failure.attempt, None)  # later evidence corrects the cause


def _times(folder: Path) -> dict[str, float]:
    """Return the path of each checkpoint -> when it was last written."""
    return {path: _written(folder / path) for path in weights.checkpoints(str(folder))}


def _written(path: Path) -> float:
    files: Iterable[Path] = path.rglob("*") if path.is_dir() else (path,)
    return max((file.stat().st_mtime for file in files), default=0.0)


def torn_files(folder: Path, checkpoints: Collection[str]) -> Iterator[str]:
    """Yield `NAME: REASON` for each checkpoint of these patterns that is not complete."""
    for path in sorted(os.path.relpath(path, folder) for path in folder.rglob("*") if path.is_file()):
        if pattern_of(path) in checkpoints and (problem := weights.incomplete(folder / path)):
            yield f"{path}: {problem}"


def pair(folder: dict[str, float], other: dict[str, float]) -> list[tuple[str, str]]:
    """Return the checkpoints of both folders that belong together: with the same name, and of the rest the newest ones
    whose names differ only in numbers, such as the time at which the program started."""
    pairs = [(path, path) for path in sorted(folder) if path in other]
    newest: dict[str, str] = {}
    for path in sorted((path for path in other if path not in folder), key=lambda path: (other[path], path)):
        newest[pattern_of(path)] = path
    rest: dict[str, str] = {}
    for path in sorted((path for path in folder if path not in other), key=lambda path: (folder[path], path)):
        rest[pattern_of(path)] = path
    return pairs + [(path, newest[pattern]) for pattern, path in rest.items() if pattern in newest]
