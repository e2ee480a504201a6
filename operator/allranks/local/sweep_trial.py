"""The job of one trial on this machine: a process of `allranks run`, which has its own run directory."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from allranks.api.status import FINISHED, Condition, Status
from allranks.core.facts.model import Manifest
from allranks.core.sweeps.model import TrialJob
from allranks.local import run_directories
from allranks.local.errors import LocalRunError
from allranks.text import last_lines

STATE_INTERVAL = 0.5
"""Seconds between two writes of a trial's state, from which the sweep reads its progress."""
_PR_SET_PDEATHSIG = 1
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
            self.run_dir.parent.mkdir(parents=True, exist_ok=True)
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
                    preexec_fn=_end_with_parent,
                )
        except OSError as error:
            raise LocalRunError.from_os(error, f"trial {self.name} cannot be started") from error

    def observe(self) -> TrialJob | None:
        """None: there is no job, because none was started or its process was killed."""
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
                self._read = changed, Status.model_validate(status, by_alias=True, by_name=False)
        except (OSError, ValueError, KeyError, ValidationError):
            return self._read[1] if self._read else None
        return self._read[1]

    def _not_started(self) -> Status:
        with contextlib.suppress(OSError):
            text = last_lines(self.log.read_text(errors="replace"), 1, 1000).removeprefix("error: ")
            return _failed(text)
        return _failed("it did not start")

    async def wait_until_unused(self) -> None:
        """The process of a sweep that was killed ends its ranks first."""
        while self.run_dir.is_dir():
            with contextlib.suppress(BlockingIOError), run_directories.lock(self.run_dir):
                return
            await asyncio.sleep(0.2)


def _failed(message: str) -> Status:
    now = datetime.now(UTC)
    condition = Condition(type="Failed", status="True", reason="NotStarted", message=message, last_transition_time=now)
    return Status(phase="Failed", conditions=[condition])


def _end_with_parent() -> None:
    """SIGTERM when the sweep dies, so that no trial outlives it. Only Linux has this."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def environment(gpus: Sequence[str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a trial that may use these GPUs."""
    from allranks.local.gpus import ORDER, VISIBLE

    if not gpus:
        return dict(environ)
    order = {} if VISIBLE in environ else {ORDER: "PCI_BUS_ID"}
    return {**environ, VISIBLE: ",".join(gpus), **order}
