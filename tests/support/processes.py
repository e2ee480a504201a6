"""Server processes of tests: their output goes to a file, and they end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# With threads, no Python code may run between fork and exec. So a small interpreter does this and becomes the server.
_SCRIPT = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: a killed test run leaves no process
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
_DIES_WITH_PARENT = (sys.executable, "-S", "-c", _SCRIPT)


def start(
    program: Path, *arguments: str, log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a server in the folder of its log. The calling thread must live as long as the server."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [*_DIES_WITH_PARENT, str(os.getpid()), str(program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A new session: Ctrl-C must reach only pytest, which stops servers in the right order.
            start_new_session=True,
            cwd=log.parent,
            env={**os.environ, **environment} if environment else None,
        )


def end(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
    """Sends the signal, and kills a server that does not end."""
    process.send_signal(how)
    try:
        process.wait(timeout=3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=10)


def end_of(log: Path, lines: int = 30) -> str:
    """The last lines of a log."""
    try:
        text = log.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
