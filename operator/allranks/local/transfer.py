"""One transfer of data as a process: it can be ended at any time, and another run continues it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from allranks.errors import DataError


class Transfer:
    """Runs `allranks.data.program` with one request."""

    def __init__(self, act: str, request: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        """Prepare one transfer. `act`: fetch, resolve, check or upload."""
        self._act, self._request = act, request
        # `-m` finds this installation, whatever the user's own PYTHONPATH has.
        self._environ = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
        self._process: asyncio.subprocess.Process | None = None
        self.stopped = False

    @property
    def pids(self) -> tuple[int, ...]:
        return (self._process.pid,) if self._process and self._process.returncode is None else ()

    async def run(
        self, on_progress: Callable[[dict[str, Any]], None], on_retry: Callable[[str], None] = lambda _: None
    ) -> dict[str, Any]:
        """Return the last line of the program. `on_retry` is called at most once, with what is tried again, why, and
        for how long. Raise DataError."""
        if self.stopped:
            raise DataError("stopped")
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "allranks.data.program", self._act),
            env=self._environ,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which ends it
        )
        assert process.stdin
        assert process.stdout
        assert process.stderr
        errors = asyncio.create_task(process.stderr.read())
        last: dict[str, Any] = {}
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(json.dumps(self._request).encode())
                process.stdin.close()
            async for line in process.stdout:
                last = json.loads(line)
                if "total" in last:
                    on_progress(last)
                if "retrying" in last:
                    on_retry(last["retrying"])
            await process.wait()
        except BaseException:
            self.stop()
            await process.wait()
            raise
        finally:
            text = (await errors).decode(errors="replace")
        if self.stopped:
            raise DataError("stopped")
        if "error" in last:
            raise DataError(last["error"])
        if process.returncode or not last.keys() & {"entry", "resolved", "checked", "uploaded"}:
            lines = [line for line in text.splitlines() if line.strip()][-1:]
            address = self._request.get("uri") or self._request.get("to")
            raise DataError(f"{address}: the transfer ended with status {process.returncode}: {''.join(lines)}")
        return last

    def stop(self) -> None:
        self.stopped = True
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGTERM)
