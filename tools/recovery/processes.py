"""Finds the processes of one `allranks run` by their environment: the ranks, and each pod's first process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Found:
    """One process."""

    pid: int
    parent: int
    environ: frozenset[str]
    argv: tuple[str, ...]

    @property
    def is_rank(self) -> bool:
        """Whether this is the training program, not a torchrun or mpirun with the program among its arguments."""
        words = (word for word in self.argv[1:] if not word.startswith("-") and word != "mpi4py")  # -m mpi4py
        script = next(words, "")
        return Path(script).name == "inject.py"


def processes(marker: str) -> list[Found]:
    """All processes with `marker` (`NAME=value`) in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environ = _words(entry / "environ")
            if marker in environ:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                found.append(Found(int(entry.name), parent, frozenset(environ), _words(entry / "cmdline")))
        except OSError:
            continue  # it ended meanwhile
    return found


def ranks(marker: str, *variables: str) -> list[int]:
    """PIDs of the training processes that also have these variables."""
    return [one.pid for one in processes(marker) if one.is_rank and one.environ >= set(variables)]


def first_processes(marker: str, *variables: str) -> list[int]:
    """PIDs of the pods' first processes, to which a kubelet sends SIGTERM."""
    found = processes(marker)
    ours = {one.pid for one in found}
    return [one.pid for one in found if one.parent not in ours and one.environ >= set(variables)]


def _words(path: Path) -> tuple[str, ...]:
    return tuple(path.read_bytes().decode(errors="replace").rstrip("\0").split("\0"))
