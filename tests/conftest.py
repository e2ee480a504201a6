"""Puts this directory on the import path, so that every test finds `builders`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

# Started in the background of a script, or under nohup, we would hand it on that these are ignored; a terminal's user
# is who the tests play.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

sys.path.insert(0, str(Path(__file__).parent))
