"""The last net: what a shim leaves behind when somebody kills the shim itself."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable

from allranks.local import shim

_PATIENCE_SECONDS = 1.0


class Orphans:
    """While it is entered, processes whose shim was killed become this process's children, and can be found."""

    def __enter__(self) -> Orphans:
        self._before = set(_children())
        shim.become_subreaper()
        return self

    def __exit__(self, *_: object) -> None:
        self.end(())
        if sys.platform == "linux":
            shim.prctl(shim.PR_SET_CHILD_SUBREAPER, 0)

    def end(self, shims: Iterable[int]) -> None:
        """Kills all children that are not `shims`, nor were there before, with all below them."""
        spared = self._before | set(shims)
        while orphans := set(_children()) - spared:
            for orphan in orphans:
                for pid in (*shim.descendants(orphan), orphan):
                    shim.send(pid, signal.SIGKILL)
            if not _reap(orphans):
                return


def _reap(orphans: Iterable[int]) -> bool:
    """Whether all that were killed are gone; one in uninterruptible I/O stays until that is over."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
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
