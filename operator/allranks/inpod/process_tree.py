"""The descendants of this process: finds them, ends them whatever they did to be independent, and removes what their
libraries left in /dev/shm. Needs only the standard library, and /proc.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Collection
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
_PR_SET_CHILD_SUBREAPER = 36
_LEFT = re.compile(r"torch_\d+_|nccl-|psm2?_|sem\.(mp|loky)-|pym-\d+-")
"""Names that libraries give their files in /dev/shm: PyTorch, NCCL, PSM and Python's shared memory, Python's
semaphores (also of joblib), and the memory of `multiprocessing.Array`."""
_OF_THE_HOST = "ipc:[4026531839]"
"""The first IPC namespace of a machine (PROC_IPC_INIT_INO of Linux)."""


def adopt_orphans() -> bool:
    """Become the parent of each descendant whose parent ends. Return False if the system cannot do this."""
    if os.getpid() == 1:
        return True
    try:
        import ctypes

        return int(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0
    except (ImportError, OSError, AttributeError):
        return False


def kill_descendants(spared: Collection[int] = ()) -> bool:
    """Send SIGKILL to all descendants except those `spared`. Return whether there was none.

    They are gone once this returns True after their parent has reaped what ended: then the kernel has given back what
    they held, such as the memory of GPUs.
    """
    pids = descendants() - set(spared)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return not pids


def descendants() -> set[int]:
    """Return all processes below this one, also those that have ended and were not reaped."""
    return below(os.getpid(), {pid: stat[1] for pid in processes() if (stat := stat_of(pid)) is not None})


def below(ancestor: int, parents: dict[int, int]) -> set[int]:
    """Return the processes below `ancestor`. `parents`: process -> its parent."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    out: set[int] = set()
    waiting = [ancestor]
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in out:
                out.add(pid)
                waiting.append(pid)
    return out


def processes() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return []


def stat_of(pid: int) -> tuple[str, int] | None:
    """Return the state of a process, such as `R` or `Z`, and its parent; None if it is gone, and without /proc."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        return state, int(parent)
    return None


def parent_of(pid: int) -> int | None:
    """Return the parent of a process; None if the process has ended, and without /proc."""
    stat = stat_of(pid)
    return stat[1] if stat is not None and stat[0] != "Z" else None


def pythons_below(ancestor: int, number: int) -> list[tuple[int, str]]:
    """Return (pid, command) of all descendants that have a handler for a signal."""
    parents = {pid: parent for pid in processes() if (parent := parent_of(pid)) is not None}
    return [(pid, command_of(pid)) for pid in sorted(below(ancestor, parents)) if catches(pid, number)]


def catches(pid: int, number: int) -> bool:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        return "".join(letter if letter.isprintable() else "?" for letter in " ".join(words).strip()[:100])
    return "?"


def clear_shared_memory(since: float, folder: Path = SHARED_MEMORY) -> list[str]:
    """Remove the files that libraries of processes that have ended left there. Return their names.

    Only files with the names of these libraries, of this user, and not older than `since` (seconds since the epoch).
    Nothing is removed in the IPC namespace of the machine, which other pods share.
    """
    removed = []
    with contextlib.suppress(OSError):
        if str(Path("/proc/self/ns/ipc").readlink()) == _OF_THE_HOST:
            return []
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):
                stat = entry.stat(follow_symlinks=False)
                ours = entry.is_file(follow_symlinks=False) and stat.st_uid == os.geteuid() and stat.st_mtime >= since
                if ours and _LEFT.match(entry.name):
                    os.unlink(entry.path)  # noqa: PTH108
                    removed.append(entry.name)
    return removed
