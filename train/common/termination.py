"""Handles SIGTERM from Kubernetes, a scheduler or `kill`: save, then exit with 143.

The ranks agree to stop after the same step, with the communication of each program. If they cannot agree, because the
other ranks are gone or got no signal, the rank with the signal saves and exits alone.
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
# Time for the ranks to agree. Kubernetes grants 30 s in total, which must include writing the checkpoint.
AGREE_WITHIN_SECONDS = 5.0


class Termination:
    """Records SIGTERM. Create it after the framework is initialized: TensorFlow and MPI install their own handlers."""

    def __init__(self, save_alone: Callable[[], None], agree_within: float = AGREE_WITHIN_SECONDS) -> None:
        """`save_alone` saves without communication. It runs in a thread while the main thread is stuck, or at exit if
        the program failed because other ranks ended."""
        self._last_words = save_alone
        self._agree_within = agree_within
        self._requested = threading.Event()
        self._agreed = threading.Event()
        self._alone = threading.Lock()
        # A Python handler runs when the main thread returns from C++, which never happens inside a collective that lost
        # its peers. The C handler writes to the wake-up descriptor at once.
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        threading.Thread(target=self._watch, args=(reader,), name="termination", daemon=True).start()
        atexit.register(self._at_exit)

    @property
    def requested(self) -> bool:
        """Whether this rank got SIGTERM. Other ranks may not have got it."""
        return self._requested.is_set()

    def pause(self, seconds: float) -> None:
        """Sleep until SIGTERM, at most `seconds`."""
        with waiting():
            self._requested.wait(seconds)

    def agreed(self) -> None:
        """Call when all ranks stop together: then saving has no time limit."""
        self._agreed.set()

    def exit(self) -> NoReturn:
        """Exit with the status of a program that was ended by SIGTERM."""
        sys.stdout.flush()
        sys.exit(EXIT_CODE)

    def _watch(self, reader: int) -> None:
        while os.read(reader, 1)[0] != signal.SIGTERM:
            pass
        self._requested.set()
        if not self._agreed.wait(self._agree_within):
            self._save_and_exit()

    def _at_exit(self) -> None:
        """Saves if the program failed after SIGTERM: the exit of another rank ends the collective that this one waits
        in, before or during `save_alone`."""
        failed = hasattr(sys, "last_value")
        if self._alone.locked() or (failed and self.requested and not self._agreed.is_set()):
            self._save_and_exit()

    def _save_and_exit(self) -> NoReturn:
        """Ends the process. A second thread waits for the first."""
        with self._alone:
            try:
                self._last_words()
            finally:
                finish()
                os._exit(EXIT_CODE)  # SystemExit would have no effect: the main thread may be stuck
