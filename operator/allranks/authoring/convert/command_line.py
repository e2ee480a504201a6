"""Remove the options from a launcher's command line that allranks sets itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from allranks.frameworks.pytorch import RENDEZVOUS_OPTIONS, torchrun_options

# --- torchrun --------------------------------------------------------------------------------------------------------

_TORCHRUN = RENDEZVOUS_OPTIONS | {"rdzv-conf", "standalone", "max-restarts", "nproc-per-node"}
_IN_SHELL = re.compile(
    r"""\s+(?:\\\n\s*)?--?(?P<name>nnodes|nproc[-_]per[-_]node|node[-_]rank|master[-_]addr|master[-_]port|rdzv[-_]\w+
    |max[-_]restarts|standalone)\b(?:(?<!standalone)(?:=|\s+(?:\\\n\s*)?)(?P<value>"[^"]*"|'[^']*'|[^\s\\]+))?""",
    re.VERBOSE,
)
_SHELLS = frozenset({"sh", "bash", "dash"})


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


def torchrun(command: Sequence[str]) -> Torchrun:
    """Remove the options of torchrun, also in the script of a shell: `bash -c "torchrun --nnodes=2 train.py"`."""
    script = _script_of(command)
    if script is not None:
        return _in_shell(command, script)
    options = list(torchrun_options(command))
    out = Torchrun(list(command), used=_starts_torchrun(command))
    remove: set[int] = set()
    for index, name, value in options:
        if name not in _TORCHRUN:
            continue
        separate = "=" not in command[index] and name != "standalone"
        remove |= {index, index + 1} if separate else {index}
        out.removed.append(" ".join(command[index : index + 2]) if separate else command[index])
        _keep(out, name, value)
    out.command = [text for index, text in enumerate(command) if index not in remove]
    return out


def _keep(out: Torchrun, name: str, value: str) -> None:
    if name == "nproc-per-node":
        out.processes = value
    elif name == "max-restarts":
        out.restarts = value


def _starts_torchrun(command: Sequence[str]) -> bool:
    program = command[0].rpartition("/")[2] if command else ""
    if program == "torchrun":
        return True
    modules = ("torch.distributed.run", "torch.distributed.launch")
    return program.startswith("python") and any(
        first == "-m" and second in modules for first, second in pairwise(command)
    )


def _script_of(command: Sequence[str]) -> int | None:
    """Return the index of a shell script that starts torchrun; None without one."""
    if not command or command[0].rpartition("/")[2] not in _SHELLS:
        return None
    place = next((n for n, text in enumerate(command) if re.fullmatch(r"-\w*c", text)), None)
    if place is None or place + 1 >= len(command):
        return None
    return place + 1 if re.search(r"\btorchrun\b|torch\.distributed\.(run|launch)", command[place + 1]) else None


def _in_shell(command: Sequence[str], place: int) -> Torchrun:
    out = Torchrun(list(command), used=True)

    def remove(match: re.Match[str]) -> str:
        out.removed.append(" ".join(match[0].replace("\\\n", " ").split()))
        value = match["value"] or ""
        _keep(out, match["name"].replace("_", "-"), value.strip("\"'"))
        return ""

    out.command[place] = _IN_SHELL.sub(remove, command[place])
    return out


# --- mpirun ----------------------------------------------------------------------------------------------------------

_MPIRUN_SETS: Mapping[str, int] = {
    **dict.fromkeys(("np", "n", "c", "H", "host", "hosts", "hostfile", "default-hostfile", "machinefile", "f"), 1),
    **dict.fromkeys(("ppn", "perhost", "npernode"), 1),
    "allow-run-as-root": 0,
}
"""Option -> number of its values, of options that allranks sets: the number of ranks, the hosts and their slots."""
_MPIRUN_USUAL = {("bind-to", "none"), ("map-by", "slot")}
"""Options with the value that mpirun has when allranks starts it."""


@dataclass
class Mpirun:
    """The program that mpirun starts, and the result of each option of mpirun."""

    program: list[str]
    """Empty if an option has no counterpart: then the launcher has to keep its command."""
    removed: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    ranks: str | None = None
    """The value of -np."""
    kept: list[str] = field(default_factory=list)
    """mpirun with all options except hosts, for a launcher that keeps its command."""
    unknown: str = ""
    """The first option without a counterpart."""


def is_mpirun(command: Sequence[str]) -> bool:
    program = command[0].rpartition("/")[2] if command else ""
    return program in ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "horovodrun")


def mpirun(command: Sequence[str]) -> Mpirun:
    """Split a command that `is_mpirun` into the program and the options."""
    out = Mpirun([])
    index, kept = 1, [command[0]]
    while index < len(command) and command[index].startswith("-"):
        written = command[index]
        name, equals, value = written.lstrip("-").partition("=")
        count = _value_count(name, bool(equals))
        values = [value] if equals else list(command[index + 1 : index + 1 + count])
        text = command[index : index + 1 + count]
        if name in _MPIRUN_SETS:
            out.removed.append(" ".join(text))
            if name in ("np", "n"):
                out.ranks = values[0] if values else None
            if name in ("np", "n", "allow-run-as-root"):
                kept += text
        else:
            kept += text
            if not _understood(out, name, values):
                out.unknown = out.unknown or written
        index += 1 + count
    program = list(command[index:])
    out.kept = [*kept, *program]
    out.program = [] if out.unknown else program
    return out


_PAIRS = frozenset({"mca", "gmca", "genv", "env"})
_SWITCHES = frozenset({"oversubscribe", "tag-output", "v", "verbose", "display-map", "report-bindings", "q", "genvall"})


def _value_count(name: str, has_value: bool) -> int:
    if has_value:
        return 0
    if name in _PAIRS:
        return 2
    if name in _MPIRUN_SETS:
        return _MPIRUN_SETS[name]
    return 0 if name in _SWITCHES else 1


def _understood(out: Mpirun, name: str, values: Sequence[str]) -> bool:
    """Return whether an option can be left out. Options that have a variable are added to `out.env`."""
    if name == "x":
        key, equals, value = values[0].partition("=")
        if equals:
            out.env[key] = value  # without a value it forwards a variable: allranks forwards all of them
        return True
    if name in ("mca", "gmca"):
        out.env[f"OMPI_MCA_{values[0]}"] = values[1]
        return True
    if name in ("genv", "env"):
        out.env[values[0]] = values[1]
        return True
    return name == "genvall" or (bool(values) and (name, values[0]) in _MPIRUN_USUAL)


# --- horovodrun ------------------------------------------------------------------------------------------------------

_HOROVODRUN_SETS = {
    **dict.fromkeys(("np", "num-proc", "H", "hosts", "hostfile", "p", "ssh-port", "i", "ssh-identity-file"), 1),
    **dict.fromkeys(("slots", "slots-per-host", "host-discovery-script", "network-interfaces"), 1),
    **dict.fromkeys(("gloo", "mpi", "verbose", "disable-cache"), 0),
}
_HOROVODRUN_ENV = {
    "timeline-filename": "HOROVOD_TIMELINE",
    "fusion-threshold-mb": "HOROVOD_FUSION_THRESHOLD",
    "cycle-time-ms": "HOROVOD_CYCLE_TIME",
    "log-level": "HOROVOD_LOG_LEVEL",
    "start-timeout": "HOROVOD_GLOO_TIMEOUT_SECONDS",
}


@dataclass
class Horovodrun:
    """The program that horovodrun starts."""

    program: list[str]
    removed: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    """Options without a counterpart."""
    ranks: str | None = None
    least: str | None = None
    """The value of --min-np."""
    most: str | None = None


def horovodrun(command: Sequence[str]) -> Horovodrun:
    """Split a command of horovodrun into the program and the options."""
    out = Horovodrun([])
    index = 1
    while index < len(command) and command[index].startswith("-"):
        name, equals, value = command[index].lstrip("-").partition("=")
        count = 0 if equals or _HOROVODRUN_SETS.get(name) == 0 else 1
        if count:
            value = command[index + 1]
        text = " ".join(command[index : index + 1 + count])
        if name in ("min-np", "min-num-proc"):
            out.least = value
        elif name in ("max-np", "max-num-proc"):
            out.most = value
        elif name in _HOROVODRUN_ENV:
            amount = str(int(value) << 20) if name == "fusion-threshold-mb" and value.isdigit() else value
            out.env[_HOROVODRUN_ENV[name]] = amount
        elif name in _HOROVODRUN_SETS:
            out.removed.append(text)
            out.ranks = value if name in ("np", "num-proc") else out.ranks
        else:
            out.unknown.append(text)
        index += 1 + count
    out.program = list(command[index:])
    return out


# --- shells ----------------------------------------------------------------------------------------------------------


def of_text(text: str) -> list[str]:
    """Return the arguments of a command that is written as one text: through a shell if it uses syntax of a shell."""
    plain = text.strip()
    if not re.search(r"[$`|&;<>(){}*?~\n]", plain):
        try:
            return shlex.split(plain)
        except ValueError:
            pass
    return ["/bin/sh", "-c", plain]
