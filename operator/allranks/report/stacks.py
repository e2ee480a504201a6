"""Dumps the stacks of all threads to stderr: when the operator requests it, and when native code holds the GIL.

On request a background thread prints them, which works while the main thread hangs in a collective. With
ALLRANKS_HANG_SECONDS a background thread keeps resetting a timer of `faulthandler`. The timer fires only if native code
holds the GIL so that no Python thread can run, and before the operator detects a hang of that many seconds and ends the
pod.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from allranks.report.position import position
from allranks.report.warn import write


def dump(who: str, reason: str, step: int | None = None, idle: float | None = None) -> None:
    """Write a line with the process and the reason, then the stacks of this process, and its position as JSON.

    All in one write: a reader of the log may look at any time. `idle`: seconds since the last step.
    """
    head = f"allranks: {who} ({pod()}): stacks, asked for because {reason}\n"
    try:
        where = json.dumps({**position(), "step": step, "idle": idle})
        write(head + "".join(threads_of_program()) + f"allranks: position {where}\n")
    except Exception:
        write(head)
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            faulthandler.dump_traceback(file=2, all_threads=True)
    with contextlib.suppress(Exception):
        write(collectives())


def threads_of_program() -> Iterator[str]:
    """Yield the stack of each thread, the main thread first, without the threads of this library."""
    # Not threading.enumerate(), which takes a lock: a hung thread may hold it.
    names = {ident: thread.name for ident, thread in list(threading._active.items())}  # type: ignore[attr-defined]
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    shown = [(ident, frame) for ident, frame in frames if not names.get(ident, "").startswith(OWN_THREADS)]
    for ident, frame in shown[:MOST_THREADS]:
        yield f"Thread {names.get(ident, hex(ident))} (most recent call first):\n"
        yield from lines_of(frame)
    if len(shown) > MOST_THREADS:
        yield f"... and {len(shown) - MOST_THREADS} more threads\n"


def lines_of(frame: FrameType | None) -> Iterator[str]:
    for _ in range(MOST_FRAMES):
        if frame is None:
            return
        yield f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}\n'
        frame = frame.f_back
    yield "  ...\n"


def collectives() -> str:
    """Return unfinished NCCL collectives from PyTorch's flight recorder; empty without NCCL."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_initialized() or torch.distributed.get_backend() != "nccl":
        return ""
    dump = torch._C._distributed_c10d._dump_nccl_trace_json(includeCollectives=True, onlyActive=True)
    text = dump.decode("utf-8", "replace") if isinstance(dump, bytes) else str(dump)
    return f"allranks: unfinished NCCL collectives: {text[:MAX_CHARACTERS]}\n"


def pod() -> str:
    """Return `pod NAME`. A local run has no pod names: `pod worker-0`."""
    host = os.environ.get("HOSTNAME") or socket.gethostname()
    role, index = os.environ.get("ALLRANKS_ROLE"), os.environ.get("ALLRANKS_INDEX")
    replica = f"{role}-{index}"
    return f"pod {host if not (role and index) or replica in host else replica}"


OWN_THREADS = "allranks-"
MOST_THREADS = MOST_FRAMES = 100
HANG_FRACTION = 0.75
"""The timer fires after this fraction of the hang timeout, before the operator ends the pod."""
MAX_CHARACTERS = 8192


class Watchdog:
    """Resets the timer three times per timeout."""

    def __init__(self, after: float) -> None:
        self._after = after
        self._over = threading.Event()
        # Not first in the thread: the program may hold the GIL before the thread runs.
        if self._reset():
            threading.Thread(target=self._run, name="allranks-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        faulthandler.cancel_dump_traceback_later()

    def _reset(self) -> bool:
        try:
            faulthandler.dump_traceback_later(self._after, exit=False, file=2)
        except (OSError, RuntimeError, ValueError, OverflowError):
            return False
        return True

    def _run(self) -> None:
        while not self._over.wait(self._after / 3) and self._reset():
            pass
        faulthandler.cancel_dump_traceback_later()


def watchdog_by_environment() -> Watchdog | None:
    try:
        after = float(os.environ.get("ALLRANKS_HANG_SECONDS") or 0)
    except ValueError:
        return None
    return Watchdog(after * HANG_FRACTION) if 0 < after < 1e6 else None
