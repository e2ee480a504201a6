"""Assigns CPU cores. In a cluster the API server runs on other machines; on one machine it shares its cores with the
measured process, unless they are separated."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_of_server: set[int] = set()


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Gives half of the cores to API server and etcd, the others to this process and its children. Needs two cores."""
    every = os.sched_getaffinity(0)
    whole = sorted({tuple(sorted(_siblings(cpu) & every)) for cpu in every})
    if len(whole) < 2:
        raise ValueError("at least two cores are required")
    _of_server.update(cpu for siblings in whole[: len(whole) // 2] for cpu in siblings)
    os.sched_setaffinity(0, every - _of_server)
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)
        _of_server.clear()


def _siblings(cpu: int) -> set[int]:
    """The hardware threads of its core, including itself; the file has `0-1` or `0,4`."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return {cpu}
    ends = [[int(end) for end in part.split("-")] for part in text.strip().split(",")]
    return {sibling for part in ends for sibling in range(part[0], part[-1] + 1)}


def give_to_server(pids: Iterable[int]) -> None:
    """Moves all threads of these processes to the server's cores; new threads inherit the affinity."""
    if not _of_server:
        return
    for pid in pids:
        moved: set[int] = set()
        while threads := {int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()} - moved:
            for thread in threads:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(thread, _of_server)
            moved |= threads
