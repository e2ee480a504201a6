"""Detects OOM kills from the `oom_kill` counter of this process's cgroup, which all pods share."""

from __future__ import annotations

import contextlib
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def count_kills(own: Path = _OWN, cgroups: Path = _CGROUPS) -> int:
    """Number of OOM kills in this process's cgroup so far; 0 if the kernel provides no counter.

    Both versions of cgroups have one (cgroup-v1/memory.rst, cgroup-v2.rst of the kernel's documentation).
    """
    with contextlib.suppress(OSError, ValueError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "memory":
                return _count(cgroups / "memory" / path.lstrip("/") / "memory.oom_control")
            if controllers == "":
                return _count(cgroups / path.lstrip("/") / "memory.events")
    return 0


def _count(file: Path) -> int:
    counts = dict(line.split() for line in file.read_text().splitlines())
    return int(counts.get("oom_kill", 0))
