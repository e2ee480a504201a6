"""Downloads the files of a listing into a directory: several at once, with resumption and checksums.

`journal.jsonl` beside the files has one line for each file that is complete, and for each position up to which a file
is certainly on the disk. A download that was killed, or whose machine lost power, continues from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from allranks.data.cache import sync_directory
from allranks.data.errors import TemporaryError, explain
from allranks.data.source import Listing, RemoteFile, Source
from allranks.data.tries import Tries
from allranks.errors import DataError

AT_ONCE = 8
SYNC_BYTES = 64 << 20
"""A killed download loses at most this much of each file."""
JOURNAL = "journal.jsonl"


class Download:
    """One download. `add` is called with the number of new bytes, from several threads."""

    def __init__(
        self,
        source: Source,
        listing: Listing,
        directory: Path,
        add: Callable[[int], None] = lambda _: None,
        tries: Tries | None = None,
    ) -> None:
        """Prepare a download. `directory` has `files/` and the journal."""
        self._source, self._listing, self._directory = source, listing, directory
        self._add, self._tries = add, tries or Tries()
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def run(self) -> dict[str, str]:
        """Download all files. Return name -> SHA-256. Raise DataError."""
        done, offsets = self._read_journal()
        try:
            with open(self._directory / JOURNAL, "a", encoding="utf-8") as self._journal:
                with ThreadPoolExecutor(AT_ONCE) as pool:
                    jobs = {
                        file.name: pool.submit(self._file, file, done.get(file.name), offsets.get(file.name, 0))
                        for file in self._listing.files
                    }
                    wait(jobs.values(), return_when=FIRST_EXCEPTION)
                    failed = [job.exception() for job in jobs.values() if job.done() and job.exception()]
                    if failed:
                        self._stop.set()
                        for job in jobs.values():
                            job.cancel()
                        raise explain(failed[0] or RuntimeError(), self._source.uri)
                return {name: job.result() for name, job in jobs.items()}
        except OSError as error:
            raise explain(error, self._source.uri) from error

    def _file(self, file: RemoteFile, recorded: str | None, offset: int) -> str:
        path = self._directory / "files" / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if recorded and path.is_file() and (file.size is None or path.stat().st_size == file.size):
            self._add(path.stat().st_size)
            return recorded
        digest = hashlib.sha256()
        # Without a buffer, so that what was written is recorded when the disk is full.
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0) as output:
            kept = min(offset, os.fstat(output.fileno()).st_size)
            output.truncate(kept)
            while data := output.read(1 << 20):
                digest.update(data)
            self._add(kept)
            self._receive(file, output, digest, kept)
            os.fsync(output.fileno())
        sha256 = digest.hexdigest()
        if file.sha256 and sha256 != file.sha256:
            path.unlink()
            raise DataError(
                f"{self._source.uri}: the SHA-256 of {file.name} is {sha256}, and must be {file.sha256}: the data was "
                "damaged on the way, or the source is damaged"
            )
        sync_directory(path.parent)
        self._note({"name": file.name, "tag": file.tag, "size": file.size, "sha256": sha256})
        return sha256

    def _receive(self, file: RemoteFile, output: Any, digest: Any, position: int) -> None:
        """Append from `position` to the end, with a new try after each lost connection."""
        synced, failures = position, 0
        while file.size is None or position < file.size:
            before, moved = position, self._tries.clock()
            try:
                for data in self._source.read(self._listing, file, position):
                    if self._stop.is_set():
                        raise DataError(f"{self._source.uri}: another file cannot be fetched")
                    digest.update(data)
                    self._add(len(data))
                    left = memoryview(data)
                    while left:
                        written = output.write(left)
                        left, position = left[written:], position + written
                    moved = self._tries.clock()
                    if position - synced >= SYNC_BYTES:
                        synced = self._sync(file, output, position)
                if file.size is None or position >= file.size:
                    break
                raise TemporaryError(f"{self._source.uri}: {file.name} ends after {position} of {file.size} bytes")
            except Exception as error:
                reason = explain(error, self._source.uri)
                failures = 0 if position > before else failures + 1
                try:
                    self._tries.pause(reason, failures, self._tries.clock() - moved)
                except DataError:
                    with contextlib.suppress(OSError):  # the disk is full
                        self._sync(file, output, position)
                    raise
        if file.size is not None and position > file.size:
            raise DataError(f"{self._source.uri}: {file.name} has more than {file.size} bytes")

    def _sync(self, file: RemoteFile, output: Any, position: int) -> int:
        os.fsync(output.fileno())
        self._note({"name": file.name, "tag": file.tag, "size": file.size, "offset": position})
        return position

    def _note(self, line: dict[str, Any]) -> None:
        with self._lock:
            self._journal.write(json.dumps(line) + "\n")
            self._journal.flush()

    def _read_journal(self) -> tuple[dict[str, str], dict[str, int]]:
        """Return (name -> sum of complete files, name -> position in others), of files that are the same at the
        source."""
        done: dict[str, str] = {}
        offsets: dict[str, int] = {}
        current = {file.name: (file.tag, file.size) for file in self._listing.files}
        path = self._directory / JOURNAL
        for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                line = json.loads(text)
                name, version = line["name"], (line["tag"], line["size"])
            except (ValueError, KeyError, TypeError):
                continue  # the last line of a process that was killed
            if current.get(name) != version:
                continue
            if "sha256" in line:
                done[name] = line["sha256"]
            else:
                offsets[name] = line["offset"]
        return done, offsets
