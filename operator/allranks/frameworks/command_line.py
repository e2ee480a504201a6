"""Reads command lines, also the scripts of shells in them: which launchers they start, with which options, on which
program.

A script that cannot be read, for example because a quote is open, is left as it is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from allranks.text import flow_list

# --- the commands of a command line -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command."""

    text: str
    """Without its quotes. Variables are as written."""
    argument: int
    """Index of the argument that it is, or that is the script which has it."""
    begin: int = 0
    end: int | None = None
    """Place in the script; no end if it is a whole argument."""

    @property
    def variable(self) -> bool:
        """Whether the text depends on variables or on the output of a command. Without a shell only `$(NAME)` does."""
        if self.end is None:
            return re.search(r"\$\([^()]+\)", self.text) is not None
        return "$" in self.text or "`" in self.text


@dataclass(frozen=True, slots=True)
class Call:
    """One command with its arguments: the command line itself, or a part of the script of a shell."""

    words: tuple[Word, ...]
    sure: bool = True
    """It always runs. False in branches, loops, functions and after a test."""
    separator: Word | None = None
    """What stands between this command and the next one in a script, such as `&&`."""
    nested: bool = False
    """It is in a branch, a loop or a function, or follows a test."""


Edits = Mapping[Word, str]
"""Word -> the text that replaces it in a command line; empty to remove the word."""


def calls(command: Sequence[str]) -> list[Call]:
    """Return the commands of a command line: several for `bash -c "cd /app && train"`. Empty for an unreadable
    script."""
    script = script_of(command)
    if script is None:
        return [Call(tuple(Word(text, index) for index, text in enumerate(command)))] if command else []
    try:
        return list(_script_calls(command[script], script))
    except (ValueError, IndexError, RecursionError):  # quotes or parentheses without an end, or very many
        return []


def script_of(command: Sequence[str]) -> int | None:
    """Return the index of the script in `bash -c SCRIPT`; None for other commands."""
    if not command or basename(command[0]) not in _SHELLS:
        return None
    option = next((index for index, text in enumerate(command) if re.fullmatch(r"-\w*c", text)), None)
    return option + 1 if option is not None and option + 1 < len(command) else None


def edited(command: Sequence[str], edits: Edits) -> list[str]:
    """Return the command line with some of its words replaced or removed."""
    out: list[str] = []
    for index, text in enumerate(command):
        words = [word for word in edits if word.argument == index]
        if not words:
            out.append(text)
        elif words[0].end is None:
            out += shlex.split(edits[words[0]])
        else:
            for word in sorted(words, key=lambda word: word.begin, reverse=True):
                text = _replaced(text, word, edits[word])
            out.append(text)
    return out


def _replaced(script: str, word: Word, replacement: str) -> str:
    before, after = script[: word.begin], script[word.end :]
    if not replacement:
        blank = re.match(r"(?:[ \t]|\\\n)*", after)
        after = after[blank.end() :] if blank else after
        if not after or after[0] in "\n;|&)":
            before = re.sub(r"(?:[ \t]|\\\n)+$", " " if after[:1] in ("|", "&") else "", before)
    return before + replacement + after


def basename(path: str) -> str:
    return path.rpartition("/")[2]


_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})
_SEPARATOR = re.compile(r"&&|\|\||;;|\|&|[;|&()\n]")
_REDIRECTION = re.compile(r"(?:\d*(?:<<<|>>|>&|<&|>\||<>|[<>](?!\())|&>>?)-?[ \t]*")
_DOCUMENT = re.compile(r"\d*<<(?!<)(?P<tabs>-?)[ \t]*(?P<name>'[^'\n]+'|\"[^\"\n]+\"|[\w.\\-]+)")
_ANSI = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)
_COMPOUND = frozenset({"if", "then", "else", "elif", "while", "until", "for", "do", "case", "select", "function", "{"})
_OPENING = frozenset({"if", "then", "else", "elif", "while", "until", "do", "{", "!", "("})
_LOOPS = frozenset({"for", "case", "select"})
_BEGIN = frozenset({"if", "while", "until", "{"})
_END = frozenset({"fi", "done", "esac", "}"})
_TESTS = frozenset({"[", "[[", "test", "false"})
_CLOSING = {"(": ")", "{": "}"}


def _script_calls(script: str, argument: int) -> Iterator[Call]:
    words: list[Word] = []
    parts: list[tuple[list[Word], Word]] = []
    for word, separates in _tokens(script, argument):
        if separates:
            parts.append((words, word))
            words = []
        else:
            words.append(word)
    sure = not any(words and words[0].text in _COMPOUND for words, _ in parts)
    conditional, depth = False, 0
    for words, separator in parts:
        depth += words[0].text in _LOOPS if words else 0
        while words and words[0].text in _OPENING:
            depth += words[0].text in _BEGIN
            words = words[1:]
        if words:
            depth -= words[0].text in _END
            nested = conditional or depth > 0
            yield Call(tuple(words), sure and not conditional, separator if separator.text else None, nested)
            if separator.text == "||" or (separator.text == "&&" and words[0].text in _TESTS):
                conditional = True
        if separator.text in (";", "\n", "&"):
            conditional = False


def _tokens(script: str, argument: int) -> Iterator[tuple[Word, bool]]:
    """Yield (word, whether it separates commands). Redirections and here-documents are left out. The last one is an
    empty separator."""
    index, target = 0, False
    documents: list[re.Match[str]] = []
    while index < len(script):
        if script[index] in " \t\r" or script.startswith("\\\n", index):
            index += 1 + (script[index] == "\\")
        elif script[index] == "#":
            end = script.find("\n", index)
            index = len(script) if end < 0 else end
        elif document := _DOCUMENT.match(script, index):
            documents.append(document)
            index = document.end()
        elif redirection := _REDIRECTION.match(script, index):
            index, target = redirection.end(), True
        elif separator := _SEPARATOR.match(script, index):
            yield Word(separator[0], argument, index, separator.end()), True
            index = separator.end()
            if separator[0] == "\n":
                for document in documents:
                    index = _end_of_document(script, index, document)
                documents = []
        else:
            end = _end_of_word(script, index)
            if end == index:
                raise ValueError("a character that begins no word")
            if not target:
                yield Word(_unquoted(script[index:end]), argument, index, end), False
            index, target = end, False
    yield Word("", argument, index, index), True


def _end_of_document(script: str, index: int, start: re.Match[str]) -> int:
    """Return the index behind the last line of a here-document."""
    name = "".join(shlex.split(start["name"]))
    end = re.compile(rf"^{chr(9) + '*' if start['tabs'] else ''}{re.escape(name)}$\n?", re.MULTILINE)
    if not (line := end.search(script, index)):
        raise ValueError("a here-document without an end")
    return line.end()


def _end_of_word(script: str, index: int) -> int:
    while index < len(script) and script[index] not in " \t\r\n;|&)":
        if script[index] in "<>" and script[index + 1 : index + 2] != "(":
            break
        if script[index] == "(" and script[index - 1] not in "=$":
            break  # a function or a subshell
        index = _end_of_part(script, index)
    return index


def _end_of_part(script: str, index: int) -> int:
    """Return the end of the quotation or substitution that begins at `index`, or of the character there."""
    character = script[index]
    if character == "\\":
        return index + 2
    if character == "'":
        return script.index("'", index + 1) + 1
    if character == '"':
        index += 1
        while script[index] != '"':
            expands = script[index] in "\\$`" and not script.startswith("$'", index)
            index = _end_of_part(script, index) if expands else index + 1
        return index + 1
    if quotation := _ANSI.match(script, index):
        return quotation.end()
    if character == "`":
        return script.index("`", index + 1) + 1
    if character == "(" or (character in "$<>" and script[index + 1 : index + 2] in _CLOSING):
        index += character != "("
        closing = _CLOSING[script[index]]
        index += 1
        while script[index] != closing:
            index = _end_of_part(script, index)
        return index + 1
    return index + 1


def _unquoted(text: str) -> str:
    """Return a word without its quotes."""
    if not re.search(r"[\\'\"]", text) or "$(" in text or "`" in text or _ANSI.search(text):
        return text
    return " ".join(shlex.split(text))


# --- launchers --------------------------------------------------------------------------------------------------------

MPIRUN = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
_PROGRAMS = {
    **dict.fromkeys(MPIRUN, "mpirun"),
    "torchrun": "torchrun",
    "horovodrun": "horovodrun",
    "deepspeed": "deepspeed",
    "accelerate-launch": "accelerate",
}
PACKAGES = {
    **dict.fromkeys(MPIRUN, "an MPI, such as Open MPI"),
    "torchrun": "torch",
    "horovodrun": "horovod",
    "deepspeed": "deepspeed",
    **dict.fromkeys(("accelerate", "accelerate-launch"), "accelerate"),
    "ray": "ray",
}
"""Launcher -> the Python package, or the software, that installs it."""
_WITH_COMMAND = {("accelerate", "launch"): "accelerate", ("ray", "start"): "ray"}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "horovod.runner": "horovodrun",
    "horovod.runner.launch": "horovodrun",
}
_PYTHON = re.compile(r"python[0-9.]*")
_WRAPPERS = frozenset(
    {"exec", "env", "time", "nohup", "nice", "timeout", "stdbuf", "numactl", "taskset", "tini", "dumb-init", "gosu"}
    | {"nsys", "ncu", "conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "sudo", "xvfb-run", "entrypoint.sh"}
)
"""Programs that start the program in their arguments."""
_FLAGS: Mapping[str, frozenset[str]] = {
    "torchrun": frozenset({"standalone", "m", "module", "no-python", "run-path", "use-env", "h", "help"}),
    "mpirun": frozenset(
        {"allow-run-as-root", "oversubscribe", "nooversubscribe", "tag-output", "timestamp-output", "report-bindings"}
        | {"display-map", "display-devel-map", "display-allocation", "display-topo", "bynode", "byslot", "pernode"}
        | {"bind-to-core", "bind-to-socket", "bycore", "bysocket", "nolocal", "novm", "no-local", "use-hwthread-cpus"}
        | {"disable-recovery", "enable-recovery", "merge-stderr-to-stdout", "leave-session-attached", "debug-daemons"}
        | {"do-not-launch", "do-not-resolve", "index-argv-by-rank", "stream-buffering", "get-stack-traces", "xml"}
        | {"v", "verbose", "q", "quiet", "d", "V", "version", "h", "help"}
        | {"genvall", "genvnone", "envall", "envnone", "print-rank-map", "print-all-exitcodes", "prepend-rank", "l"}
        | {"info", "cleanup", "check-mpi", "trace", "aps", "order-nodes", "skip-launch-node", "gdb", "tv"}
        | {"disable-hostname-propagation", "disable-auto-cleanup", "enable-x", "disable-x", "usize"}
    ),
    "horovodrun": frozenset(
        {"gloo", "mpi", "verbose", "disable-cache", "autotune", "no-stall-check", "tcp", "check-build", "v", "version"}
        | {"timeline-mark-cycles", "hierarchical-allreduce", "hierarchical-allgather", "log-with-timestamp"}
    ),
    "accelerate": frozenset(
        {"cpu", "multi-gpu", "tpu", "use-deepspeed", "use-fsdp", "use-megatron-lm", "use-parallelism-config", "quiet"}
        | {"module", "m", "no-python", "same-network", "debug", "tpu-cluster", "no-tpu-cluster", "tpu-use-sudo", "q"}
        | {"dynamo-use-fullgraph", "dynamo-use-dynamic", "dynamo-use-regional-compilation", "enable-cpu-affinity"}
        | {"downcast-bf16", "h", "help"}
    ),
    "deepspeed": frozenset(
        {
            "force-multi",
            "module",
            "no-python",
            "no-local-rank",
            "no-ssh",
            "no-ssh-check",
            "save-pid",
            "elastic-training",
        }
        | {"bind-cores-to-rank", "enable-each-rank-log", "h", "help"}
    ),
    "ray": frozenset({"head", "block", "no-monitor", "disable-usage-stats"}),
}
"""Launcher -> its options without a value. An underscore in an option is written as a dash."""
_PAIRS = frozenset(
    {"mca", "gmca", "pmca", "omca", "gomca", "prtemca", "gprtemca", "pmixmca", "gpmixmca"} | {"genv", "env"}
)
"""Options of mpirun with two values."""
_TAKE_OPTIONS = frozenset({"launch-agent", "bootstrap-exec-args", "launcher-exec-args", "x"})
"""Options of mpirun whose value may be an option."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a launcher."""

    name: str
    """Without dashes before it, and with dashes for underscores."""
    values: tuple[str, ...]
    words: tuple[Word, ...]

    @property
    def value(self) -> str:
        return self.values[0] if self.values else ""

    @property
    def variable(self) -> bool:
        return any(word.variable for word in self.words)

    def __str__(self) -> str:
        return " ".join(word.text for word in self.words)


@dataclass(frozen=True, slots=True)
class Start:
    """A launcher that a command line starts."""

    kind: str
    """`torchrun`, `mpirun`, `horovodrun`, `accelerate`, `deepspeed` or `ray`."""
    call: Call
    head: tuple[Word, ...]
    """The words that name the launcher, such as `python3 -m torch.distributed.run`."""
    options: tuple[Option, ...]
    program: tuple[Word, ...]
    """The program that it starts, with its arguments."""

    @property
    def sure(self) -> bool:
        return self.call.sure

    @property
    def name(self) -> str:
        """The launcher as people call it."""
        first, last = basename(self.head[0].text), self.head[-1].text
        return f"{first} {last}" if (first, last) in _WITH_COMMAND else last if "." in last else basename(last)

    def option(self, *names: str) -> Option | None:
        """Return the last option with one of these names."""
        return next((option for option in reversed(self.options) if option.name in names), None)

    @property
    def replacement(self) -> str:
        """What starts the program without the launcher: the interpreter of a Python script, or nothing."""
        names = {option.name for option in self.options}
        if self.kind in ("mpirun", "horovodrun") or not names.isdisjoint({"no-python", "run-path"}):
            return ""
        return "python3" if names.isdisjoint({"m", "module"}) else "python3 -m"

    def edits(self, replacement: str | None = None) -> Edits:
        """Return the edits that leave the program, with `replacement` in place of the launcher and its options."""
        words = [*self.head, *(word for option in self.options for word in option.words)]
        first = self.replacement if replacement is None else replacement
        return dict.fromkeys(words, "") | {self.head[0]: first}


def starts(command: Sequence[str]) -> tuple[Start, ...]:
    """Return the launchers that a command line starts, in their order."""
    return _starts(tuple(command))


@lru_cache(maxsize=256)
def _starts(command: tuple[str, ...]) -> tuple[Start, ...]:
    return tuple(start for call in calls(command) if (start := _start(call)))


def _start(call: Call) -> Start | None:
    words = call.words
    first = next((i for i, word in enumerate(words) if not re.match(r"[A-Za-z_]\w*\+?=", word.text)), len(words))
    if first == len(words):
        return None
    places = range(first, first + 1)
    program = basename(words[first].text)
    if (program in _WRAPPERS or program.endswith(".sh")) and not any(word.text == "install" for word in words):
        places = range(first, len(words))
    for place in places:
        if launcher := _launcher_at(words, place):
            kind, after = launcher
            options, end = options_of(kind, words, after)
            return Start(kind, call, words[place:after], options, words[end:])
    return None


def _launcher_at(words: Sequence[Word], place: int) -> tuple[str, int] | None:
    """Return (kind of the launcher at this word, index of the first word behind its name)."""
    program = basename(words[place].text)
    following = words[place + 1].text if place + 1 < len(words) else ""
    if kind := _PROGRAMS.get(program):
        return kind, place + 1
    if kind := _WITH_COMMAND.get((program, following)):
        return kind, place + 2
    if _PYTHON.fullmatch(program):
        for index in range(place + 1, len(words) - 1):
            if words[index].text == "-m":
                kind = _MODULES.get(words[index + 1].text)
                return (kind, index + 2) if kind else None
            if not words[index].text.startswith("-"):
                return None
    return None


def options_of(kind: str, words: Sequence[Word], index: int) -> tuple[tuple[Option, ...], int]:
    """Return the options of a launcher, which end at its program, and the index of the program."""
    options = []
    while index < len(words) and words[index].text.startswith("-") and words[index].text != "--":
        name, equals, value = words[index].text.lstrip("-").partition("=")
        name = name.replace("_", "-")
        count = 0 if equals or name in _FLAGS[kind] else 2 if kind == "mpirun" and name in _PAIRS else 1
        if kind == "mpirun" and name in ("genv", "env") and index + 1 < len(words) and "=" in words[index + 1].text:
            count = 1  # Intel MPI also takes NAME=VALUE
        following = words[index + 1].text if index + 1 < len(words) else ""
        if kind == "mpirun" and count == 1 and name not in _TAKE_OPTIONS and re.match(r"--?[A-Za-z]\S*$", following):
            count = 0  # a switch of another version, as no value is an option
        taken = tuple(words[index : index + 1 + count])
        values = (value,) if equals else tuple(word.text for word in taken[1:])
        options.append(Option(name, values, taken))
        index += len(taken)
    if index < len(words) and words[index].text == "--":
        index += 1
    return tuple(options), index


# --- how allranks runs a command --------------------------------------------------------------------------------------

Note = tuple[int, str]
"""(index of an argument of a command, a sentence with the cure)"""


@dataclass(frozen=True, slots=True)
class Launch:
    """The command of a role as allranks runs it."""

    command: tuple[str, ...]
    notes: tuple[Note, ...] = ()
    """What is replaced in the command."""
    warnings: tuple[Note, ...] = ()
    """What probably does not do what its author expects."""
    problem: Note | None = None
    """The reason why the command cannot start the ranks of this job."""


_LONGEST_LINE = 240


def line_to_write(command: Sequence[str], start: Start, edits: Edits | None = None) -> str:
    """Return the advice to write the command without a launcher, or with other edits."""
    if start.program and not start.program[0].variable:
        line = flow_list(edited(command, start.edits() if edits is None else edits))
        if len(line) <= _LONGEST_LINE:
            return f"write command: {line}"
    return f"remove {start.name} and its options" if edits is None else "remove them"
