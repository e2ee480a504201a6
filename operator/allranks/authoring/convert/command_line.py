"""Removes the options from a launcher's command line that allranks sets itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from allranks.frameworks.command_line import Option, Start, edited, script_of, starts
from allranks.frameworks.pytorch import RENDEZVOUS_OPTIONS

_TORCHRUN = RENDEZVOUS_OPTIONS | {"rdzv-conf", "standalone", "max-restarts", "nproc-per-node"}


@dataclass
class Torchrun:
    """A command line without the options that connect nodes."""

    command: list[str]
    removed: list[str] = field(default_factory=list)
    """The removed options, as they were written."""
    processes: str | None = None
    """The value of --nproc-per-node."""
    restarts: str | None = None
    """The value of --max-restarts."""
    used: bool = False
    """Whether the command starts torchrun."""
    undetermined_processes: str = ""
    """The option --nproc-per-node, if its value is determined in the pod. It stays in the command."""


def torchrun(command: Sequence[str]) -> Torchrun:
    """Remove the options of torchrun, also in the script of a shell: `bash -c "torchrun --nnodes=2 train.py"`."""
    launchers = [start for start in starts(command) if start.kind == "torchrun"]
    options = [option for start in launchers for option in start.options if option.name in _TORCHRUN]
    unknown = next((option for option in options if _is_determined_in_the_pod(option)), None)
    options = [option for option in options if option is not unknown]
    values = {option.name: option.value for option in options if not option.variable}
    return Torchrun(
        edited(command, {word: "" for option in options for word in option.words}),
        [str(option) for option in options],
        values.get("nproc-per-node"),
        values.get("max-restarts"),
        bool(launchers) or _mentions_torchrun(command),
        str(unknown or ""),
    )


_OF_THE_POD = re.compile(r"NPROC_PER_NODE|nvidia-smi")
"""The variable with the number of processes of a pod, and the program that counts its GPUs."""


def _is_determined_in_the_pod(option: Option) -> bool:
    """Return whether an option is a number of processes that is determined where the command runs."""
    return option.name == "nproc-per-node" and option.variable and not _OF_THE_POD.search(option.value)


def _mentions_torchrun(command: Sequence[str]) -> bool:
    """Return whether a script that cannot be read starts torchrun."""
    script = script_of(command)
    pattern = r"\btorchrun\b|torch\.distributed\.(run|launch)"
    return script is not None and re.search(pattern, command[script]) is not None


def starts_ranks(command: Sequence[str]) -> bool:
    """Return whether the command starts mpirun or horovodrun."""
    return any(start.kind in ("mpirun", "horovodrun") for start in starts(command))


def direct(command: Sequence[str], *kinds: str) -> Start | None:
    """Return the launcher that a command begins with, if it is one of `kinds`."""
    start = next((start for start in starts(command) if start.kind in kinds), None)
    return start if start and start.head[0].argument == 0 and start.head[0].end is None else None


def of_text(text: str) -> list[str]:
    """Return the arguments of a command that is written as one text: through a shell if it uses syntax of a shell."""
    plain = text.strip()
    if not re.search(r"[$`|&;<>(){}*?~\n]", plain):
        try:
            return shlex.split(plain)
        except ValueError:
            pass
    return ["/bin/sh", "-c", plain]
