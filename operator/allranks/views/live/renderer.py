"""Shows a running job: log lines of all ranks and, on a terminal, a live summary below them.

A thread draws. The event loop only hands over bytes and states, so that a slow terminal, a stopped pager or a rank that
floods its output never blocks the job.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from allranks.api.status import FINISHED, Status
from allranks.control_sequences import clean, clean_text
from allranks.core.facts.model import Event, Pod
from allranks.core.facts.naming import name_in_attempt, replica_key
from allranks.frameworks.hints import LogReader
from allranks.views.format import progress as progress_text
from allranks.views.format.duration import elapsed
from allranks.views.format.log_lines import Fold, Source, label, prefixed, styled
from allranks.views.live.summary import Summary, open_screen

DRAW_SECONDS = 0.1
COUNT_SECONDS = 1.0
"""Minimum interval between plain lines with the number of running pods, while the phase does not change."""
BAR_SECONDS = 10.0
"""Interval between states of a progress bar, without a terminal."""
PROGRESS_SECONDS = 10.0
"""Minimum interval between progress lines, without a terminal; the last progress is always printed."""
QUIET_EVENTS = frozenset({"PodsCreated", "Succeeded", "Restarting"})
"""Events that repeat the status line."""


class _Item(NamedTuple):
    """Something to print: a message, or a line of a container."""

    place: int
    label: str
    text: str
    raw: bytes = b""
    faint: bool = False


class Renderer:
    """Listens to a run. Public methods are called on the thread of the event loop, and only `end` blocks."""

    def __init__(
        self,
        stream: TextIO,
        *,
        live: bool,
        colour: bool,
        logs: bool = True,
        quiet: bool = False,
        on_closed: Callable[[], None],
    ) -> None:
        """`live`: draw the summary on a terminal.

        `on_closed` is called on the drawing thread when the reader of the stream has exited.
        """
        self._stream = stream
        self._colour = colour
        self._logs = logs and not quiet
        self._quiet = quiet
        self._on_closed = on_closed
        self._screen = open_screen(stream, colour) if live and not quiet else None
        # A terminal shows some thousand lines per second; files and pipes get larger buffers.
        self._bounds = (1000, 1 << 20) if self._screen else (100_000, 1 << 24)
        self._lock = threading.Condition()
        self._news = False
        self._order = itertools.count()
        self._sources: dict[str, Source] = {}
        self._reader: LogReader | None = None
        self._log_dir: Path | None = None
        self._places: dict[str, int] = {}
        self._messages: list[tuple[int, str]] = []
        self._status = Status()
        self._pods: Sequence[Pod] = ()
        self._started = time.monotonic()
        self._status_line: tuple[object, ...] = ()
        self._status_line_at = 0.0
        self._progress: tuple[object, ...] = ()
        self._progress_at = 0.0
        self._bars: dict[str, float] = {}
        self._latest_event = ""
        self._ended = False
        self._closed = False
        self._title = ""
        self._thread: threading.Thread | None = None

    def begin(self, title: str, reader: LogReader | None = None, log_dir: Path | None = None) -> None:
        """Start the clock of a job. `reader` recognizes long complaints of its launcher. `log_dir` has a log of each
        pod, for messages."""
        self._title, self._started, self._ended = title, time.monotonic(), False
        self._reader, self._log_dir = reader, log_dir
        self._sources, self._bars, self._status_line, self._pods, self._status = {}, {}, (), (), Status()
        self._progress = ()
        self._latest_event = ""
        self._places = {}
        self._thread = threading.Thread(target=self._draw, name="renderer", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Print everything that is buffered, and block until it is printed."""
        with self._lock:
            self._ended = True
            self._wake()
        if self._thread:
            self._thread.join()

    def print(self, text: str, colour: str = "", *, bold: bool = False) -> None:
        """Print a line after `end`, in a colour if the stream has colours."""
        safe = clean_text(text, self._colour)
        print(styled(safe, colour, bold=bold) if self._colour else safe, file=self._stream, flush=True)

    @property
    def seconds(self) -> float:
        """Return the seconds since the start of the job."""
        return time.monotonic() - self._started

    def message(self, text: str) -> None:
        """Print a line with the time in front."""
        with self._lock:
            safe = clean(text.encode(), colour=False)  # the message of an Event can end with a program's output
            self._messages.append((next(self._order), f"{elapsed(self.seconds):>6} {safe}"))
            self._wake()

    # The `Listener` of a local run.

    def status(self, status: Status, pods: Sequence[Pod]) -> None:
        with self._lock:
            self._status, self._pods = status, pods
            for pod in pods:
                self._places.setdefault(replica_key(pod.role, pod.index), len(self._places))
            if not self._screen:
                self._add_progress_line(status)  # before the line of a finished job
            self._add_status_line(status)
            self._wake()

    def event(self, event: Event) -> None:
        if event.reason not in QUIET_EVENTS:
            self._latest_event = event.message
            self.message(event.message)

    def has_printed(self, text: str) -> bool:
        """Return whether the text begins with the latest event, which has been printed."""
        return bool(self._latest_event) and not self._quiet and text.startswith(self._latest_event)

    def output(self, pod: Pod, container: str, data: bytes) -> None:
        name = label(pod, container)
        with self._lock:
            source = self._sources.get(name)
            if source is None:
                if not data:
                    return  # it ended without output
                fold = Fold(self._reader) if self._reader else None
                source = self._sources[name] = Source(name, *self._bounds, fold=fold)
            # Output of ranks that are stopped for a restart is mostly noise.
            stops = bool(pod.deleted_at) or self._status.pods_of_attempt is not None
            old = stops and pod.attempt < self._status.attempt
            if not old and source.pod != pod.name:
                source.pod, source.latest = pod.name, b""
            file = f"{name_in_attempt(pod.name, pod.role, pod.index, pod.attempt)}.log"
            log = str(self._log_dir / file) if self._log_dir else "the log"
            source.feed(data, next(self._order), old, log)
            self._wake()

    def _wake(self) -> None:
        """Wake the drawing thread, or make it draw again if it draws already. The caller holds the lock."""
        self._news = True
        self._lock.notify()

    def _add_status_line(self, status: Status) -> None:
        """Add a line with phase and running pods, if they have changed."""
        phase = status.phase
        line = (phase, status.attempt if phase != "Pending" else 0, status.ready)
        if line == self._status_line or not status.start_time:
            return
        same_phase = self._status_line[:2] == line[:2]
        if same_phase and self.seconds - self._status_line_at < COUNT_SECONDS and phase not in FINISHED:
            return
        if same_phase and phase in FINISHED:
            return
        self._status_line, self._status_line_at = line, self.seconds
        text = phase if phase in FINISHED else f"{phase}, {status.ready} pods running"
        if phase == "Restarting":
            text = f"Restarting: attempt {status.attempt}, {status.ready} pods running"
        self._messages.append((next(self._order), f"{elapsed(self.seconds):>6} {text}"))

    def _add_progress_line(self, status: Status) -> None:
        """Add a line with the progress, if it has changed and not too often."""
        progress = status.progress
        step = (status.attempt, progress.step) if progress else ()
        if step == self._progress or not (text := progress_text.line(status)):
            return
        early = self.seconds - self._progress_at < PROGRESS_SECONDS
        if self._progress and early and status.phase not in FINISHED:
            return
        self._progress, self._progress_at = step, self.seconds
        self._messages.append((next(self._order), f"{elapsed(self.seconds):>6} {text}"))

    # The drawing thread.

    def _draw(self) -> None:
        if self._screen:
            self._screen.start()
        ended = False
        while not ended:
            with self._lock:
                self._lock.wait_for(lambda: self._news, 1.0)
                ended = self._ended
            if not ended:
                time.sleep(DRAW_SECONDS)  # what comes together is drawn together
            with self._lock:
                ended, self._news = self._ended, False
                if ended:
                    for source in self._sources.values():
                        source.feed(b"", next(self._order))
                waiting, width = self._take()
                summary = self._summary() if self._screen else None
            # Not under the lock, which would hold up the event loop.
            self._write(
                [self._formatted(item, width) for item in sorted(waiting, key=lambda item: item.place)], summary
            )
        if self._screen:
            with contextlib.suppress(OSError):
                self._screen.stop()

    def _take(self) -> tuple[list[_Item], int]:
        """Remove everything that is buffered. Return it with the width of the labels."""
        items = [] if self._quiet else [_Item(place, "", text) for place, text in self._messages]
        self._messages = []
        for name, source in self._sources.items():
            dropped, lines = source.take()
            if not self._logs:
                continue
            if dropped:
                first = lines[0].place if lines else next(self._order)
                items.append(_Item(first, name, f"... {dropped:,} lines not shown; the log has all of them"))
            items += [_Item(line.place, name, "", line.text, line.faint) for line in lines]
            if not self._screen and (bar := self._bar(source)):
                items.append(_Item(next(self._order), name, "", bar))
        return items, max((len(label) for label in self._sources), default=0)

    def _formatted(self, item: _Item, width: int) -> str:
        if not item.label:
            return item.text
        place = self._places.get(item.label.partition("/")[0], 0)
        text = item.text or clean(item.raw, self._colour and not item.faint)
        return prefixed(item.label, width, place, text, colour=self._colour, faint=item.faint)

    def _bar(self, source: Source) -> bytes:
        """Return the state of a progress bar, at most every BAR_SECONDS."""
        if not source.splitter.redrawn:
            self._bars.pop(source.label, None)
            return b""
        now = time.monotonic()
        if now - self._bars.setdefault(source.label, now) < BAR_SECONDS:
            return b""
        self._bars[source.label] = now
        return source.splitter.pending.rstrip(b"\r")

    def _write(self, lines: Iterable[str], summary: Summary | None) -> None:
        if self._closed:
            return
        text = "".join(f"{line}\n" for line in lines)
        try:
            if self._screen:
                self._screen.draw(text, summary)
            elif text:
                self._stream.write(text)
                self._stream.flush()
        except OSError:
            # The reader of our output has exited, as with `| head`.
            self._closed = True
            self._screen = None
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            self._on_closed()

    def _summary(self) -> Summary:
        latest = {source.pod: source.latest for label, source in self._sources.items() if "/" not in label}
        return Summary(self._title, self.seconds, self._status, self._pods, latest, self._places)
