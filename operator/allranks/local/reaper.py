"""Kills the processes of a container whose shim was killed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable

from allranks.local import shim

_REAP_TIMEOUT_SECONDS = 1.0


class Reaper:
    """A context in which this process is a subreaper: processes of a killed shim become its children."""

    def __enter__(self) -> Reaper:
        self._before = set(_children())
        shim.become_subreaper()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_orphans(())
        if sys.platform == "linux":
            shim.prctl(shim.PR_SET_CHILD_SUBREAPER, 0)

    def kill_orphans(self, shims: Iterable[int]) -> None:
        """Kills all children except `shims` and those from before the context, with all their descendants."""
        kept = self._before | set(shims)
        while orphans := set(_children()) - kept:
            for orphan in orphans:
                for pid in (*shim.descendants(orphan), orphan):
                    shim.send(pid, signal.SIGKILL)
            if not _reap(orphans):
                return


def _reap(orphans: Iterable[int]) -> bool:
    """False if a killed process does not exit in time: it is in uninterruptible I/O."""
    deadline = time.monotonic() + _REAP_TIMEOUT_SECONDS
    for orphan in orphans:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(orphan, os.WNOHANG)[0] == 0:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.002)
    return True


def _children() -> list[int]:
    own = os.getpid()
    return [pid for pid, parent in shim.parents() if parent == own] if sys.platform == "linux" else []
