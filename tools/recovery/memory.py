"""A memory cgroup for one `allranks run`, in which the kernel kills a rank that allocates too much. Needs root."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

ROOM = 192 << 20
"""Bytes left for the rank that allocates."""
_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def missing() -> str:
    """Why no cgroup can be created on this machine; empty if it can."""
    if os.geteuid() != 0:
        return "only root can create a memory cgroup"
    v1, v2 = (_V1 / "memory.limit_in_bytes").exists(), (_V2 / "cgroup.subtree_control").exists()
    if not v1 and not (v2 and "memory" in (_V2 / "cgroup.subtree_control").read_text()):
        return "no memory cgroup is mounted"
    return "" if os.access(_V1 if v1 else _V2, os.W_OK) else "the cgroups are mounted read-only"


class Memory:
    """The cgroup; without a limit until `press`."""

    def __init__(self, name: str) -> None:
        self._v1 = (_V1 / "memory.limit_in_bytes").exists()
        self._folder = (_V1 if self._v1 else _V2) / name
        self._folder.mkdir()

    def enter(self, command: list[str]) -> list[str]:
        """Wraps the command so that it starts inside the cgroup."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._folder / "cgroup.procs"), *command]

    def press(self) -> None:
        """Limits memory to the current usage plus `ROOM`."""
        used = int(self._file("memory.usage_in_bytes", "memory.current").read_text())
        self._limit(str(used + ROOM))

    def lift(self) -> None:
        self._limit("-1" if self._v1 else "max")

    @property
    def kills(self) -> int:
        """Number of OOM kills in the cgroup."""
        found = re.search(r"^oom_kill (\d+)$", self._file("memory.oom_control", "memory.events").read_text(), re.M)
        return int(found[1]) if found else 0

    def remove(self) -> None:
        """Removes the cgroup; the kernel may notice the end of its processes only after a moment."""
        deadline = time.monotonic() + 10
        while True:
            try:
                return self._folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _limit(self, text: str) -> None:
        self._file("memory.limit_in_bytes", "memory.max").write_text(text)

    def _file(self, v1: str, v2: str) -> Path:
        return self._folder / (v1 if self._v1 else v2)
