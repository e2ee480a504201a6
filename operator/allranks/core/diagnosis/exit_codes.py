"""The meaning of exit codes. A container runtime reports 128 + n both for signal n and for `exit 128+n`."""

from __future__ import annotations

# Lists of words read better without quotes.
# ruff: noqa: SIM905
_NAMES = (
    "SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV SIGUSR2 SIGPIPE SIGALRM "
    "SIGTERM SIGSTKFLT SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGXCPU SIGXFSZ SIGVTALRM SIGPROF "
    "SIGWINCH SIGIO SIGPWR SIGSYS"
).split()
"""The signals of Linux on x86 and ARM, from number 1: ranks of a cluster run there, wherever this code runs."""
FAULTS = frozenset(_NAMES.index(name) + 1 for name in "SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGSEGV SIGSYS".split())
"""Signals that a process causes by what it does itself."""
SIGKILL = 9
SIGTERM = 15


def possible_signal(exit_code: int | None, signal: int | None) -> int | None:
    """Return the signal that ended the program (`signal`), or the signal for which its exit code may stand."""
    if signal is not None or exit_code is None:
        return signal
    return exit_code - 128 if 128 < exit_code <= 128 + 64 else None


def signal_name(number: int) -> str:
    """Return `SIGKILL`, or `signal 40` for one without a name."""
    return _NAMES[number - 1] if 1 <= number <= len(_NAMES) else f"signal {number}"


def describe(exit_code: int) -> str:
    """Return the exit code as text: `exit code 1`, `exit code 139, the code of SIGSEGV`.

    Other codes above 128 rarely stand for a signal: the first process of a container ignores most signals, and programs
    ask for a restart with 138.
    """
    number = possible_signal(exit_code, None)
    if number in {SIGKILL, *FAULTS} and number:
        return f"exit code {exit_code}, the code of {signal_name(number)}"
    if (child := 256 - exit_code) in {SIGKILL, *FAULTS}:
        often = ", often for memory" if child == SIGKILL else ""
        return f"exit code {exit_code}, -{child} of a launcher whose child was ended by {signal_name(child)}{often}"
    return f"exit code {exit_code}"
