"""job.json in the run directory: the job and its newest status, in the format of `kubectl get -o json`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from allranks.api.job import API_VERSION, KIND, Job
from allranks.api.status import Status, Times
from allranks.core.accounting import time_accounting
from allranks.core.facts.status_update import changed

WRITE_INTERVAL_SECONDS = 5.0
ALIVE_INTERVAL_SECONDS = 30.0
"""The file has a newer moment at least so often, also of a job that reports nothing: it says how long a run that was
killed has run."""


class StateFile:
    """Errors are ignored: a full disk must not end the training because of this file."""

    def __init__(self, path: Path, job: Job, interval: float = WRITE_INTERVAL_SECONDS) -> None:
        self._path, self._job, self._interval, self._wrote_at = path, job, interval, float("-inf")
        self._written: tuple[str, int] | None = None

    def write_first(self, status: Status) -> None:
        """Writes the status with the current time, so that a run that is killed before the next write has an end. The
        file of an earlier run in the directory stays."""
        if not self._path.exists():
            self.write(changed(status, times=Times(category="Queued", since=datetime.now(UTC))))

    def write_throttled(self, status: Status, at_once: bool = False) -> None:
        """Progress is written now and then, a new phase or attempt at once: nothing may follow it for hours."""
        changed = (status.phase, status.attempt) != self._written
        if at_once or changed or time.monotonic() - self._wrote_at >= self._interval:
            self.write(status)

    async def keep_current(self, status: Callable[[], Status]) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(ALIVE_INTERVAL_SECONDS)
            self.write(status())

    def write(self, status: Status) -> None:
        """Its times are those up to now."""
        status = changed(status, times=time_accounting.up_to(status, datetime.now(UTC)))
        self._wrote_at, self._written = time.monotonic(), (status.phase, status.attempt)
        shown = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": self._job.metadata.model_dump(by_alias=True, exclude_none=True, mode="json"),
            "spec": self._job.spec.model_dump(by_alias=True, exclude_none=True, mode="json"),
            "status": status.model_dump(by_alias=True, exclude_none=True, mode="json"),
        }
        unfinished = self._path.with_name(f".{self._path.name}.tmp")
        with contextlib.suppress(OSError):
            unfinished.write_text(json.dumps(shown, indent=1))
            unfinished.replace(self._path)
