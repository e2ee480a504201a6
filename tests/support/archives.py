"""An archive with jobs and logs, written as the archiver writes it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from allranks.archive.layout import LogName
from allranks.archive.store import open_store
from allranks.archive.tail import Tail
from allranks.archive.writer import Writer, folder_of
from allranks.kube.pod_logs import Line


class WrittenArchive:
    """`url`: a directory that exists, or an object store."""

    def __init__(self, url: str | Path) -> None:
        self.url = str(url)
        self._writer = Writer(open_store(self.url))

    def job(self, job: dict[str, Any], *events: dict[str, Any]) -> None:
        self._writer.save(job, events)

    def log(self, job: dict[str, Any], log: LogName, *texts: str, second: int = 0, limit: int = 1 << 20) -> None:
        """Lines of one second each, from `second` on."""
        with TemporaryDirectory() as folder:
            tail = Tail(Path(folder, "spool"), limit)
            tail.add(Line(stamp(second + number), text.encode()) for number, text in enumerate(texts))
            self._writer.save_log(folder_of(job), log, tail.packed([]))
            tail.close()


def stamp(second: int) -> bytes:
    return f"2026-03-04T10:{second // 60:02}:{second % 60:02}.000000000Z".encode()
