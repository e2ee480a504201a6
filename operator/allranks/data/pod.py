"""`python -m allranks.data.pod`: one transfer in a pod of its own or in an init container, as in local runs.

The variable ALLRANKS_TRANSFER has the request as JSON. The result is the termination message of the container, as JSON.
The exit status is 0 if the transfer has ended, also if it cannot succeed. It is 1 after an error that may pass; then
the kubelet starts the container again, with a growing pause, and the transfer continues where it was.

After an init container with status 0 the ranks start, so it ends with 1 after every error, and its result says whether
the error is final. A new pod may have to fetch everything again, so the init container itself tries for minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from allranks.data.cache import Cache
from allranks.data.checkpoint import clear, copy_checkpoint, write_json
from allranks.data.errors import ChangedError, DiskFullError, TemporaryError
from allranks.data.fetch import InputSpec, Result, fetch, look_up, pin
from allranks.data.tries import Tries
from allranks.data.upload import check_destination, upload
from allranks.errors import DataError
from allranks.text import size as text_size

REQUEST = "ALLRANKS_TRANSFER"
RESULT = "ALLRANKS_TRANSFER_RESULT"
"""Variable with the path of the file for the result."""
TERMINATION_LOG = "/dev/termination-log"
PASSING = (TemporaryError, ChangedError, DiskFullError)
"""Errors after which another try may succeed."""
FOR_RANKS = "fetch-for-ranks"
"""The action of an init container."""
LOG_SECONDS = 10.0
PATIENCE_SECONDS = 300.0
"""An init container tries for this long after the first error."""
PAUSE_SECONDS = 20.0
_LONGEST_MESSAGE = 2000
"""Characters of an error. The kubelet keeps 4096 bytes of a termination message."""


class Log:
    """Prints the progress of a fetch."""

    def __init__(self) -> None:
        self._bytes = self._total = 0
        self._printed = time.monotonic()

    def resolved(self, revision: str, total: int) -> None:
        self._total = total
        print(f"revision {revision}, {text_size(total)}", flush=True)

    def added(self, count: int) -> None:
        self._bytes += count
        if time.monotonic() - self._printed >= LOG_SECONDS:
            self._printed = time.monotonic()
            print(f"{text_size(self._bytes)} of {text_size(self._total)}", flush=True)


def run(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result. Raise DataError."""
    acts = {"fetch": _fetch, FOR_RANKS: _fetch, "resolve": _resolve, "check": _check, "upload": _upload}
    return acts[request["act"]](request)


def _resolve(request: Mapping[str, Any]) -> dict[str, Any]:
    if request.get("pin"):
        listing = pin(InputSpec.from_request(request), _tries(request))
    else:
        listing = look_up(InputSpec.from_request(request), _tries(request))
    return {"fetched": {"revision": listing.revision, "bytes": listing.size}}


def _check(request: Mapping[str, Any]) -> dict[str, Any]:
    return {"checked": check_destination(request["to"])}


def _fetch(request: Mapping[str, Any]) -> dict[str, Any]:
    """Fetch an input into the cache.

    Of the request: `used` has the keys of entries that jobs may read, or None if the operator does not know. Entries
    used after `since` (seconds since 1970) stay as well, because `used` is as old."""
    used = request.get("used")

    def may_evict(key: str, last_use: float) -> bool:
        return used is not None and key not in used and last_use < request["since"]

    where = f" in {request['where']}" if "where" in request else ""
    cache = Cache(Path(request["cache"]), request["limit"], may_evict, f"make room{where}")
    spec = InputSpec.from_request(request)
    tries = _tries(request)

    def act() -> Result:
        return fetch(spec, cache, Log(), tries=tries)

    result = patiently(act) if request["act"] == FOR_RANKS else act()
    entry = asdict(result.entry)
    return {"fetched": {name: entry[name] for name in ("revision", "sha256", "bytes")} | {"cached": result.cached}}


def patiently(
    act: Callable[[], Result],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Call `act` again after a lost connection, and return its result. Raise DataError, at once for a full disk."""
    since: float | None = None
    while True:
        try:
            return act()
        except TemporaryError as error:
            since = clock() if since is None else since
            if clock() - since + PAUSE_SECONDS > PATIENCE_SECONDS:
                raise
            print(f"{error}; another try follows in {PAUSE_SECONDS:.0f} s", flush=True)
        sleep(PAUSE_SECONDS)


def _upload(request: Mapping[str, Any]) -> dict[str, Any]:
    """Upload once: a pod that is created again, because its predecessor was deleted before its result was read,
    finds the result beside the directory. With a `step`, the directory gets a copy of that checkpoint first."""
    directory = Path(request["directory"])
    note, journal = (directory.with_name(f"{directory.name}.{kind}") for kind in ("done.json", "jsonl"))
    with contextlib.suppress(OSError, ValueError, KeyError):
        before = json.loads(note.read_text(encoding="utf-8"))
        if before["to"] == request["to"] and before.get("mark") == request.get("mark"):
            return {"uploaded": before["uploaded"]}
    if "step" in request:
        copy_checkpoint(Path(request["source"]), request["step"], request["mark"], directory)
    done = upload(directory, request["to"], journal, request["provenance"], tries=_tries(request))
    uploaded = {"bytes": done.bytes, "files": done.files}
    try:
        write_json(note, {"to": request["to"], "mark": request.get("mark"), "uploaded": uploaded})
    except OSError as error:
        raise TemporaryError(f"{note} cannot be written: {error.strerror or error}") from error
    clear(directory)
    with contextlib.suppress(OSError):
        journal.unlink()
    return {"uploaded": uploaded}


def _tries(request: Mapping[str, Any]) -> Tries:
    """Return tries that print once what is tried again: the user sees no other sign of it for minutes."""
    return Tries(lambda text: print(_shown(text, request), flush=True))


def _shown(text: str, request: Mapping[str, Any]) -> str:
    """Return the text with the address that the user wrote: a claim is a directory of this pod."""
    return text.replace(str(request.get("to")), str(request["shown"])) if "shown" in request else text


def main(environ: Mapping[str, str]) -> int:
    request = json.loads(environ[REQUEST])
    status = 0
    try:
        result = run(request)
    except DataError as error:
        text = _shown(str(error), request)
        passes = isinstance(error, PASSING)
        result, status = {"error": text[:_LONGEST_MESSAGE]}, int(passes)
        if request["act"] == FOR_RANKS:
            result, status = result | {"final": not passes}, 1
    except OSError as error:
        address = request.get("uri") or request.get("shown") or request.get("to")
        result, status = {"error": f"{address}: {error}"[:_LONGEST_MESSAGE]}, 1
        if request["act"] == FOR_RANKS:
            result["final"] = False
    text = json.dumps(result | {key: request[key] for key in ("step", "mark") if key in request})
    print(text, flush=True)
    file = Path(environ.get(RESULT) or TERMINATION_LOG)
    if RESULT in environ or file.exists():  # a kubelet makes it
        file.write_text(text, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main(os.environ))
