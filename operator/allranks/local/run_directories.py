"""The run directories of local runs: `runs/JOB/TIME`, with the link `runs/JOB/latest`, or `runs/NAME` of `--run-dir`.

A run holds a lock on its directory, which the kernel releases when the run ends, however it ends.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from allranks.api.status import FINISHED
from allranks.core.accounting.time_accounting import last_update
from allranks.errors import AllranksError, CannotRun
from allranks.kube.job_codec import status_of
from allranks.local.errors import explain

ROOT = Path("runs")
LATEST = "latest"
INTERRUPTED = "Interrupted"
"""Phase of a run that ended before its job did."""
RUN_FILE = "job.json"
"""The job with its status, in a run directory."""
PROGRESS_FILE = "progress.jsonl"
CODE_FILE = "code.json"
DIFFERENCES_FILE = "code.diff"
"""The differences of the code from its commit."""
_TIME = re.compile(r"\d{8}-\d{6}(-\d+)?")
STACKS_FILE = "dump-stacks"
"""A request for stack dumps (core/facts/rank_reports.py), by a process that is not the run itself."""


class RunsError(AllranksError):
    """A run does not exist, still runs, or cannot be removed."""


def phase_of(phase: str, *, active: bool) -> str:
    """Return the phase, `Interrupted` for a job that has not finished although nothing runs it any more."""
    return phase if active or phase in FINISHED else INTERRUPTED


@dataclass(frozen=True)
class StoredRun:
    """One run directory that contains a job file."""

    directory: Path
    named: bool = field(default=False, kw_only=True)
    """Whether it is `ROOT/NAME`, as `--run-dir` may name it, and not `ROOT/JOB/TIME`."""
    file: ClassVar[str] = RUN_FILE

    @property
    def job(self) -> str:
        """The first part of `name`."""
        return self.directory.name if self.named else self.directory.parent.name

    @property
    def name(self) -> str:
        """`JOB/TIME`, or `NAME` of a named directory, as the commands take it."""
        return self.job if self.named else f"{self.job}/{self.directory.name}"

    @property
    def job_name(self) -> str:
        """The name of the job in the file, with which the names of its logs begin."""
        metadata = self.manifest.get("metadata")
        return str((metadata if isinstance(metadata, dict) else {}).get("name") or self.job)

    @property
    def age_key(self) -> tuple[str, str]:
        """A key that sorts the oldest first: the time in the name of the directory, else the start."""
        name = self.directory.name
        if _TIME.fullmatch(name):
            return name, name
        return f"{self.started.astimezone():%Y%m%d-%H%M%S}" if self.started else "", name

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The job with its last stored status; empty if the file cannot be read."""
        with contextlib.suppress(OSError, ValueError):
            read = json.loads((self.directory / self.file).read_text(encoding="utf-8"))
            if isinstance(read, dict):
                return read
        return {}

    @property
    def status(self) -> dict[str, Any]:
        """The last stored status; empty if the file cannot be read."""
        status = self.manifest.get("status")
        return dict(status) if isinstance(status, dict) else {}

    @cached_property
    def running(self) -> bool:
        return self._locked

    @property
    def _locked(self) -> bool:
        try:
            with lock(self.directory):
                return False
        except BlockingIOError:
            return True
        except OSError:
            return False

    @property
    def phase(self) -> str:
        """The phase; `Interrupted` for a run that ended before its job did."""
        return phase_of(str(self.status.get("phase", "Unknown")), active=self.running)

    @property
    def started(self) -> datetime | None:
        """The start of the job; of a run that was killed before that, when its file was written."""
        with contextlib.suppress(ValueError, TypeError, KeyError):
            return datetime.fromisoformat(self.status["startTime"])
        with contextlib.suppress(OSError):
            return datetime.fromtimestamp((self.directory / self.file).stat().st_mtime, UTC)
        return None

    @property
    def ended(self) -> datetime | None:
        """The end of the job; of an interrupted run the last moment that it recorded. None while it runs."""
        with contextlib.suppress(ValueError, TypeError):
            if "completionTime" in self.status:
                return datetime.fromisoformat(self.status["completionTime"])
        return None if self.running else last_update(status_of(self.manifest))

    @property
    def size(self) -> int:
        """Bytes of all files. Links are not followed."""
        total = 0
        for folder, _, files in os.walk(self.directory):
            for file in files:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(folder, file)).st_size  # noqa: PTH118
        return total

    def logs(self) -> list[Path]:
        return sorted((self.directory / "logs").glob("*.log"))

    def remove(self) -> None:
        """Remove the directory, and the directory of the job with its last run. Raise RunsError."""
        if self.running:
            raise RunsError(f"{self.name} is still running: end it with Ctrl-C first")
        try:
            shutil.rmtree(self.directory)
        except OSError as error:
            raise RunsError(f"{self.directory} cannot be removed: {error.strerror}") from error
        if self.named:
            return
        parent, link = self.directory.parent, self.directory.parent / LATEST
        remaining = sorted(run.directory.name for run in _runs_in(parent))
        with contextlib.suppress(OSError):
            if remaining and link.is_symlink() and not link.exists():
                link_latest(parent / remaining[-1])
            elif not remaining:
                link.unlink(missing_ok=True)
                parent.rmdir()


def new_directory(job: str) -> Path:
    """Return `runs/JOB/TIME`, which does not exist yet."""
    return next(path for path in _names(job) if not path.exists())


def reserve_directory(job: str, reserved: list[Path]) -> Path:
    """Create `runs/JOB/TIME` and add it to `reserved`, so that no other run that starts in the same second takes it.

    A path that cannot be created is returned as it is: the run says why.
    """
    for path in _names(job):
        try:
            path.mkdir(mode=0o700, parents=True)  # variables, logs and pickles of the run
        except FileExistsError:
            if not path.is_dir():
                return path  # `runs` is a file
        except OSError:
            return path
        else:
            reserved.append(path)
            return path
    raise AssertionError("the names are endless")


def remove_empty(reserved: Iterable[Path]) -> None:
    """Remove directories of runs that did not start, and directories of their jobs if they are empty."""
    for path in reserved:
        for folder in (path, path.parent, path.parent.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextlib.contextmanager
def prepared(directory: Path, started: Callable[[], bool]) -> Iterator[None]:
    """Create a run directory and its `logs`. Remove what a run has put there that ends before it has `started`.

    Raise CannotRun.
    """
    before = _entries(directory)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / "logs").mkdir(exist_ok=True)
    except OSError as error:
        raise CannotRun(f"the run directory {directory} cannot be created: {explain(error)}") from error
    try:
        yield
    finally:
        if not started():
            for path in _entries(directory) or ():
                if before is None or path not in before:
                    _remove(path)
            if before is None:
                with contextlib.suppress(OSError):
                    directory.rmdir()


def _entries(directory: Path) -> set[Path] | None:
    """Return None if there is no such directory."""
    try:
        return set(directory.iterdir())
    except OSError:
        return None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _names(job: str) -> Iterator[Path]:
    base = ROOT / job / f"{datetime.now():%Y%m%d-%H%M%S}"
    yield base
    yield from (base.with_name(f"{base.name}-{number}") for number in itertools.count(2))


def stored_runs(root: Path = ROOT) -> list[StoredRun]:
    """Return all runs below `root`, by job, the oldest first."""
    parents = sorted(path for path in root.glob("*") if path.is_dir() and not path.is_symlink())
    runs = [run for parent in parents for run in _runs_in(parent)]
    named = [StoredRun(path, named=True) for path in parents if (path / RUN_FILE).is_file()]
    return sorted([*runs, *named], key=lambda run: (run.job, run.age_key))


def find_run(name: str, root: Path = ROOT, among: Sequence[StoredRun] | None = None) -> StoredRun:
    """Return the run `JOB/TIME`, or the newest run of `JOB`. `among`: those below `root`. Raise RunsError."""
    stored = stored_runs(root) if among is None else among  # the newest run of a job is its last one
    job, _, time = name.partition("/")
    runs = [run for run in stored if run.job == job]
    if not runs:
        jobs = ", ".join(sorted({run.job for run in stored}))
        hint = f"did you mean {near}?" if (near := similar_job(job, stored)) else f"there are runs of {jobs}"
        raise RunsError(f"{root / name}: there is no such run; {hint if jobs else 'there are none'}")
    if not time or time == LATEST:
        return runs[-1]
    for run in runs:
        if run.directory.name == time:
            return run
    raise RunsError(f"{root / name}: there is no such run; the newest run of {job} is {runs[-1].name}")


def similar_job(name: str, among: Iterable[StoredRun]) -> str:
    """Return the job of these runs whose name is most like this one; empty if there is none."""
    return next(iter(difflib.get_close_matches(name, {run.job for run in among}, n=1)), "")


def _runs_in(parent: Path) -> Iterator[StoredRun]:
    for path in sorted(parent.glob("*"), key=lambda path: path.name):
        if not path.is_symlink() and (path / RUN_FILE).is_file():
            yield StoredRun(path)


@contextlib.contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Mark the run directory as in use. Raise BlockingIOError if it is, OSError if it cannot be locked."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def in_use(directory: Path) -> Iterator[None]:
    """Hold the lock if the file system has locks and nothing else holds it."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(lock(directory))
        yield


def link_latest(directory: Path) -> None:
    """Point `latest` beside the run directory at it. A failure is ignored: the link is a convenience."""
    link = directory.parent / LATEST
    new = directory.parent / f".{LATEST}.{os.getpid()}"
    with contextlib.suppress(OSError):
        if link.is_symlink() or not link.exists():
            new.symlink_to(directory.name)
            new.replace(link)


def request_stacks(directory: Path, request: str) -> None:
    """Request stacks: the run passes the request on to its ranks. Raise OSError."""
    unfinished = directory / f".{STACKS_FILE}.{os.getpid()}"
    unfinished.write_text(request, encoding="utf-8")
    unfinished.replace(directory / STACKS_FILE)


def stack_request(directory: Path) -> str:
    """Return the newest request; empty without one."""
    try:
        with (directory / STACKS_FILE).open(encoding="utf-8") as file:
            return file.read(64)
    except (OSError, ValueError):
        return ""
