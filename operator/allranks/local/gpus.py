"""Assigns this machine's GPUs to pods as a device plugin does. A pod that requests no GPU sees none."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"


def list_gpus(environ: Mapping[str, str]) -> list[str]:
    """Return the NVIDIA GPUs as CUDA_VISIBLE_DEVICES takes them: indices, or UUIDs for MIG instances.

    The user's own CUDA_VISIBLE_DEVICES restricts them.
    """
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return []
    try:
        answer = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return narrow(parse(answer.stdout), environ.get(VISIBLE)) if answer.returncode == 0 else []


def parse(listing: str) -> list[tuple[str, str]]:
    """Return (index, UUID) of each GPU and MIG instance in the output of `nvidia-smi -L`."""
    rows: list[tuple[str, str]] = []
    whole: str | None = None
    for line in listing.splitlines():
        if gpu := re.match(r"GPU (\d+):.*\(UUID: (GPU-[^)]+)\)", line):
            whole = gpu[1]
            rows.append((gpu[1], gpu[2]))
        elif mig := re.match(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)", line):
            # CUDA lists a GPU in MIG mode by its instances only.
            if rows and rows[-1][0] == whole:
                rows.pop()
            rows.append(("", mig[1]))
    return rows


def narrow(gpus: Sequence[tuple[str, str]], visible: str | None) -> list[str]:
    """Return the GPUs listed in `visible` (CUDA_VISIBLE_DEVICES), in its order and spelling; all of them for None."""
    if visible is None:
        return [index or uuid for index, uuid in gpus]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return [name for name in names if any(name == index or uuid.startswith(name) for index, uuid in gpus)]


class Gpus:
    """The assignment of GPUs to pods."""

    def __init__(self, gpus: Sequence[str], environ: Mapping[str, str]) -> None:
        # CUDA uses nvidia-smi's indices only in this order. The user's own indices keep the user's order.
        self._order = {} if VISIBLE in environ else {ORDER: "PCI_BUS_ID"}
        self.count = len(gpus)
        self.enabled = True
        """False if the job requests more GPUs than there are: then all of its ranks run on the CPU."""
        self._free = list(gpus)
        self._held: dict[str, list[str]] = {}
        self._freed = asyncio.Event()

    async def acquire(self, pod: str, count: int) -> Mapping[str, str]:
        """Wait for `count` free GPUs; return the variables that make them visible to the pod."""
        if not self.count:
            return {}
        if not self.enabled:
            count = 0
        while len(self._free) < count:
            self._freed.clear()
            await self._freed.wait()
        self._held[pod], self._free = self._free[:count], self._free[count:]
        return {VISIBLE: ",".join(self._held[pod]), **self._order}

    def release(self, pod: str) -> None:
        self._free += self._held.pop(pod, [])
        self._freed.set()
