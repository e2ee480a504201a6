"""Options of launchers in a job's command that contradict what allranks sets in the environment of its pods."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

Note = tuple[int, str]
"""(index of the argument, a sentence with the cure)"""


def is_program(argument: str, *names: str) -> bool:
    """Whether an argument is one of these programs, with or without a path."""
    return argument.rpartition("/")[2] in names


def options(arguments: Sequence[str], start: int, flags: Collection[str]) -> Iterator[tuple[int, str, str]]:
    """(index, name without dashes, value) of the options from `start` up to the program that the launcher starts.

    Underscores in names become dashes. `flags` are the options without a value.
    """
    index = start
    while index < len(arguments) and arguments[index].startswith("-") and arguments[index] != "--":
        name, equals, value = arguments[index].partition("=")
        plain = name.lstrip("-").replace("_", "-")
        separate = not equals and plain not in flags and index + 1 < len(arguments)
        yield index, plain, arguments[index + 1] if separate else value
        index += 2 if separate else 1


_TORCHRUN_FLAGS = frozenset({"standalone", "m", "module", "no-python", "run-path", "h", "help"})
_TORCHRUN_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch"})
_RENDEZVOUS = frozenset(
    {"nnodes", "node-rank", "master-addr", "master-port", "rdzv-backend", "rdzv-endpoint", "rdzv-id"}
)


def torchrun_notes(arguments: Sequence[str]) -> list[Note]:
    """Options by which a user connects nodes by hand. A value that refers to a variable may be that of allranks."""
    start = _after_torchrun(arguments)
    if start is None:
        return []
    notes = []
    for index, name, value in options(arguments, start, _TORCHRUN_FLAGS):
        written = arguments[index].partition("=")[0]
        if name == "standalone":
            notes.append((index, f"each pod would train alone; allranks connects the ranks: remove {written}"))
        elif name in _RENDEZVOUS and "$" not in value:
            notes.append((index, f"allranks sets it for each rank, and this value replaces it: remove {written}"))
    return notes


def _after_torchrun(arguments: Sequence[str]) -> int | None:
    """Index of the first argument of torchrun; None if the command does not start it."""
    if arguments and is_program(arguments[0], "torchrun"):
        return 1
    if not arguments or not re.fullmatch(r"python[0-9.]*", arguments[0].rpartition("/")[2]):
        return None
    for index, argument in enumerate(arguments[1:], 1):
        if argument == "-m" and index + 1 < len(arguments) and arguments[index + 1] in _TORCHRUN_MODULES:
            return index + 2
        if argument == "-m" or not argument.startswith("-"):
            return None
    return None


_MPI_HOSTS = frozenset({"H", "host", "hostfile", "default-hostfile", "machinefile"})


def mpi_notes(arguments: Sequence[str], own_launcher: bool) -> list[Note]:
    """`own_launcher`: the command is the launcher's own, which starts the ranks itself, on the hosts that allranks
    writes. Any other command is the program of a rank."""
    if not arguments or not is_program(arguments[0], "horovodrun", "mpirun", "mpiexec"):
        return []
    if not own_launcher:
        program = arguments[0].rpartition("/")[2]
        return [(0, f"allranks starts the ranks of Horovod: remove {program} and its options, and keep the program")]
    hosts = [
        i for i, argument in enumerate(arguments) if argument.startswith("-") and argument.lstrip("-") in _MPI_HOSTS
    ]
    return [(i, f"allranks writes the hostfile of mpirun: remove {arguments[i]} and its value") for i in hosts]
