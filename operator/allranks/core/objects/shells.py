"""What a shell that starts the program hides from it, or from the pod: signals, and exit codes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from allranks.frameworks.command_line import Call, Note, basename, calls, script_of, starts

_PROGRAM = re.compile(r"python[\d.]*|torchrun|mpirun|mpiexec|horovodrun|accelerate|deepspeed|ray|julia|java")
_PREFIXES = frozenset({"env", "nohup", "time", "nice", "numactl", "stdbuf", "command", "setsid"})
_EXECS_LAST = frozenset({"bash", "zsh"})
"""Shells that replace themselves by the last command of their script."""


def shell_warnings(command: Sequence[str]) -> list[Note]:
    """Return what a shell hides: the exit code of the program, or the program itself when the shell ends."""
    place, of_script, program = _program_of(command)
    if program is None:
        return []
    number, name = of_script.index(program), _name(program)
    after, separator = of_script[number + 1 :], program.separator.text if program.separator else ""
    script = command[place]
    if hidden := _always_succeeds(separator, after):
        return [(place, f"a failure of {name} is not noticed, because {hidden}")]
    if separator == "&" and not any(_first(call) == "wait" for call in after):
        return [(place, f"{name} runs in the background, and is killed when the script ends: remove &, or add wait")]
    if separator == "|" and "pipefail" not in script:
        shell = "" if basename(command[0]) in _EXECS_LAST else "use bash, and "
        cure = f"{shell}begin the script with set -o pipefail"
        return [(place, f"a failure of {name} is not noticed, because the exit code is that of the pipe's end: {cure}")]
    if separator in (";", "\n") and after and _first(after[-1]) != "exit" and not _ends_at_errors(script):
        return [
            (place, f"a failure of {name} is not noticed if {_first(after[-1])} succeeds: begin the script with set -e")
        ]
    return []


def _always_succeeds(separator: str, after: Sequence[Call]) -> str:
    """Return why the script succeeds whatever the program returns, with the cure; empty if it does not."""
    words = [[word.text for word in call.words] for call in after]
    if separator == "||" and words[0][0] in _SUCCEEDING:
        return f"{words[0][0]} follows after ||: remove it"
    if separator == "&" and words and words[-1] == ["wait"]:
        return "wait alone succeeds: write wait $!"
    if separator in (";", "\n", "||", "&") and words and words[-1] == ["exit", "0"]:
        return "the script ends with exit 0: write exit $? after the program"
    return ""


_SUCCEEDING = frozenset({"true", ":", "echo", "printf"})


def shell_notes(command: Sequence[str]) -> list[Note]:
    """Return that the program gets no SIGTERM, if the shell stays its parent."""
    place, of_script, program = _program_of(command)
    if program is None or program.words[0].text == "exec":
        return []
    piped = any(call.separator and call.separator.text == "|" for call in of_script[-2:])
    if basename(command[0]) in _EXECS_LAST and program is of_script[-1] and not piped:
        return []
    name = _name(program)
    text = f"{basename(command[0])} gets SIGTERM and {name} does not, so it cannot save its state before the pod ends"
    return [(place, f"{text}: write exec {name} as the last command")]


def _program_of(command: Sequence[str]) -> tuple[int, list[Call], Call | None]:
    """Return (index of the script, its commands, the last one that starts a program); no program if it is unsure."""
    place = script_of(command)
    if place is None:
        return 0, [], None
    of_script = calls(command)
    launched = [start.call for start in starts(command)]
    programs = [call for call in of_script if call in launched or _PROGRAM.fullmatch(basename(_first(call)))]
    return place, of_script, programs[-1] if programs and programs[-1].sure else None


def _first(call: Call) -> str:
    """Return the word of a call that names its program, behind variables and programs such as `env`."""
    for word in call.words:
        if not re.match(r"[A-Za-z_]\w*\+?=", word.text) and word.text not in _PREFIXES | {"exec"}:
            return word.text
    return call.words[0].text


def _name(call: Call) -> str:
    return basename(_first(call))


def _ends_at_errors(script: str) -> bool:
    return re.search(r"\bset\s+-\w*e|\berrexit\b|\btrap\b", script) is not None
