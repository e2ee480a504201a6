"""Says where the main thread of a program is, in a few words: its own line, what it does there, and its exception.

The operator and `allranks stacks` compare the positions of ranks. The whole stacks are in the log.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

MOST_CHARACTERS = 200
MOST_CALLERS, CALLER_CHARACTERS = 12, 60
_WRAPPERS = frozenset(
    {"wrapper", "inner", "inner_wrapper", "_fn", "decorate_context", "new_func", "_call_impl", "_wrapped_call_impl"}
)
"""Names of functions of decorators, which say nothing about the call."""
_LIBRARY = f"{Path(threading.__file__).parent}/"
_REPORT_LIBRARY = f"{Path(__file__).resolve().parents[1]}/"
_COLLECTIVES = (
    "/torch/distributed/distributed_c10d.py",
    "/torch/distributed/utils.py",
    "/torch/distributed/nn/",
    "/horovod/",
    "/jax/experimental/multihost_utils.py",
    "/deepspeed/comm/",
    "/ray/util/collective/",
)
"""Files whose functions wait for other ranks."""
_COLLECTIVE_IF_INNERMOST = "/torch/nn/parallel/distributed.py"
"""It calls collectives of native code, and also the model."""
_LOADERS = ("/torch/utils/data/dataloader.py", "/tensorflow/python/data/ops/iterator_ops.py")
_DEBUGGERS = ("/bdb.py", "/pdb.py")


def position() -> dict[str, Any]:
    """Return the position of the main thread, without empty values. See `allranks.core.facts.rank_reports.Position`.

    `call` is `ended` when the main thread has ended and other threads keep the process.
    """
    thread = threading.main_thread()
    main = thread.ident
    frame = sys._current_frames().get(main) if main is not None else None
    ended = frame is not None and frame.f_code.co_name == "_shutdown" and frame.f_code.co_filename == threading.__file__
    if ended:
        raising = exception(getattr(sys, "last_value", None))
        return without_empty({"call": "ended", "raising": raising})
    waits = in_the_kernel(Path(f"/proc/self/task/{thread.native_id}"))
    program = without_empty(place(frame, not waits.get("stuck")))
    return without_empty({**waits, **program, "raising": exception(raised_in(main))})


def place(frame: FrameType | None, read_source: bool = True) -> dict[str, Any]:
    """Return the innermost frame of the program, what it calls there, and the callers.

    `read_source`: whether the files of the program may be read. On a file system that does not answer they may not.
    """
    frames = list(frames_from(frame))
    program = [level for level in frames if is_program(level.f_code.co_filename)]
    if not program:
        return {}
    depth, code = frames.index(program[0]), program[0].f_code
    below = frames[:depth]
    collective = next((number for number in reversed(range(depth)) if is_collective(below, number)), None)
    names = [qualified(level.f_code) for level in below]
    if collective is not None:
        call, between = names[collective], names[collective + 1 :]
    else:
        call = next((name for name in reversed(names) if name), "") or (called_at(program[0]) if read_source else "")
        between = names
    callers = [name for name in between if name] + [f"{level.f_code.co_name} {line_of(level)}" for level in program[1:]]
    return {
        "where": line_of(program[0])[-MOST_CHARACTERS:],
        "function": "" if code.co_name.startswith("<") else code.co_name[:MOST_CHARACTERS],
        "call": call[:MOST_CHARACTERS],
        "collective": collective is not None,
        "activity": activity_of(frames, depth, call),
        "callers": [caller[-CALLER_CHARACTERS:] for caller in callers[:MOST_CALLERS]],
    }


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of a stack, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_program(file: str) -> bool:
    """Return whether a file belongs to the program, and not to Python, an installed package or this library."""
    if file.startswith("<") or "site-packages" in file or "dist-packages" in file:
        return False
    return not file.startswith((_REPORT_LIBRARY, _LIBRARY))


def is_collective(frames: list[FrameType], number: int) -> bool:
    file, name = frames[number].f_code.co_filename, name_of(frames[number].f_code)
    if not name:
        return False
    return any(part in file for part in _COLLECTIVES) or (number == 0 and file.endswith(_COLLECTIVE_IF_INNERMOST))


def activity_of(frames: list[FrameType], depth: int, call: str) -> str:
    """Return `debugger`, `input`, `data`, or an empty text. `depth`: the number of frames below the program."""
    if call == "wait_for_client" or any(level.f_code.co_filename.endswith(_DEBUGGERS) for level in frames[:depth]):
        return "debugger"
    if call == "input" and depth == 0:
        return "input"
    return "data" if any(is_loader(level.f_code) for level in frames) else ""


def is_loader(code: CodeType) -> bool:
    """Return whether a function gets the next batch: of a library, or `allranks.report.loading`."""
    if code.co_filename.endswith(_LOADERS):
        return True
    return code.co_name == "loading" and code.co_filename.startswith(_REPORT_LIBRARY)


def name_of(code: CodeType) -> str:
    """Return the name of a function of a library; empty if it says nothing."""
    return "" if code.co_name in _WRAPPERS or code.co_name.startswith("<") else code.co_name


def qualified(code: CodeType) -> str:
    """Return the name of a function, with its module if that is one of Python: `subprocess.wait` waits for no rank."""
    name = name_of(code)
    if not name or not code.co_filename.startswith(_LIBRARY):
        return name
    return f"{Path(code.co_filename.removeprefix(_LIBRARY)).parts[0].removesuffix('.py')}.{name}"


def line_of(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def called_at(frame: FrameType) -> str:
    """Return the name of the native function that a frame calls; empty before Python 3.11, which does not tell it."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None:
        return ""
    first, last, begin, end = next(islice(positions(), frame.f_lasti // 2, None), (None, None, None, None))
    if first is None or first != last or begin is None:
        return ""
    line = linecache.getline(frame.f_code.co_filename, first).encode()
    with suppress(SyntaxError, ValueError):
        call = ast.parse(line[begin:end].decode(), mode="eval").body
        if isinstance(call, ast.Call):
            return getattr(call.func, "attr", "") or getattr(call.func, "id", "")
    return ""


_CALLS = {
    "x86_64": {"read": (0, 17, 19), "write": (1, 18, 20, 74, 75, 277)},
    "aarch64": {"read": (63, 67, 65), "write": (64, 68, 66, 82, 83, 84)},
}
"""Numbers of read, pread64 and readv; of write, pwrite64, writev, fsync, fdatasync and sync_file_range."""


def in_the_kernel(task: Path) -> dict[str, Any]:
    """Return what a thread waits for in the kernel: `activity` (`read`, `write` or `input`), `file`, and `stuck` if
    the kernel itself waits for a device. Empty where the kernel does not tell it."""
    doing: dict[str, Any] = {}
    with suppress(OSError, ValueError, IndexError):
        doing["stuck"] = (task / "stat").read_text().rpartition(")")[2].split()[0] == "D"
        number, descriptor = (int(word, 0) for word in (task / "syscall").read_text().split()[:2])
        calls = _CALLS.get(os.uname().machine, {})
        activity = next((activity for activity, numbers in calls.items() if number in numbers), "")
        if activity == "read" and descriptor == 0:
            doing["activity"] = "input"
        elif activity and (file := str(Path(f"/proc/self/fd/{descriptor}").readlink())).startswith("/"):
            doing.update(activity=activity, file=file[-MOST_CHARACTERS:])
    return without_empty(doing)


def raised_in(thread: int | None) -> Any:
    """Return the exception that a thread handles, also while it waits in a `finally`; None before Python 3.10."""
    current = getattr(sys, "_current_exceptions", None)
    handled = current().get(thread) if current is not None else None
    return handled[1] if isinstance(handled, tuple) else handled


def exception(value: Any) -> str:
    if not isinstance(value, BaseException):
        return ""
    name = type(value).__name__
    try:
        text = str(value)
    except Exception:
        return name
    line = "".join(letter if letter.isprintable() else " " for letter in text[:MOST_CHARACTERS]).strip()
    return f"{name}: {line}"[:MOST_CHARACTERS] if line else name


def without_empty(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}
