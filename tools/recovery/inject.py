"""Runs an unchanged training program, and injects a fault into it when a signal arrives.

`python inject.py PROGRAM [ARG...]` replaces `python PROGRAM [ARG...]` and has no effect until then. If RECOVERY_RAISE
names this pod (`worker-0`), the exception is raised before the program's first line.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

RAISE = signal.SIGRTMIN + 1  # torchrun, mpirun and the programs use SIGUSR1 and the like
ALLOCATE = signal.SIGRTMIN + 2
EXIT_138 = signal.SIGRTMIN + 3
EXCEPTION = "raised on purpose, by tools/recovery"
CHUNK = 16 << 20


def main() -> None:
    signal.signal(RAISE, fail)
    signal.signal(ALLOCATE, allocate)
    signal.signal(EXIT_138, leave)
    if os.environ.get("RECOVERY_RAISE") == f"{os.environ.get('ALLRANKS_ROLE')}-{os.environ.get('ALLRANKS_INDEX')}":
        fail()
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)  # as Python does for a script
    runpy.run_path(sys.argv[0], run_name="__main__")


def fail(number: int = 0, frame: FrameType | None = None) -> NoReturn:
    raise RuntimeError(EXCEPTION)  # Horovod re-raises exceptions from inside its own code as its own type


def allocate(number: int, frame: FrameType | None) -> NoReturn:
    """Allocates until the kernel kills the process."""
    held = []
    while True:
        held.append(b"x" * CHUNK)  # not zeros: their pages would not be allocated


def leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.stdout.flush()
    os._exit(138)


if __name__ == "__main__":
    main()
