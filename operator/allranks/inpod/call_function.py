"""Calls a Python function as the program of one rank: `call_function.py PAYLOAD RESULTS`.

The first line of PAYLOAD is JSON with the Python version and the import path of the sender; the rest is a pickle of
(function, args, kwargs). Each rank writes the outcome of its call to RESULTS/attempt-A/rank-R.json, and a pickle of the
value or the exception beside it. Needs only the standard library; a function that was pickled by value also needs
cloudpickle.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

RANK = ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "JAX_PROCESS_ID", "ALLRANKS_INDEX")
"""Variables with the rank; the first that is set counts. TensorFlow's workers have only their index."""


def main(argv: list[str]) -> int:
    """The exit status. An exception of the function is not caught, so that it ends the rank as in any program."""
    if len(argv) != 2:
        print("usage: call_function.py PAYLOAD RESULTS", file=sys.stderr)
        return 2
    payload, results = Path(argv[0]), Path(argv[1]) / f"attempt-{os.environ.get('ALLRANKS_ATTEMPT', '0')}"
    try:
        function, args, kwargs = load(payload)
    except Unusable as error:
        print(f"allranks: {error}", file=sys.stderr)
        return 2
    try:
        value = function(*args, **kwargs)
    except Exception as error:
        where = error.__traceback__.tb_next if error.__traceback__ else None  # the first frame is this one
        lines = traceback.format_exception(type(error), error, where)
        described = {"outcome": "raised", "type": type(error).__name__, "message": str(error)}
        store(results, {**described, "traceback": "".join(lines)}, error)
        raise
    store(results, {"outcome": "returned", "type": type(value).__name__}, value)
    return 0


class Unusable(Exception):
    """The payload cannot be used in this Python."""


def load(payload: Path) -> Any:
    """(function, args, kwargs). Raises Unusable."""
    with payload.open("rb") as file:
        header = json.loads(file.readline())
        here = "{}.{}".format(*sys.version_info[:2])
        if header["python"] != here:
            raise Unusable(
                f"the function was sent by Python {header['python']}, and the ranks run Python {here} "
                f"({sys.executable}): use the same version on both sides"
            )
        sys.path += [path for path in header["path"] if path not in sys.path]
        try:
            return pickle.load(file)
        except (ImportError, AttributeError) as error:
            raise Unusable(
                f"the function cannot be loaded: {error}. The ranks need the modules that the function and its "
                f"arguments refer to ({sys.executable})"
            ) from error


def store(directory: Path, outcome: dict[str, Any], value: Any) -> None:
    """Writes the outcome of this rank. A value that cannot be pickled does not fail a training that is done."""
    rank = next((os.environ[name] for name in RANK if os.environ.get(name, "").isdecimal()), "0")
    directory.mkdir(parents=True, exist_ok=True)
    try:
        data = dumps(value)
    except Exception as error:
        outcome = {**outcome, "unpicklable": f"{type(error).__name__}: {error}"}
    else:
        replace(directory / f"rank-{rank}.pickle", data)
    replace(directory / f"rank-{rank}.json", json.dumps(outcome).encode())


def dumps(value: Any) -> bytes:
    """Raises what pickle raises."""
    try:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return pickle.dumps(value)
    return cloudpickle.dumps(value)  # type: ignore[no-any-return, unused-ignore]


def replace(file: Path, data: bytes) -> None:
    """A reader never sees a part of the data."""
    unfinished = file.with_name(f".{file.name}.tmp")
    unfinished.write_bytes(data)
    unfinished.replace(file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
