"""Finds in the end of a program's output what ended it: an uncaught exception, or a fatal error of native code.

The end of the output is not always about the cause: a tracker prints a summary while the program ends, a runtime lists
its frames, a launcher adds a traceback of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from allranks.api.status import Because
from allranks.core.diagnosis import patterns
from allranks.core.diagnosis.patterns import is_lost_peer
from allranks.text import last_lines


@dataclass(frozen=True, slots=True)
class LastWords:
    """The part of an output that says what ended the program."""

    line: str
    """`ValueError: sample 4711 is broken`."""
    begin: int
    end: int
    """The lines of the output that belong to it: from `begin` to before `end`."""
    lost_peer: bool
    """It says only that other ranks are gone."""
    rank: int | None = None
    """The rank that printed it, where the output says that."""
    from_launcher: bool = False
    """A launcher says that its processes failed, or that it was ended."""
    of_child: bool = False
    """A process that the program started itself failed, whose rank is unknown."""
    exception: bool = True
    """It is an exception of Python, not a fatal error of native code."""
    beside: bool = False
    """It ended another thread or a child process, so an exception of the program itself says more."""


def last_words(text: str, code: int | None = 1) -> LastWords | None:
    """Return what ended the program; None if the output has no exception and no fatal error, or the exit code does not
    fit to one.

    `code`: the exit code, 128 + n for signal n. Python ends with 1 after an uncaught exception. While it ends, native
    code may still abort (134, 139), or the pod may be deleted (143); then the exception is what began the end. A
    program that prints its exception and exits with a code of its own does that at its end.
    """
    lines = _lines(text)
    if code == _KILLED and any(_ENDS_ITSELF.search(line) for line in lines[-_NEAR_THE_END:]):
        code = 1
    if code not in _FITTING:
        return None
    exceptions = _of_each_rank(list(_exceptions(lines)))
    fatal = _last_fatal(lines)
    if code not in _OF_EXCEPTIONS:
        exceptions = [words for words in exceptions if fatal or len(lines) - words.end <= _NEAR_THE_END]
    last = _most_telling(exceptions)
    if fatal and not _says_more(last, fatal):
        return fatal
    return _with_unresolved(last, lines) if last else _boxed(lines)


def _lines(text: str) -> list[str]:
    """Return the lines of an output without colors, which Python and loggers write if a variable asks for them."""
    return _COLOR.sub("", text).splitlines()


_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def _says_more(exception: LastWords | None, fatal: LastWords) -> bool:
    """Return whether the exception, and not the fatal error, says what ended the program.

    PyTorch prints the rank before uncaught exceptions only: if one rank has an exception other than a lost peer, other
    ranks may still wait for it until they abort.
    """
    if exception is None or exception.from_launcher:
        return False
    uncaught = exception.rank is not None and not exception.lost_peer
    return fatal.begin < exception.end or (uncaught and fatal.lost_peer)


_OF_EXCEPTIONS = frozenset({None, 1, 143})
_FITTING = _OF_EXCEPTIONS | {132, 133, 134, 135, 136, 139} | {*range(2, 124), 255}
"""Exit codes after an exception, after a fault of native code, and of programs; 124 to 127 are codes of `timeout` and
of shells."""
_KILLED = 137
_ENDS_ITSELF = re.compile(r"Child process with PID \d+ terminated with code \d+\. Forcefully terminating")
"""lightning/fabric/strategies/launchers/subprocess_script.py: a program whose child failed sends itself SIGKILL."""
_NEAR_THE_END = 30
"""Lines after an exception, for a program that ended by a signal: it may have survived one that is further away."""


def lost_peer(text: str, words: LastWords | None) -> bool:
    """Return whether the output says that the program ended because other ranks were gone. `words`: its last words."""
    return words.lost_peer if words else patterns.is_lost_peer(last_lines(text, 5, len(text)))


def kind_of_error(text: str, words: LastWords | None) -> Because | None:
    """Return the evidence in the output for a fault of a device, a file or the network. `words`: its last words."""
    return patterns.kind_of_error(words.line if words else last_lines(text, 3, len(text)))


def cause_line(text: str, code: int | None = 1) -> str:
    """Return the line that says what ended the program: of its last exception, else the last line."""
    if words := last_words(text, code):
        return words.line
    lines = [line for line in _lines(text) if line.strip()]
    return lines[-1].strip() if lines else ""


def of_rank(text: str, rank: int) -> str:
    """Return the output without the lines that begin with the number of another rank."""
    return "\n".join(line for line in text.splitlines() if _rank_before(line) in (None, rank))


def _rank_before(line: str) -> int | None:
    """Return the number of a rank with which a line begins, alone or after the name that a launcher gives it."""
    prefix = _BEGINNING.match(line)
    match = _RANK.search(prefix["prefix"]) if prefix else None
    return int(match["rank"]) if match else None


def excerpt(text: str, code: int | None, lines: int, characters: int) -> str:
    """Return the end of an output, and before it what ended the program, if that is not part of the end."""
    text = _COLOR.sub("", text)
    whole = text.rstrip().splitlines()
    end = last_lines(text, lines, characters)
    words = last_words(text, code)
    if words is None or words.line in end:
        return end
    said = whole[words.begin : words.end]
    if not any(words.line in line for line in said):
        said.append(words.line)
    block = _shortened(said, words.line, lines * 2 // 3, characters * 2 // 3)
    rest_lines, rest_characters = lines - len(block.splitlines()) - 1, characters - len(block) - len(_LEFT_OUT) - 2
    rest = "\n".join(whole[words.end :][-max(1, rest_lines) :])[-max(1, rest_characters) :]
    return f"{block}\n{_LEFT_OUT}\n{rest}" if rest.strip() else block


_LEFT_OUT = "..."


def _shortened(block: list[str], line: str, lines: int, characters: int) -> str:
    """Return the end of a traceback, which has its innermost frames and the exception, with its first line."""
    head = f"{block[0]}\n" if len(block) > 1 and _HEAD.match(block[0]) and len(block[0]) < characters // 4 else ""
    text = "\n".join(block[1 if head else 0 :][-lines + (1 if head else 0) :])
    if line not in text:  # an exception with a long message
        text = line
    end = text[len(head) - characters :]
    return head + end if line in end else line[:characters]


def _most_telling(exceptions: list[LastWords]) -> LastWords | None:
    """Return the exception of a rank that lost no peer, if there is one; the first of several ranks."""
    main = [words for words in exceptions if not words.beside] or exceptions
    program = [words for words in main if not words.from_launcher] or main[-1:]
    causes = [words for words in program if not words.lost_peer]
    telling = next(iter(causes or program), None)
    if telling and _ABOVE.search(telling.line):
        return next((words for words in reversed(exceptions) if words.end <= telling.begin), telling)
    return telling


_ABOVE = re.compile(r"[Ss]ee root cause above|\(above\) for the root cause")
"""vllm: the exception of a process whose child process printed why it failed."""


def _with_unresolved(words: LastWords, lines: list[str]) -> LastWords:
    """Return the words with the line that says why a host could not be reached, if its name has no address."""
    client = _CLIENT.search(words.line)
    addresses = f"network addresses of ({client['host']}, " if client else ""
    reasons = [line.strip() for line in lines if addresses and addresses in line and "(gai error: " in line]
    return replace(words, line=reasons[-1]) if reasons else words


_CLIENT = re.compile(r"The client socket has .* to \((?P<host>[^ ,]+), \d+\)")
"""torch/csrc/distributed/c10d/socket.cpp, which also warns about names without addresses."""


def _of_each_rank(exceptions: list[LastWords]) -> list[LastWords]:
    """Return the last exception of each rank, and of the launcher."""
    last = {(words.rank, words.from_launcher, words.beside): words for words in exceptions}
    return sorted(last.values(), key=lambda words: words.begin)


# --- exceptions of Python ---------------------------------------------------------------------------------------------

_PREFIX = r"(?P<prefix>(?:[\[(][^\[\]()]{0,60}[\])](?:<stderr>)?:? ?){0,3}(?: {2,20}\| )?)"
"""Before each line: [rank1]: of torch.distributed, [1]<stderr>: of launchers, [default1]:[rank1]: of both,
(Worker pid=7) of Ray, and the bars of a group of exceptions."""
_BEGINNING = re.compile(_PREFIX)
_HEAD = re.compile(
    _PREFIX + r"(?:Traceback \(most recent call last\):(?: \(RANK (?P<raised>\d+)\))?"
    r"|[╭+][─-]+ Traceback \(most recent call last\) [─-]+[╮+]"
    r"|[A-Za-z_][\w.]* {2,}Traceback \(most recent call last\))\s*$"
)
"""With a rank: torch.distributed.checkpoint (api.py, CheckpointException) raises in all ranks what one raised. In a
box: rich.traceback, which typer uses. After the name of the exception: IPython."""
_LOGGED_HEAD = re.compile(
    r"(?P<prefix>.{1,200}\W)(?<!Original )(?<!Exception Group )Traceback \(most recent call last\):\s*$"
)
"""A logger writes it after a text of its own, which it may repeat before each line."""
_OF_BOX = ("│", "╰", "|", "+-", "> File ", "File ", "-", "Cell In", "Input In", "/", "~/", "<ipython-input-")
"""Beginnings of lines of a traceback that are not indented: the box of rich, the frame that loguru marks, and the
frames of IPython, with an arrow before the line."""
_FRAME = re.compile(_PREFIX + r'(?:\s+(?:File ".*", line \d+|\^+$|~+\^*~*$)|RayTaskError\(\w+\): ray::)')
"""With the line of Ray before the traceback of another process, with which frameworks/ray.py begins."""
_BARE_FRAME = re.compile(r'\s+File "')
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:\(\w+\))?(?:: .*|:)?$")
_CHAIN = re.compile(
    r"(?:During handling of the above exception, another exception occurred:"
    r"|The above exception was the direct cause of the following exception:)\s*$"
)
_IGNORED = re.compile(
    r"Exception ignored (?:in|while)\b|Error in atexit\._run_exitfuncs:|--- Logging error\b"
    r"|Task exception was never retrieved|Exception in callback |Unhandled exception in event loop"
    r"|unhandled exception during asyncio\.run\(\) shutdown"
)
"""Python prints the traceback of an exception that ends nothing: in a destructor, at exit, or in a handler of a log. So
does asyncio, for tasks and callbacks that are not awaited."""
_BESIDE = re.compile(r"Exception in thread |Process \S+:\s*$")
"""Before the traceback of another thread (threading.py), or of a child process (multiprocessing/process.py)."""
_ABOUT = re.compile(r"(?:future|handle|task|protocol|transport|source_traceback|message|Record was): ")
"""Lines of asyncio and of loguru between the reason and the traceback."""
_OF_CHILD = re.compile(
    r"torch\.multiprocessing\.spawn\.ProcessExitedException\b|-- Process \d+ terminated with the following error:"
)
"""torch/multiprocessing/spawn.py: an exception, and the line before the traceback of another process."""
_RANK = re.compile(r"\[(?:rank|\d+,)?(?P<rank>\d+)\]")
_DETAILS = 12
"""Lines after the first one of an exception that may belong to its message."""
_FRAMES = 120
"""The same for an exception that has the traceback of another process in its message."""
_SKIPPED = 40
"""Lines of other ranks between two lines of one rank."""
_LAUNCHERS = re.compile(
    r"torch\.distributed\.elastic\.|ChildFailedError\b|subprocess\.CalledProcessError: Command "
    r"|(?:KeyboardInterrupt|SystemExit)\b"
)


@dataclass(frozen=True, slots=True)
class _Exception:
    line: str
    details: str
    begin: int
    end: int
    prefix: str
    raised: int | None = None
    """The rank that raised it, if another one prints it."""
    of_child: bool = False
    beside: bool = False


def _exceptions(lines: list[str]) -> Iterator[LastWords]:
    """Yield the exceptions with a traceback, in order for each rank. A chain of exceptions is one."""
    by_prefix: dict[str, list[_Exception]] = {}
    for exception in _tracebacks(lines):
        by_prefix.setdefault(exception.prefix, []).append(exception)
    for prefix, exceptions in by_prefix.items():
        chain: list[_Exception] = []
        for exception in exceptions:
            if exception.raised is not None:
                chain = []  # the exception before it only says that this one was raised
            between = lines[chain[-1].end : exception.begin] if chain else []
            if chain and not any(_CHAIN.match(line.removeprefix(prefix)) for line in between):
                yield _words(chain)
                chain = []
            chain.append(exception)
        yield _words(chain)


def _words(chain: list[_Exception]) -> LastWords:
    first, last = chain[0], chain[-1]
    lost = is_lost_peer(f"{first.line}\n{first.details}")
    # A rank that raised, and lost its peers while it handled that, was the first to fail.
    telling = first if not lost and is_lost_peer(f"{last.line}\n{last.details}") else last
    begin = _BEGINNING.match(last.prefix)
    match = _RANK.search(begin["prefix"]) if begin else None
    return LastWords(
        line=_innermost(telling),
        begin=first.begin,
        end=last.end,
        lost_peer=lost,
        rank=int(match["rank"]) if match and last.raised is None else last.raised,
        from_launcher=_LAUNCHERS.match(last.line) is not None,
        of_child=last.of_child or _OF_CHILD.match(last.line) is not None,
        beside=first.beside,
    )


def _innermost(exception: _Exception) -> str:
    """Return the line of an exception, or of the one in another process that it passes on."""
    if _PASSES_ON.search(f"{exception.line}\n{exception.details}"):
        _, _, rest = f"\n{exception.details}".rpartition(f"\n{_ORIGINAL}")
        inner = _exception_after(rest.splitlines(), 0, "")
        return inner[0] if inner else exception.line
    last_error = _LAST_ERROR.search(exception.details)
    return last_error["text"] if last_error else exception.line


_ORIGINAL = "Original Traceback (most recent call last):"
_PASSES_ON = re.compile(rf"^{re.escape(_ORIGINAL)}|^\S*RayTaskError\(\w+\): (?:\x1b\[\d+m)?ray::", re.MULTILINE)
"""Before the traceback of another process: torch/_utils.py (ExceptionWrapper), ray/exceptions.py."""
_LAST_ERROR = re.compile(
    r"^(?:Last error:\s*\n\s*"
    r"|Detected at node [^\n]*\n(?:[ \t][^\n]*\n|\n|<stack traces unavailable>\n)*)(?P<text>\S.*)$",
    re.MULTILINE,
)
"""What NCCL says about its own error: torch, NCCLUtils.cpp; and TensorFlow about an operation of a graph."""


def _tracebacks(lines: list[str]) -> Iterator[_Exception]:
    number, begun = 0, set[str]()
    ignored_end: int | None = None
    while number < len(lines):
        head = _HEAD.match(lines[number]) or _cut_off(lines[number], number, begun) or _logged(lines[number])
        exception = None
        if head:
            prefix = _repeated_prefix(head, lines[number + 1 : number + 2])
            begun.add(prefix)
            exception = _exception_after(lines, number + 1, prefix)
        if head is None or exception is None:
            number += 1
            continue
        line, end = exception
        before = _reason(lines, number, prefix)
        chained = ignored_end is not None and any(_CHAIN.match(between) for between in lines[ignored_end:number])
        if _IGNORED.match(before) or chained:
            ignored_end = end
        else:
            ignored_end = None
            details = "\n".join(_details(lines, end, prefix, _DETAILS if "RayTaskError(" not in line else _FRAMES))
            raised = int(head["raised"]) if head.groupdict().get("raised") else None
            of_child, beside = _OF_CHILD.match(before) is not None, _BESIDE.match(before) is not None
            yield _Exception(line, details, number, end, prefix, raised, of_child, beside)
        number = number + 1 if prefix else end  # other ranks may print theirs between these lines


def _logged(line: str) -> re.Match[str] | None:
    return _LOGGED_HEAD.match(line) if "Traceback (most" in line else None


def _repeated_prefix(head: re.Match[str], following: list[str]) -> str:
    """Return what is before each line of a traceback: nothing, or all or the beginning of what is before the first
    line."""
    prefix = head["prefix"]
    if any(_BARE_FRAME.match(line) for line in following):
        return ""
    if head.re is not _LOGGED_HEAD or any(line.startswith(prefix) for line in following):
        return prefix
    begin = _BEGINNING.match(prefix)
    return begin["prefix"] if begin else ""


def _reason(lines: list[str], number: int, prefix: str) -> str:
    """Return the line before a traceback that says where the exception was raised."""
    before = next((line for line in reversed(lines[max(0, number - 3) : number]) if not _ABOUT.match(line)), "")
    return before.removeprefix(prefix)


def _cut_off(line: str, number: int, begun: set[str]) -> re.Match[str] | None:
    """Return the frame with which a traceback begins whose head was cut off, at the beginning of the output or of the
    lines of a rank."""
    frame = _FRAME.match(line)
    return frame if frame and frame["prefix"] not in begun and (frame["prefix"] or number == 0) else None


def _exception_after(lines: list[str], begin: int, prefix: str) -> tuple[str, int] | None:
    """Return (line of the exception, number of the line after it) of the traceback whose frames begin at `begin`."""
    skipped = 0
    for number in range(begin, len(lines)):
        line = lines[number]
        if not line.startswith(prefix.rstrip()):
            skipped += 1
            if skipped > _SKIPPED:
                return None
            continue
        line = line[len(prefix) :]
        if not line.strip() or line[:1].isspace() or line.startswith(_OF_BOX):
            continue
        return (line.rstrip(), number + 1) if _EXCEPTION.match(line.rstrip()) else None
    return None


def _details(lines: list[str], begin: int, prefix: str, most: int) -> list[str]:
    """Return the lines that may belong to the message of an exception, which may have a traceback in it."""
    details: list[str] = []
    for line in lines[begin : begin + _FRAMES * 3]:
        if not line.startswith(prefix.rstrip()):
            continue
        rest = line[len(prefix) :].rstrip()
        if _HEAD.match(rest) or _CHAIN.match(rest) or len(details) == most:
            break
        most = _FRAMES if rest == _ORIGINAL else most
        details.append(rest)
    return details


# --- fatal errors of native code --------------------------------------------------------------------------------------

_FATAL = re.compile(
    r"F\d{4} \d\d:\d\d:\d\d\S* +\d+ \S+:\d+\] ."  # glog and absl
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: F \S+"  # TensorFlow
    r"|terminate called after throwing an instance of "
    r"|Fatal Python error: (?!.*at interpreter shutdown)"
    r"|(?:\S+: )?\S+:\d+: .*Assertion `.*' failed"
    r"|\[\S+:\d+\] (?:Signal: \w[\w ]* \(\d+\)|Caught signal \d+ )"  # Open MPI, stacktrace.c; UCX, debug.c
)
_MESSAGE_OF_CPP = re.compile(r"\s+what\(\):\s+\S")
_ABORTED = re.compile(r"Fatal Python error: Aborted|\[\S+\] (?:Signal: |Caught signal )")
"""What others print about a signal, whose cause native code may have printed before."""


def _last_fatal(lines: list[str]) -> LastWords | None:
    """Return the last fatal error; of a signal, what native code printed before it."""
    numbers = [number for number, line in enumerate(lines) if _FATAL.match(line)]
    causes = [number for number in numbers if not _ABORTED.match(lines[number])]
    if not numbers:
        return None
    number = (causes or numbers)[-1]
    end = number + 1
    line = lines[number].strip()
    if end < len(lines) and _MESSAGE_OF_CPP.match(lines[end]):
        line, end = lines[end].strip(), end + 1
    lost = is_lost_peer("\n".join(lines[number : number + 4]))
    return LastWords(line, number, end, lost, exception=False)


# --- messages of launchers in a box -----------------------------------------------------------------------------------

_RULE = re.compile(r"([-=*#])\1{19,}\s*$")
_OF_SSH = re.compile(r"ssh: (?:Could not resolve hostname|connect to host) ")


def _boxed(lines: list[str]) -> LastWords | None:
    """Return the first line of the message between two rules with which the output ends, as Open MPI prints it; or the
    line of ssh before it, which says more."""
    end = len(lines)
    while end and not lines[end - 1].strip():
        end -= 1
    if not end or not _RULE.match(lines[end - 1]):
        return None
    begin = next((number for number in range(end - 2, -1, -1) if _RULE.match(lines[number])), None)
    if begin is None:
        return None
    text = [line for line in lines[begin + 1 : end - 1] if line.strip()]
    if not text:
        return None
    lost = is_lost_peer("\n".join(text))
    if begin and _OF_SSH.match(lines[begin - 1]):
        return LastWords(lines[begin - 1].strip(), begin - 1, end, lost, from_launcher=True)
    return LastWords(text[0].strip(), begin, end, lost, from_launcher=True)
