"""The descendants of this process: finds them, ends them whatever they did to be independent, and removes what their
libraries left in /dev/shm.

Needs only the standard library, and imports little of it: each container of a local run starts with it.
"""

# ruff: noqa: PTH108, PTH115, PTH208, SIM105

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # importing typing takes longer than this file
if TYPE_CHECKING:
    from collections.abc import Collection

SHARED_MEMORY = "/dev/shm"
_PR_SET_CHILD_SUBREAPER = 36
_LEFT = r"torch_\d+_|nccl-|psm2?_|sem\.(mp|loky)-|pym-\d+-"
"""Names that libraries give their files in /dev/shm: PyTorch, NCCL, PSM and Python's shared memory, Python's
semaphores (also of joblib), and the memory of `multiprocessing.Array`."""
_OF_THE_HOST = "ipc:[4026531839]"
"""The first IPC namespace of a machine (PROC_IPC_INIT_INO of Linux)."""


def adopt_orphans(adopt: bool = True) -> bool:
    """Become the parent of each descendant whose parent ends, or no longer. Return False if the system cannot do
    this."""
    return os.getpid() == 1 or prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def prctl(option: int, value: int) -> bool:
    try:
        import ctypes

        return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0)) == 0
    except (ImportError, OSError, AttributeError):
        return False


def kill_descendants(spared: Collection[int] = ()) -> bool:
    """Send SIGKILL to all descendants except those `spared`. Return whether there was none.

    They are gone once this returns True after their parent has reaped what ended: then the kernel has given back what
    they held, such as the memory of GPUs.
    """
    pids = descendants() - set(spared)
    for pid in pids:
        send(pid, signal.SIGKILL)
    return not pids


def send(pid: int, number: int) -> None:
    """Send a signal to a process, if it exists and this one may."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def descendants() -> set[int]:
    """Return all processes below this one, also those that have ended and were not reaped."""
    return below(os.getpid(), parents())


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


def parents() -> dict[int, int]:
    """Return the parent of each process, also of those that have ended and were not reaped."""
    if os.path.isdir("/proc/self"):  # noqa: PTH112
        return {pid: stat[1] for pid in processes() if (stat := stat_of(pid)) is not None}
    with os.popen("ps -A -o pid= -o ppid=") as listing:
        return {int(pid): int(parent) for pid, parent in map(str.split, listing)}


def processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def stat_of(pid: int) -> tuple[str, int] | None:
    """Return the state of a process, such as `R` or `Z`, and its parent; None if it is gone, and without /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
        return state.decode(), int(parent)
    except (OSError, ValueError):
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
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError):
        pass
    return False


def command_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return "?"
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(words).strip()[:100])


def clear_shared_memory(since: float, folder: str | os.PathLike[str] = SHARED_MEMORY) -> list[str]:
    """Remove the files that libraries of processes that have ended left there. Return their names.

    Only files with the names of these libraries, of this user, and not older than `since` (seconds since the epoch).
    Nothing is removed in the IPC namespace of the machine, which other pods share.
    """
    import re

    removed = []
    try:
        if os.readlink("/proc/self/ns/ipc") == _OF_THE_HOST:
            return []
        entries = list(os.scandir(folder))
    except OSError:
        return []
    for entry in entries:
        try:
            stat = entry.stat(follow_symlinks=False)
            ours = entry.is_file(follow_symlinks=False) and stat.st_uid == os.geteuid() and stat.st_mtime >= since
            if ours and re.match(_LEFT, entry.name):
                os.unlink(entry.path)
                removed.append(entry.name)
        except OSError:
            pass
    return removed
