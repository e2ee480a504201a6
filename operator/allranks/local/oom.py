"""Whom the kernel has killed for memory: a kubelet asks the container's cgroup, we have our own."""

from __future__ import annotations

import contextlib
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def kills(own: Path = _OWN, cgroups: Path = _CGROUPS) -> int:
    """How many processes of our cgroup the kernel has killed for memory so far; 0 where it does not say.

    Both versions of cgroups count them (cgroup-v1/memory.rst, cgroup-v2.rst of the kernel's documentation).
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
