"""Removes the options from a launcher's command line that allranks sets itself, and finds the number of processes that
it starts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from allranks.authoring.convert.shell_values import Values, of_command
from allranks.frameworks.command_line import Option, Start, Word, calls, edited, options_of, script_of, starts
from allranks.frameworks.pytorch import RENDEZVOUS_OPTIONS

_TORCHRUN = RENDEZVOUS_OPTIONS | {"rdzv-conf", "standalone", "max-restarts", "nproc-per-node"}
AUTO = "auto"
_MENTIONS = re.compile(r"\btorchrun\b|torch\.distributed\.(run|launch)")


@dataclass
class Torchrun:
    """A command line without the options that connect nodes."""

    command: list[str]
    removed: list[str] = field(default_factory=list)
    """The removed options, as they were written."""
    removed_words: frozenset[int] = frozenset()
    """The indices of the removed words of the command line; not those inside of a script."""
    processes: str | None = None
    """The value of --nproc-per-node."""
    used: bool = False
    """Whether the command starts torchrun."""
    unknown: str = ""
    """The number of processes as a clause, if the manifest does not determine it."""


def torchrun(command: Sequence[str], variables: Mapping[str, str | None] | None = None) -> Torchrun:
    """Remove the options of torchrun, also in the script of a shell: `bash -c "torchrun --nnodes=2 train.py"`.

    `variables`: name -> value in the pod, None for one that the manifest does not determine.
    """
    values = of_command(command, variables or {})
    launchers = [start for start in starts(command) if start.kind == "torchrun"]
    numbers: list[str] = []
    unknown = ""
    removed: list[Option] = []
    for start in launchers:
        options = _options(start, values)
        number, reason, source = _count(options, values)
        unknown = unknown or reason
        numbers += [number] if number else []
        kept = source if reason else None
        removed += [option for option in options.written if option.name in _TORCHRUN and option is not kept]
    if not launchers:
        number, unknown = _hidden(command, values)
        numbers = [number] if number else []
    if len(set(numbers)) > 1:
        unknown = f"{_NUMBER}, which is {' and '.join(dict.fromkeys(numbers))} in one script"
    words = [word for option in removed for word in option.words]
    return Torchrun(
        edited(command, dict.fromkeys(words, "")),
        list(map(str, removed)),
        frozenset(word.argument for word in words if word.end is None),
        None if unknown or not numbers else numbers[0],
        bool(launchers) or _mentions_torchrun(command, values),
        unknown,
    )


@dataclass
class _Options:
    """The options of a torchrun."""

    written: list[Option]
    """In the command itself."""
    in_variables: list[Option] = field(default_factory=list)
    undetermined: str = ""
    """A variable that may have further options, and whose value the manifest does not have."""


def _options(start: Start, values: Values) -> _Options:
    """Return the options of a torchrun, also behind and in variables: `torchrun $ARGS --nnodes 2 train.py`."""
    out = _Options(list(start.options))
    place = 0
    while place < len(start.program):
        text = start.program[place].text
        if text.startswith("-"):
            options, place = options_of("torchrun", start.program, place)
            out.written += options
            continue
        words = values.words(text) if values.shell else None
        if words is None:
            out.undetermined = text if values.shell and text.startswith(("$", '"$')) else ""
            break
        options, end = options_of("torchrun", [Word(word, 0) for word in words], 0)
        out.in_variables += options
        if end < len(words):
            break
        place += 1
    return out


def _count(options: _Options, values: Values) -> tuple[str, str, Option | None]:
    """Return (number of processes in a pod, why it is not determined, the option that has it)."""
    for option in reversed([*options.written, *options.in_variables]):
        if option.name == "nproc-per-node":
            number = _number(option.value, values)
            return number, "" if number else f"the value of {option}, which is determined in the pod", option
    if options.undetermined:
        return "", f"{_NUMBER}: the manifest does not determine the options in {options.undetermined}", None
    return "", "", None


def _number(text: str, values: Values) -> str:
    """Return a number or `auto`; empty if it is not determined."""
    value = values.value(text)
    if value is None:
        return AUTO if _COUNTS_GPUS.search(values.raw(text)) else ""
    return value if value.isdigit() and int(value) else value if value in (AUTO, "gpu", "cpu") else ""


_COUNTS_GPUS = re.compile(r"nvidia-smi|rocm-smi|hl-smi|device_count\(\)")
"""Programs that count the GPUs of the pod, as Auto does."""
_NUMBER = "the number of processes that torchrun starts in a pod"
_UNREAD = f"{_NUMBER}: this script cannot be read"


def _hidden(command: Sequence[str], values: Values) -> tuple[str, str]:
    """Return (number of processes in a pod, why it is not determined) of a torchrun whose name is in a variable."""
    if not _mentions_torchrun(command, values):
        return "", ""
    if not values.readable:
        script = command[script_of(command) or 0]
        return "", _UNREAD if re.search(r"nproc[-_]per[-_]node", script) else ""
    for call in calls(command):
        words = [expanded for word in call.words for expanded in values.words(word.text) or [word.text]]
        for place in range(len(words)):
            start = next(iter(starts(words[place:])), None) if words[place] not in _SHELLS else None
            if start and start.kind == "torchrun" and start.head[0].argument == 0:
                number, reason, _ = _count(_options(start, values), values)
                return number, reason
    return "", ""


_SHELLS = frozenset({"bash", "sh"})


def _mentions_torchrun(command: Sequence[str], values: Values) -> bool:
    """Return whether a script that cannot be read, or a variable of it, starts torchrun."""
    script = script_of(command)
    if script is None:
        return False
    if values.readable:
        return any(text is not None and _MENTIONS.search(text) for text in values.assigned.values())
    return _MENTIONS.search(command[script]) is not None


def starts_ranks(command: Sequence[str]) -> bool:
    """Return whether the command starts mpirun or horovodrun."""
    return any(start.kind in ("mpirun", "horovodrun") for start in starts(command))


def launcher_of(commands: Iterable[Sequence[str]], *kinds: str) -> Start | None:
    """Return the first launcher of some kinds that commands start."""
    return next((start for command in commands for start in starts(command) if start.kind in kinds), None)


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


def with_prefix(command: Sequence[str], line: str) -> list[str]:
    """Return the command with a line before the script of its shell; unchanged without a shell."""
    script = script_of(command)
    if script is None:
        return list(command)
    text = command[script]
    separator = "\n" if "\n" in text.strip() else "; "
    return [*command[:script], f"{line}{separator}{text}", *command[script + 1 :]]
