"""Dumps the stacks of all threads to stderr: when the operator requests it, and when native code holds the GIL.

Both use `faulthandler`, which needs no interpreter, so they work while the main thread hangs in a collective. With
ALLRANKS_HANG_SECONDS a background thread keeps resetting a timer of `faulthandler`. The timer fires only if native code
holds the GIL so that no Python thread can run, and before the operator detects a hang of that many seconds and ends the
pod.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
import sys
import threading

from allranks.report.warn import write


def dump(who: str, why: str) -> None:
    """Writes a line with the process and the reason, then the stacks of this process."""
    write(f"allranks: {who} ({pod()}): stacks, asked for because {why}\n")
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        faulthandler.dump_traceback(file=2, all_threads=True)
    with contextlib.suppress(Exception):
        write(collectives())


def collectives() -> str:
    """Unfinished NCCL collectives from PyTorch's flight recorder; empty without NCCL."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_initialized() or torch.distributed.get_backend() != "nccl":
        return ""
    dump = torch._C._distributed_c10d._dump_nccl_trace_json(includeCollectives=True, onlyActive=True)
    text = dump.decode("utf-8", "replace") if isinstance(dump, bytes) else str(dump)
    return f"allranks: unfinished NCCL collectives: {text[:MAX_CHARACTERS]}\n"


def pod() -> str:
    return f"pod {os.environ.get('HOSTNAME') or socket.gethostname()}"


HANG_FRACTION = 0.75
"""The timer fires after this fraction of the hang timeout, before the operator ends the pod."""
MAX_CHARACTERS = 8192


class Watchdog:
    """Resets the timer three times per timeout."""

    def __init__(self, after: float) -> None:
        self._after = after
        self._over = threading.Event()
        threading.Thread(target=self._run, name="allranks-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                faulthandler.dump_traceback_later(self._after, exit=False, file=2)
            except (OSError, RuntimeError, ValueError, OverflowError):
                return
            self._over.wait(self._after / 3)
        faulthandler.cancel_dump_traceback_later()


def watchdog_by_environment() -> Watchdog | None:
    try:
        after = float(os.environ.get("ALLRANKS_HANG_SECONDS") or 0)
    except ValueError:
        return None
    return Watchdog(after * HANG_FRACTION) if 0 < after < 1e6 else None
