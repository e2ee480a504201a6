"""What an exit code stands for. A container runtime reports 128 + n both for signal n and for `exit 128+n`."""

from __future__ import annotations

from signal import Signals

FAULTS = frozenset({4, 5, 6, 7, 8, 11, 31})
"""Signals that a process causes by what it does itself: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS. The
numbers are those of Linux, which runs the ranks of a cluster, whatever system this runs on."""
SIGKILL = 9
SIGTERM = 15


def possible_signal(exit_code: int | None, signal: int | None) -> int | None:
    """The signal that ended the program (`signal`), or that its exit code may stand for."""
    if signal is not None or exit_code is None:
        return signal
    return exit_code - 128 if 128 < exit_code <= 128 + 64 else None


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 40` for one without a name."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe(exit_code: int) -> str:
    """`exit code 1`, `exit code 139, the code of SIGSEGV`. Other codes above 128 are rarely those of a signal: the first
    process of a container ignores most signals, and programs ask for a restart with 138."""
    number = possible_signal(exit_code, None)
    stands_for = f", the code of {signal_name(number)}" if number in {SIGKILL, *FAULTS} and number else ""
    return f"exit code {exit_code}{stands_for}"
