"""SIGTERM, which is how Kubernetes, a scheduler or `kill` ask a rank to end: save, then exit with 143.

The ranks agree to stop after the same step, as each program does with the communication that it has. Where they cannot,
because the other ranks are gone or know nothing of it, the rank that was told saves without them and exits by itself.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from common.report import finish, waiting

EXIT_CODE = 128 + signal.SIGTERM
# For the ranks to agree. Kubernetes grants 30 s in all, and the checkpoint has to be written in them too.
AGREE_WITHIN_SECONDS = 5.0


class Termination:
    """Knows whether this process was told to end. Make it after the framework is set up: TensorFlow and MPI install
    handlers of their own."""

    def __init__(self, last_words: Callable[[], None], agree_within: float = AGREE_WITHIN_SECONDS) -> None:
        """`last_words` saves what needs no communication; it runs in a thread while the main one is stuck, or at the
        end of a program that failed because the other ranks went."""
        self._last_words = last_words
        self._agree_within = agree_within
        self._requested = threading.Event()
        self._agreed = threading.Event()
        self._alone = threading.Lock()
        # A Python handler waits for the main thread to return from C++, which it never does while it is inside a
        # collective that lost its peers. The wake-up descriptor is written to by the C handler, at once.
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        threading.Thread(target=self._watch, args=(reader,), name="termination", daemon=True).start()
        atexit.register(self._at_exit)

    @property
    def requested(self) -> bool:
        """Whether this rank got SIGTERM; other ranks may not know yet."""
        return self._requested.is_set()

    def pause(self, seconds: float) -> None:
        """Sleep, but no longer than until SIGTERM."""
        with waiting():
            self._requested.wait(seconds)

    def agreed(self) -> None:
        """All ranks stop here together: they may take the time that they need for saving."""
        self._agreed.set()

    def exit(self) -> NoReturn:
        """End as a terminated program does."""
        sys.stdout.flush()
        sys.exit(EXIT_CODE)

    def _watch(self, reader: int) -> None:
        while os.read(reader, 1)[0] != signal.SIGTERM:
            pass
        self._requested.set()
        if not self._agreed.wait(self._agree_within):
            self._end_alone()

    def _at_exit(self) -> None:
        """The rank that gives up first ends the collective that another one waits in: that one fails, a moment before
        or while it says its last words."""
        failed = hasattr(sys, "last_value")
        if self._alone.locked() or (failed and self.requested and not self._agreed.is_set()):
            self._end_alone()

    def _end_alone(self) -> NoReturn:
        """For good: of two threads the second waits until the first has ended the process."""
        with self._alone:
            try:
                self._last_words()
            finally:
                finish()
                os._exit(EXIT_CODE)  # the main thread may be stuck, so there is nobody to raise SystemExit in
