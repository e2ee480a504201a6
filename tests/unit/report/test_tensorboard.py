"""Event files of earlier attempts, as TensorBoard's format has them, and a writer as far as the helper uses it."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from allranks.report.tensorboard import records, skip_repeated_steps


class Event:
    """An event with the values of some tags. A record has them as JSON."""

    def __init__(self, step: int = 0, tags: tuple[str, ...] = (), session_log: bool = False) -> None:
        self.step = step
        self.summary = SimpleNamespace(value=[SimpleNamespace(tag=tag) for tag in tags])
        self.session_log = session_log

    def HasField(self, name: str) -> bool:
        return name == "session_log" if self.session_log else name == "summary"

    @staticmethod
    def FromString(record: bytes) -> Event:
        return Event(*json.loads(record))


def write(path: Path, *contents: object, cut: int = 0) -> None:
    bodies = [json.dumps(content).encode() for content in contents]
    data = b"".join(struct.pack("<QI", len(body), 0) + body + b"\0\0\0\0" for body in bodies)
    path.write_bytes(data[: len(data) - cut])


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A writer of the second attempt. The first has written `loss` until step 3, and `accuracy` until step 2."""
    monkeypatch.setenv("ALLRANKS_ATTEMPT", "1")
    write(tmp_path / "events.out.tfevents.0000000001.host.7.0", [3, ["loss"]], [2, ["accuracy"]], [9, ["loss"]], cut=1)
    write(tmp_path / f"events.out.tfevents.{int(time.time()) + 9}.host.8.0", [8, ["loss"]])  # another rank
    written: list[Any] = []

    class FileWriter:
        def get_logdir(self) -> str:
            return str(tmp_path)

        def add_event(self, event: Event, step: int | None = None) -> None:
            written.append((step, [value.tag for value in event.summary.value]))

    skip_repeated_steps(SimpleNamespace(FileWriter=FileWriter, event_pb2=SimpleNamespace(Event=Event)))
    return SimpleNamespace(file=FileWriter(), written=written)


def test_steps_that_an_earlier_attempt_has_written_are_not_written_again(writer: Any):
    for step in (2, 3, 4):
        writer.file.add_event(Event(step, ("loss", "accuracy")), step)
    assert writer.written == [(3, ["accuracy"]), (4, ["loss", "accuracy"])]


def test_values_without_a_step_are_written(writer: Any):
    writer.file.add_event(Event(0, ("configuration",)))
    writer.file.add_event(Event(0, ("loss",)), 0)
    assert len(writer.written) == 2


def test_a_program_that_purges_steps_itself_writes_all(writer: Any):
    writer.file.add_event(Event(session_log=True))
    writer.file.add_event(Event(2, ("loss",)), 2)
    assert (2, ["loss"]) in writer.written


def test_the_record_that_a_killed_writer_has_not_completed_is_left_out(tmp_path: Path):
    write(tmp_path / "file", "first", "second", cut=1)
    assert list(records(tmp_path / "file")) == [b'"first"']
