"""`python -m allranks.data.program fetch|resolve|check|upload`: one transfer as a process, which can be ended.

Standard input has the request as JSON. Standard output has one JSON object per line: progress, what is tried again, and
the result or an error at the end. The exit status is 0, or 1 after an error.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from allranks.data.cache import Cache
from allranks.data.checkpoint import clear, copy_checkpoint
from allranks.data.fetch import InputSpec, fetch, look_up
from allranks.data.tries import Tries
from allranks.data.upload import Progress, check_destination, upload
from allranks.errors import DataError
from allranks.parent_death import end_with_parent

INTERVAL_SECONDS = 0.5
"""Minimum time between two lines of progress."""


class Lines:
    """Writes progress as JSON lines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = self._total = 0
        self._revision = ""
        self._written = 0.0

    def resolved(self, revision: str, total: int) -> None:
        with self._lock:
            self._revision, self._total = revision, total
            self._write()

    def added(self, count: int) -> None:
        with self._lock:
            self._bytes += count
            if time.monotonic() - self._written >= INTERVAL_SECONDS:
                self._write()

    def uploaded(self, progress: Progress) -> None:
        if time.monotonic() - self._written >= INTERVAL_SECONDS:
            self._written = time.monotonic()
            write(asdict(progress))

    def _write(self) -> None:
        self._written = time.monotonic()
        write({"revision": self._revision, "bytes": self._bytes, "total": self._total})


def write(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def main(argv: list[str]) -> int:
    end_with_parent()
    request = json.load(sys.stdin)
    lines, tries = Lines(), Tries(lambda text: write({"retrying": text}))
    try:
        if argv == ["fetch"]:
            cache = Cache(Path(request["cache"]), request["limit"])
            spec = InputSpec.from_request(request)
            result = fetch(spec, cache, lines, tries=tries)
            write({"entry": asdict(result.entry), "cached": result.cached})
        elif argv == ["resolve"]:
            listing = look_up(InputSpec.from_request(request), tries)
            write({"resolved": {"revision": listing.revision, "bytes": listing.size}})
        elif argv == ["check"]:
            write({"checked": check_destination(request["to"])})
        elif argv == ["upload"]:
            directory = Path(request["directory"])
            if "step" in request:
                copy_checkpoint(Path(request["source"]), request["step"], request["mark"], directory)
            journal, about = Path(request["journal"]), request["provenance"]
            done = upload(directory, request["to"], journal, about, lines.uploaded, tries=tries)
            if "step" in request:
                clear(directory)  # a copy
            write({"uploaded": asdict(done)})
        else:
            print("usage: python -m allranks.data.program fetch|resolve|check|upload < REQUEST", file=sys.stderr)
            return 2
    except DataError as error:
        write({"error": str(error)})
        return 1
    except Exception as error:
        write({"error": f"{request.get('uri') or request.get('to')}: {type(error).__name__}: {error}"})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
