"""What a report() does, and the thread that sends the newest state: at once for the first step, for a checkpoint and at
the end, else every few seconds, also when nothing is new (the message says since when).

There is no lock between the two: a program may report in a handler of a signal, in the middle of a report.
"""

from __future__ import annotations

import atexit
import os
import queue
import random
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from allranks.report import stacks
from allranks.report.meter import Meter
from allranks.report.state import RANK, Means, State, advance, message, number_in
from allranks.report.transport import Failed, Over, Refused, Wire
from allranks.report.values import LARGEST, is_finite, metric, seconds, whole
from allranks.report.warn import tell_once

INTERVAL_SECONDS = 5.0
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.05, 300.0
CHECKPOINT_GAP_SECONDS = 1.0
"""A program may save in each step: no more than one message a second for that."""
FETCH_SECONDS = 0.2
"""How long a message waits for numbers that are still on a GPU, or computed."""
MOST_METRICS = 32
METRIC = re.compile(r"[A-Za-z0-9_./-]{1,63}")

FIRST, CHECKPOINT, END = 1, 2, 3


class Client:
    """One for each process. Raises ValueError for a URL that is none."""

    def __init__(self, url: str, token_file: str) -> None:
        self.meter: Meter | None = None
        self.answer_stacks: Callable[[str], None] = dump_stacks
        self._wire = Wire(url, token_file)
        self._state = State()
        self._metrics: dict[str, float] = {}
        self._later: dict[str, Callable[[], float]] = {}
        self._means = Means()
        # Its put() may interrupt itself, as a lock's acquire() may not: see above.
        self._bell: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._rung = False  # for a checkpoint that is not sent yet
        self._fetcher: Fetcher | None = None
        self._asked = ""
        self._said_at = 0.0
        self._over = threading.Event()
        self._finishing = False
        self._process = os.getpid()
        self._watchdog = stacks.watchdog_by_environment()
        atexit.register(self.finish)
        threading.Thread(target=self._run, name="allranks-report", daemon=True).start()

    # --- in the program's thread -------------------------------------------------------------------------------------

    def note(
        self,
        step: Any,
        total_steps: Any,
        epoch: Any,
        samples: Any,
        checkpoint: bool,
        busy: Any,
        metrics: dict[str, Any],
    ) -> None:
        """Takes a report in. Whatever is no number is left out, which is said once."""
        if step is not None and not (type(step) is int and 0 <= step <= LARGEST):
            step = good("step", step, whole)
        if total_steps is not None and not (type(total_steps) is int and 0 <= total_steps <= LARGEST):
            total_steps = good("total_steps", total_steps, whole)
        if epoch is not None and not (type(epoch) is int and 0 <= epoch <= LARGEST):
            epoch = good("epoch", epoch, whole)
        if samples is not None:
            samples = good("samples", samples, seconds)
        if busy is not None:
            busy = good("busy", busy, seconds)
        for name, value in metrics.items():
            if type(value) is float and value - value == 0.0 and name in self._metrics:
                self._metrics[name] = value  # the common case, fast
            else:
                self._take(name, value)
        old = self._state
        state = advance(old, time.monotonic(), step, total_steps, epoch, samples, bool(checkpoint), busy)
        self._state = state
        if self.meter is not None:
            self._measure(old, state, checkpoint)
        if old.step is None and step is not None:
            self._bell.put(FIRST)
        if checkpoint and not self._rung:
            self._rung = True
            self._bell.put(CHECKPOINT)

    def _measure(self, old: State, state: State, checkpoint: bool) -> None:
        meter = self.meter
        if meter is None:
            return
        if meter.ended_by_report and state.step is not None and state.step != old.step:
            meter.step_over(1 if old.step is None else state.step - old.step)
        elif checkpoint:
            meter.restart()

    def _take(self, name: str, value: Any) -> None:
        if name not in self._metrics and name not in self._later:
            if not METRIC.fullmatch(name):
                return tell_once(f"name {name[:63]}", f"report(): no metric may be named {name[:63]!r}")
            if len(self._metrics) + len(self._later) >= MOST_METRICS:
                return tell_once("many", f"report(): more than {MOST_METRICS} metrics: {name} and others are left out")
        number = good(name, value, metric)
        if callable(number):
            self._later[name] = number
        elif number is not None:
            self._later.pop(name, None)
            self._set(name, number)
        return None

    def _set(self, name: str, number: float) -> None:
        """A loss that is NaN must not look like the last one that was a number."""
        if is_finite(number):
            self._metrics[name] = number
        else:
            self._metrics.pop(name, None)
            tell_once(f"finite {name}", f"report(): {name} is {number}: left out until it is finite")

    def finish(self, timeout: float = 1.0) -> None:
        """The last message; waits no longer than that for it."""
        if os.getpid() != self._process or self._over.is_set():
            return  # a forked process has none of our threads
        self._finishing = True
        self._bell.put(END)
        self._over.wait(timeout)
        atexit.unregister(self.finish)
        if self._watchdog:
            self._watchdog.stop()

    # --- in the background -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except Over:
            pass
        except Exception as error:
            tell_once("thread", f"reports have ended: {type(error).__name__}: {error}")
        finally:
            self._wire.close()
            self._over.set()

    def _serve(self) -> None:
        interval, pause = INTERVAL_SECONDS, 0.0
        due = time.monotonic() + FETCH_SECONDS  # the first report comes in this moment, and may ring
        while True:
            self._await(due, time.monotonic() + pause)
            last = self._finishing
            self._rung = False
            pause = 0.0
            try:
                answer = self._wire.post(self._message(last), 1.0 if last else 3.0)
                interval = number_of(answer.get("interval"), interval)
                self._answer(str(answer.get("stacks") or "")[:200])
            except Refused as refused:
                tell_once("refused", f"the operator refused a report: {refused}")
            except Failed as failed:
                pause = self._wire.pause(failed, interval)
            if last:
                return
            due = time.monotonic() + max(pause, interval * random.uniform(0.9, 1.1))

    def _await(self, due: float, not_before: float) -> None:
        """Until the next message is due, or there is something to say at once (but not while the operator is away)."""
        while not self._finishing:
            try:
                kind = self._bell.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                return
            soon = max(time.monotonic(), not_before)
            if kind == CHECKPOINT:
                soon = max(soon, self._said_at + CHECKPOINT_GAP_SECONDS)
            due = min(due, soon)

    def _message(self, done: bool) -> dict[str, Any]:
        self._fetch()
        meter, state = self.meter, self._state
        self._means.update(state, (0.0, 0) if meter is None else meter.totals)
        self._said_at = time.monotonic()
        # A copy of what another thread may just be changing.
        waiting = None if meter is None else meter.waits()
        return message(state, self._means, self._metrics.copy(), self._said_at, waiting, done)

    def _fetch(self) -> None:
        """Numbers that are still on a GPU: a thread of its own waits for them, for a GPU may hang."""
        later = self._later
        if self._fetcher is None and later:
            self._fetcher = Fetcher()
        if self._fetcher is None:
            return
        if later and self._fetcher.idle:
            self._later = {}
            self._fetcher.ask(later.copy())  # the program's thread may just be adding to it
        for name, number in self._fetcher.found():
            self._set(name, number)

    def _answer(self, asked: str) -> None:
        if asked and asked != self._asked:
            self._asked = asked
            self.answer_stacks(asked)


class Fetcher:
    """Calls functions that may take long, or for ever, in a thread of its own."""

    def __init__(self) -> None:
        self.idle = True
        self._questions: queue.SimpleQueue[dict[str, Callable[[], float]]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[list[tuple[str, float]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="allranks-fetch", daemon=True).start()

    def ask(self, questions: dict[str, Callable[[], float]]) -> None:
        self.idle = False
        self._questions.put(questions)

    def found(self) -> list[tuple[str, float]]:
        """Nothing where it takes too long: then with the next message."""
        try:
            return self._answers.get(timeout=0.0 if self.idle else FETCH_SECONDS)
        except queue.Empty:
            return []

    def _run(self) -> None:
        while True:
            found = []
            for name, question in self._questions.get().items():
                number = good(name, question, lambda ask: ask())
                if number is not None:
                    found.append((name, number))
            self._answers.put(found)
            self.idle = True


def good(name: str, value: Any, convert: Callable[[Any], Any]) -> Any:
    """The number, or None where it is none, which is said once for each name."""
    try:
        return convert(value)
    except Exception as error:
        tell_once(
            f"value {name[:63]}", f"report(): {name[:63]} is left out: {str(error)[:200] or type(error).__name__}"
        )
        return None


def number_of(interval: Any, known: float) -> float:
    if isinstance(interval, (int, float)) and is_finite(interval):
        return min(max(float(interval), SHORTEST_INTERVAL), LONGEST_INTERVAL)
    return known


def dump_stacks(asked: str) -> None:
    rank = number_in(RANK)
    who = f"process {os.getpid()}" if rank is None else f"rank {rank}"
    stacks.dump(who, why(asked))


def why(asked: str) -> str:
    readable = "".join(letter if letter.isprintable() else "?" for letter in asked)
    return f"the job makes no progress ({readable})"
