"""Calls a Python function as the program of one rank: `call_function.py PAYLOAD RESULTS`, or `PAYLOAD --report`.

The first line of PAYLOAD is JSON with the Python version and the import path of the sender; the rest is a pickle of
(function, args, kwargs). On one machine each rank writes the outcome of its call to RESULTS/attempt-A/rank-R.json, and
a pickle of the value or the exception beside it. On a cluster it sends both to the operator. Needs only the standard
library; a function that was pickled by value also needs cloudpickle.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import linecache
import os
import pickle
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any, Protocol

RANK = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "JAX_PROCESS_ID", "ALLRANKS_INDEX")
"""Variables with the rank; the first that is set counts. TensorFlow's workers have only their index."""
UNUSABLE = 78
"""Exit status if the function cannot be loaded in this Python (EX_CONFIG of sysexits.h). Another try does not help."""
VALUE_BYTES, FURTHER_VALUE_BYTES, VALUE_RANKS = 1_048_576, 65_536, 64
"""Limits as in allranks.telemetry.outcomes: value of rank 0, value of a further rank, number of ranks."""
ERROR_BYTES = 131_072
"""Limit of an exception with its traceback, as in allranks.telemetry.outcomes."""
TRACEBACK_CHARACTERS = 16_384
KEY_FILE = "FUNCTION_KEY_FILE"
"""Variable with the file of the submission's key. Operators refuse names with ALLRANKS_ that they do not know."""
SIGNATURE = b', "mac": "%s"}'
"""End of the first line of what is sent, with an HMAC-SHA256 in hexadecimal digits."""
SIGNATURE_BYTES = len(SIGNATURE) + 64
VALUE_SECONDS, ERROR_SECONDS = 600.0, 10.0
"""Longest time for the operator. An exception must not delay the end of its rank, which the others wait for."""


class Sink(Protocol):
    """Where the outcome of the call goes. `described` is JSON; `value` is what was returned or raised."""

    def store(self, described: dict[str, Any], value: Any) -> None: ...


def main(argv: list[str]) -> int:
    """Return the exit status. An exception of the function is not caught, so that it ends the rank as in any
    program."""
    parser = argparse.ArgumentParser(prog="call_function.py", allow_abbrev=False)
    parser.add_argument("payload", type=Path)
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("--report", action="store_true", help="send the outcome to the operator")
    parser.add_argument("--every-rank", action="store_true", help="not only what rank 0 returns")
    parser.add_argument("--output", type=Path, help="directory for values that are too large, without checkpoints")
    parser.add_argument("--keep", action="store_true", help="write values of every size to that directory")
    options = parser.parse_args(argv)
    if options.report == (options.results is not None):
        parser.error("specify either RESULTS or --report")
    if options.keep and options.output is None:
        parser.error("--keep needs --output")
    sink: Sink = (
        Reported(options.every_rank, options.output, options.keep) if options.report else Files(options.results)
    )
    try:
        function, args, kwargs = load(options.payload)
    except Unusable as error:
        print(f"allranks: {error}", file=sys.stderr)
        if options.report:
            sink.store({"outcome": "unusable", "message": str(error)}, None)
        return UNUSABLE
    try:
        value = function(*args, **kwargs)
    except Exception as error:
        where = error.__traceback__.tb_next if error.__traceback__ else None  # the first frame is this one
        lines = traceback.format_exception(type(error), error, where)
        described = {"outcome": "raised", "type": type(error).__name__[:200], "message": str(error)}
        sink.store({**described, "traceback": "".join(lines)}, error)
        raise
    sink.store({"outcome": "returned", "type": type(value).__name__}, value)
    return 0


def without_launcher(program: list[str]) -> list[str]:
    """Return the command of a pod. If it starts a function that another version of Python sent, the call without its
    launcher: it says so and ends at once, where a launcher would first wait for the other pods.

    The launcher is kept unless it certainly runs this Python.
    """
    place = next((place for place, word in enumerate(program) if Path(word).name == "call_function.py"), 0)
    starters = [path for path in map(shutil.which, program[:place]) if path]
    try:
        with open(program[place + 1], "rb") as file:
            same = json.loads(file.readline())["python"] == PYTHON
        if same or not starters or not all(map(is_this_python, starters)):
            return program
    except (OSError, ValueError, LookupError, TypeError):  # the call itself finds out what is wrong
        return program
    return [sys.executable, *program[place:]]


def is_this_python(starter: str) -> bool:
    """Return whether a program is this interpreter, or a script for it. Raise OSError, IndexError."""
    with open(starter, "rb") as file:
        line = file.readline(1024)
    if line.startswith(b"#!"):
        starter = os.fsdecode(line[2:].split()[0])
    return os.path.realpath(starter) == os.path.realpath(sys.executable)


PYTHON = "{}.{}".format(*sys.version_info[:2])


class Unusable(Exception):
    """The payload cannot be used in this Python."""


def load(payload: Path) -> Any:
    """Return (function, args, kwargs). Raise Unusable."""
    with payload.open("rb") as file:
        header = json.loads(file.readline())
        if (sender := header["python"]) != PYTHON:
            raise Unusable(
                f"the function was sent by Python {sender}, and the ranks run Python {PYTHON} ({sys.executable}): use "
                f"the same version on both sides, either an image with Python {sender}, or Python {PYTHON} to send it"
            )
        for name, text in header.get("sources", {}).items():
            if not Path(name).exists():  # a traceback shows its lines all the same
                linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        if (sent := payload.parent / "python").is_dir():
            sys.path.insert(0, str(sent))  # the cloudpickle of the sender: another one may not read its pickles
        sys.path += [path for path in (*header["path"], str(Path.cwd())) if path not in sys.path]
        try:
            return pickle.load(file)
        except (ImportError, AttributeError) as error:
            raise Unusable(
                f"the function cannot be loaded: {error}. The ranks need the modules that the function and its "
                f"arguments refer to ({sys.executable})"
            ) from error


def rank_here() -> int:
    return int(next((os.environ[name] for name in RANK if os.environ.get(name, "").isdecimal()), "0"))


class Files:
    """Writes the outcome to files of this machine."""

    def __init__(self, results: Path) -> None:
        self._directory = results / f"attempt-{os.environ.get('ALLRANKS_ATTEMPT', '0')}"

    def store(self, described: dict[str, Any], value: Any) -> None:
        rank = rank_here()
        self._directory.mkdir(parents=True, exist_ok=True)
        described, data = pickled(described, value)
        if data:
            replace(self._directory / f"rank-{rank}.pickle", data)
        replace(self._directory / f"rank-{rank}.json", json.dumps(described).encode())


class Reported:
    """Sends the outcome to the operator: a line of JSON, then the pickle."""

    def __init__(self, every_rank: bool, output: Path | None, keep: bool) -> None:
        self._every_rank, self._output, self._keep = every_rank, output, keep

    def store(self, described: dict[str, Any], value: Any) -> None:
        from send_outcome import send  # type: ignore[import-not-found]  # in the same directory

        rank = rank_here()
        if described["outcome"] == "returned":
            if rank and not self._every_rank:
                return
            kind, seconds, content = "returned", VALUE_SECONDS, self._value(described, value, rank)
        else:
            kind, seconds, content = "raised", ERROR_SECONDS, self._error(described, value)
        if problem := send(signed(content, kind, rank), kind, rank, seconds):
            print(f"allranks: what rank {rank} {kind} could not be sent: {problem}", file=sys.stderr)

    def _value(self, described: dict[str, Any], value: Any, rank: int) -> bytes:
        from plain_value import encoded  # type: ignore[import-not-found]  # in the same directory

        described, data = pickled(described, value)
        most = FURTHER_VALUE_BYTES if rank else VALUE_BYTES
        kept = self._in_output(rank, data) if self._keep and data else {}
        # Without the variable an older client, which expects a pickle, submitted the job. JSON is longer than a pickle.
        plain: bytes | None = encoded(value) if KEY_FILE in os.environ and 0 < len(data) <= most else None
        contents = [line({**described, "format": "plain"}) + plain] if plain is not None else []
        for content in (*contents, line(described) + data):
            if len(content) <= most - SIGNATURE_BYTES:
                return content
        if not kept:
            checkpoints = os.environ.get("ALLRANKS_CHECKPOINT_DIR")
            kept = written(Path(checkpoints), rank, data) if checkpoints else self._in_output(rank, data)
        return line({**described, "bytes": len(data), "most": most, **kept})

    def _in_output(self, rank: int, data: bytes) -> dict[str, Any]:
        if self._output is None:
            return {}
        kept = written(self._output, rank, data)
        if "file" in kept:
            kept["inOutput"] = str(Path(kept["file"]).relative_to(self._output))
        return kept

    def _error(self, described: dict[str, Any], error: Any) -> bytes:
        text = described.get("traceback", "")
        if len(text) > TRACEBACK_CHARACTERS:  # what was called last, and the exception, are at the end
            described["traceback"] = "...\n" + text[-TRACEBACK_CHARACTERS:]
        described["message"] = described["message"][:4096]
        described, data = (described, b"") if error is None else pickled(described, error)
        content = line(described) + data
        return content if len(content) <= ERROR_BYTES - SIGNATURE_BYTES else line(described)


def signed(content: bytes, kind: str, rank: int) -> bytes:
    """Add the signature to the first line; return the content as it is if the job has no key."""
    try:
        key = Path(os.environ[KEY_FILE]).read_bytes()
    except (KeyError, OSError):
        return content
    job, attempt = os.environ.get("ALLRANKS_JOB_UID", ""), os.environ.get("ALLRANKS_ATTEMPT", "0")
    head, _, data = content.partition(b"\n")
    return head[:-1] + SIGNATURE % mac(key, content, job, attempt, kind, rank) + b"\n" + data


def mac(key: bytes, content: bytes, job: str, attempt: str, kind: str, rank: int) -> bytes:
    """Return the HMAC of what a rank sent. `job`: its UID."""
    place = json.dumps([job, attempt, kind, rank]).encode()
    return hmac.new(key, place + b"\n" + content, "sha256").hexdigest().encode()


def written(folder: Path, rank: int, data: bytes) -> dict[str, Any]:
    """Write a value to a file of the job in this folder. Return the description of the file, or of why that failed."""
    job, uid = os.environ.get("ALLRANKS_JOB", "job"), os.environ.get("ALLRANKS_JOB_UID", "")[:8]
    attempt = os.environ.get("ALLRANKS_ATTEMPT", "0")
    file = Path(folder, "results", f"{job}-{uid}", f"attempt-{attempt}", f"rank-{rank}.pickle")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace(file, data)
    except OSError as error:
        return {"notWritten": f"{file}: {error.strerror or error}"}
    return {"file": str(file), "sha256": hashlib.sha256(data).hexdigest()}


def pickled(described: dict[str, Any], value: Any) -> tuple[dict[str, Any], bytes]:
    """Return the description and the pickle. A value that cannot be pickled does not fail a training that is done."""
    try:
        return described, dumps(value)
    except Exception as error:
        return {**described, "unpicklable": f"{type(error).__name__}: {error}"[:1000]}, b""


def dumps(value: Any) -> bytes:
    """Raise what pickle raises."""
    try:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return pickle.dumps(value)
    return cloudpickle.dumps(value)  # type: ignore[no-any-return, unused-ignore]


def line(described: dict[str, Any]) -> bytes:
    # At most 4 bytes for a character: the bounds above are in characters.
    return json.dumps(described, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def replace(file: Path, data: bytes) -> None:
    """Replace a file as a whole: a reader never sees a part of the data."""
    unfinished = file.with_name(f".{file.name}.tmp")
    unfinished.write_bytes(data)
    unfinished.replace(file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
