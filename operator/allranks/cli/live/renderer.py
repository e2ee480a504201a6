"""What a user sees while a job runs: log lines of all ranks, and on a terminal a live summary below them.

The event loop only hands over bytes and states; a thread draws, so that a slow terminal, a stopped pager or a rank that
prints without end never holds up the ranks or what watches them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TextIO

from allranks.api.status import FINISHED, Status
from allranks.cli.format import progress as doing
from allranks.cli.format.log_lines import Source
from allranks.cli.live.summary import Summary, duration, open_screen, prefixed
from allranks.control_sequences import clean
from allranks.core.model import Event, Pod
from allranks.core.naming import TRAINER, replica_key

DRAW_SECONDS = 0.1
COUNT_SECONDS = 1.0
"""While the phase stays, plain lines tell how many ranks run at most so often."""
BAR_SECONDS = 10.0
"""Without a terminal, the state of a progress bar is shown so often."""
PROGRESS_SECONDS = 10.0
"""Without a terminal, progress is told at most so often; the last of it always."""
QUIET_EVENTS = frozenset({"PodsCreated", "Succeeded", "Restarting"})
"""Events that say what the status line says."""


class _Item(NamedTuple):
    """Something to write: a message of ours, or a line of a container."""

    place: int
    label: str
    text: str
    raw: bytes = b""
    faint: bool = False


class View:
    """Listens to a run. All methods but the private ones are for the event loop's thread; none of them blocks."""

    def __init__(
        self,
        stream: TextIO,
        *,
        live: bool,
        colour: bool,
        logs: bool = True,
        quiet: bool = False,
        hung_up: Callable[[], None],
    ) -> None:
        """`live`: a terminal. `hung_up` is called, on the drawing thread, when nobody reads the stream any more."""
        self._stream = stream
        self._colour = colour
        self._logs = logs and not quiet
        self._quiet = quiet
        self._hung_up = hung_up
        self._screen = open_screen(stream, colour) if live and not quiet else None
        # A terminal takes some thousand lines a second; a file or a pipe is given more time.
        self._bounds = (1000, 1 << 20) if self._screen else (100_000, 1 << 24)
        self._lock = threading.Condition()
        self._order = itertools.count()
        self._sources: dict[str, Source] = {}
        self._places: dict[str, int] = {}
        self._messages: list[tuple[int, str]] = []
        self._status = Status()
        self._pods: Sequence[Pod] = ()
        self._started = time.monotonic()
        self._told: tuple[object, ...] = ()
        self._told_at = 0.0
        self._progress: tuple[object, ...] = ()
        self._progress_at = 0.0
        self._bars: dict[str, float] = {}
        self._ended = False
        self._gone = False
        self._title = ""
        self._thread: threading.Thread | None = None

    def begin(self, title: str) -> None:
        """A job starts: its time is counted from here."""
        self._title, self._started, self._ended = title, time.monotonic(), False
        self._sources, self._bars, self._told, self._pods, self._status = {}, {}, (), (), Status()
        self._progress = ()
        self._places = {}
        self._thread = threading.Thread(target=self._draw, name="view", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Shows what is still to be shown. Blocks until it is."""
        with self._lock:
            self._ended = True
            self._lock.notify()
        if self._thread:
            self._thread.join()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """A line of our own, with the time."""
        with self._lock:
            self._messages.append((next(self._order), f"{duration(self.elapsed):>6} {text}"))
            self._lock.notify()

    # The driver's `Listener`.

    def status(self, status: Status, pods: Sequence[Pod]) -> None:
        with self._lock:
            self._status, self._pods = status, pods
            for pod in pods:
                self._places.setdefault(replica_key(pod.role, pod.index), len(self._places))
            if not self._screen:
                self._tell_progress(status)  # before its end is told
            self._tell(status)
            self._lock.notify()

    def event(self, event: Event) -> None:
        if event.reason not in QUIET_EVENTS:
            self.say(event.message)

    def output(self, pod: Pod, container: str, data: bytes) -> None:
        replica = replica_key(pod.role, pod.index)
        label = replica if container == TRAINER else f"{replica}/{container}"
        with self._lock:
            source = self._sources.get(label)
            if source is None:
                if not data:
                    return  # it never said anything
                source = self._sources[label] = Source(label, *self._bounds)
            # What ranks say when they are told to go is mostly complaints; on Ctrl-C it may be that they saved.
            source.feed(data, next(self._order), faint=bool(pod.deleted_at) and pod.attempt < self._status.attempt)
            self._lock.notify()

    def _tell(self, status: Status) -> None:
        """The status line, when it is another one."""
        phase = status.phase
        news = (phase, status.attempt if phase != "Pending" else 0, status.ready)
        if news == self._told or not status.start_time:
            return
        same_phase = self._told[:2] == news[:2]
        if same_phase and self.elapsed - self._told_at < COUNT_SECONDS and phase not in FINISHED:
            return
        if same_phase and phase in FINISHED:
            return
        self._told, self._told_at = news, self.elapsed
        text = phase if phase in FINISHED else f"{phase}, {status.ready} pods running"
        if phase == "Restarting":
            text = f"Restarting: attempt {status.attempt}, {status.ready} pods running"
        self._messages.append((next(self._order), f"{duration(self.elapsed):>6} {text}"))

    def _tell_progress(self, status: Status) -> None:
        """How far it is, when that is news, and now and then."""
        progress = status.progress
        news = (status.attempt, progress.step) if progress else ()
        if news == self._progress or not (text := doing.line(status)):
            return
        early = self.elapsed - self._progress_at < PROGRESS_SECONDS
        if self._progress and early and status.phase not in FINISHED:
            return
        self._progress, self._progress_at = news, self.elapsed
        self._messages.append((next(self._order), f"{duration(self.elapsed):>6} {text}"))

    # The drawing thread.

    def _draw(self) -> None:
        if self._screen:
            self._screen.start()
        ended = False
        while not ended:
            with self._lock:
                if not self._ended:
                    self._lock.wait(1.0)
                ended = self._ended
            if not ended:
                time.sleep(DRAW_SECONDS)  # what comes together is drawn together
            with self._lock:
                ended = self._ended
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
        """All that waits, and the width of the labels."""
        found = [] if self._quiet else [_Item(place, "", text) for place, text in self._messages]
        self._messages = []
        for label, source in self._sources.items():
            dropped, lines = source.take()
            if not self._logs:
                continue
            if dropped:
                first = lines[0].place if lines else next(self._order)
                found.append(_Item(first, label, f"... {dropped:,} lines not shown, all are in the log"))
            found += [_Item(line.place, label, "", line.text, line.faint) for line in lines]
            if not self._screen and (bar := self._bar(source)):
                found.append(_Item(next(self._order), label, "", bar))
        return found, max((len(label) for label in self._sources), default=0)

    def _formatted(self, item: _Item, width: int) -> str:
        if not item.label:
            return item.text
        place = self._places.get(item.label.partition("/")[0], 0)
        text = item.text or clean(item.raw, self._colour and not item.faint)
        return prefixed(item.label, width, place, text, colour=self._colour, faint=item.faint)

    def _bar(self, source: Source) -> bytes:
        """The state of a progress bar, now and then."""
        if not source.splitter.redrawn:
            self._bars.pop(source.label, None)
            return b""
        now = time.monotonic()
        if now - self._bars.setdefault(source.label, now) < BAR_SECONDS:
            return b""
        self._bars[source.label] = now
        return source.splitter.pending.rstrip(b"\r")

    def _write(self, lines: Iterable[str], summary: Summary | None) -> None:
        if self._gone:
            return
        text = "".join(f"{line}\n" for line in lines)
        try:
            if self._screen:
                self._screen.draw(text, summary)
            elif text:
                self._stream.write(text)
                self._stream.flush()
        except OSError:
            # Whoever read our output has gone, as with `| head`.
            self._gone = True
            self._screen = None
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            self._hung_up()

    def _summary(self) -> Summary:
        latest = {label: source.latest for label, source in self._sources.items()}
        return Summary(self._title, self.elapsed, self._status, self._pods, latest, self._places)
