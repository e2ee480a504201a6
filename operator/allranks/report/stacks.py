"""The stacks of all threads, on stderr: when the operator asks for them, and when Python itself is stuck.

Both go around the interpreter (`faulthandler` writes by itself), so they work while the main thread hangs in a
collective. With ALLRANKS_HANG_SECONDS, a thread in the background sets a timer of `faulthandler` anew all the time: it
goes off only when native code holds the interpreter's lock, so that no thread of Python can run any more. That is
before the operator sees a hang of that many seconds, and ends the pod.
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
    """The stacks of this process, after a line that says whose they are and what asked for them."""
    write(f"allranks: {who} ({pod()}): stacks, asked for because {why}\n")
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        faulthandler.dump_traceback(file=2, all_threads=True)
    with contextlib.suppress(Exception):
        write(collectives())


def collectives() -> str:
    """NCCL's collectives that are not done, by PyTorch's flight recorder; nothing where there is none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_initialized() or torch.distributed.get_backend() != "nccl":
        return ""
    said = torch._C._distributed_c10d._dump_nccl_trace_json(includeCollectives=True, onlyActive=True)
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return f"allranks: NCCL collectives that are not done: {text[:MOST_LETTERS]}\n"


def pod() -> str:
    return f"pod {os.environ.get('HOSTNAME') or socket.gethostname()}"


SOONER = 0.75
MOST_LETTERS = 8192


class Watchdog:
    """Sets the timer anew, thrice in the time after which it would go off."""

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
    return Watchdog(after * SOONER) if 0 < after < 1e6 else None
