"""The implementation of report(), and the thread that sends the newest state.

The thread sends at once after the first step, after a checkpoint and at the end; else every few seconds, also without
new values (the message contains their age). There is no lock between the two: a signal handler may call report() while
the program is inside report().
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import random
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from allranks.report import stacks
from allranks.report.meter import Meter
from allranks.report.position import exception, position
from allranks.report.record import BYTES, FOLD_AT, VALUES, Record
from allranks.report.state import RANK, Means, State, advance, message, number_in, rounded
from allranks.report.step_log import DIRECTORY as STEP_LOG
from allranks.report.step_log import StepLog
from allranks.report.transport import AttemptOver, Rejected, SendFailed, Transport
from allranks.report.values import LARGEST, closest, is_finite, metric, seconds, whole
from allranks.report.warn import warn_once

INTERVAL_SECONDS = 5.0
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.05, 300.0
CHECKPOINT_GAP_SECONDS = 1.0
"""At most one message a second for checkpoints, since a program may save in each step."""
RETRY_SECONDS = 1.0
"""Between two tries to send the last checkpoint, on average."""
LAST_CHECKPOINT_SECONDS = 15.0
"""Longest wait of a program that ends until the operator knows of its last checkpoint."""
POSITION_SECONDS = 20.0
"""After this time without a step a rank says where it is, also if it is not asked."""
FETCH_SECONDS = 0.2
"""Longest wait of a message for numbers that a GPU still computes."""
_MOMENT_TRIES, _MOMENT_PAUSE_SECONDS = 50, 0.001
MOST_METRICS = 32
MESSAGE_BYTES = 8192 - 256
"""The operator rejects messages that are longer than 8 KiB."""
LAST_MESSAGES = 4
"""Messages before the last one of a program that ends, for values that do not fit into it."""
WARM_FOLDER = "ALLRANKS_WARM_FOLDER"
"""Variable with the folder where the supervisor of a pod reads what its ranks have imported."""
METRIC = re.compile(r"[A-Za-z0-9_./-]{1,63}")

FIRST, CHECKPOINT, END, REQUESTED, FOLD = 1, 2, 3, 4, 5


class Client:
    """The reporting of one process. Its constructor raises ValueError for an invalid URL."""

    def __init__(self, url: str, token_file: str) -> None:  # noqa: PLR0915 (its state, in one place)
        self.meter: Meter | None = None
        self.loaded: float | None = None
        """Seconds that the program has waited for data; None if nothing measures them."""
        self.program_reports = False
        """True if the program itself reports its steps. Then automatic callbacks do not."""
        self.answer_stacks: Callable[[str], None] = self._dump_stacks
        self._transport = Transport(url, token_file)
        self._state = State()
        self._metrics: dict[str, float] = {}
        self._not_finite: dict[str, int] = {}
        """Metrics whose newest value is NaN or infinite -> the step since which it is."""
        self._step = 0
        """The step of the report that is being recorded."""
        self._notes = 0
        """Odd while a report is being recorded, so that a message has the step and the metrics of one report."""
        self._later: dict[str, list[Question]] = {}
        """Numbers that a GPU still computes."""
        self._new_names: list[str] = []
        self._record = Record()
        self._records = not number_in(RANK)
        """Whether messages have the record: that of rank 0, unless the operator asks another rank for it."""
        self._means = Means()
        # Reentrant, unlike a lock: a signal handler may call put() during put().
        self._bell: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._checkpoint_pending = False
        self._checkpoints = self._received_checkpoints = 0
        """Number of checkpoints that were reported, and of those that the operator has received."""
        self._fetcher: Fetcher | None = None
        self._stack_dump_ids: deque[str] = deque(maxlen=16)
        """Answered requests, the newest last."""
        self._stalled_at: int | None = -1
        """The step after which the operator asked where this rank is; -1 if it has not asked."""
        self._saves_on_request = False
        self._requested = self._noticed = self._stored = self._handled = 0
        """Numbers of requests for a checkpoint: the current one, the last one that the program has noticed, that it has
        stored a checkpoint for, and that it is done with."""
        self._due: tuple[int, bool] | None = None
        """The step after which a checkpoint is due, and whether all ranks have received it."""
        self._asks_due = False
        self._asked_after = -1
        """The step at which the program asked last whether a checkpoint is due."""
        self._saving: tuple[int | None, float] | None = None
        """(step, time) since which the program stores a checkpoint that was due."""
        self._save_seconds: float | None = None
        self._sent_at = 0.0
        self._over = threading.Event()
        self._finishing = False
        self._process = os.getpid()
        self._watchdog = stacks.watchdog_by_environment()
        directory = os.environ.get(STEP_LOG)
        self._step_log = StepLog(directory) if directory else None
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
        """Record a report. Drop each value that is not a number, with one warning."""
        self._notes += 1
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
        self._step = at = step if step is not None else self._state.step or 0
        now, newest, reported = time.monotonic(), self._metrics, self._record.reported
        for name, value in metrics.items():
            if type(value) is float and value - value == 0.0 and name in newest:
                newest[name] = value  # the common case, fast
                reported[name].extend((value, at, now))
            else:
                self._take(name, value, now)
        if self._notes % (2 * FOLD_AT) == 1:
            self._record.limit()
            self._bell.put(FOLD)
        old = self._state
        state = advance(old, now, step, total_steps, epoch, samples, bool(checkpoint), busy)
        self._state = state
        self._notes += 1
        if self._step_log is not None:
            self._step_log.write(state.step, metrics, bool(checkpoint))
        if self._new_names:
            self._warn_of_typing_errors(state)
        if self.meter is not None:
            self._measure(old, state, checkpoint)
        if old.step is None and step is not None:
            self._bell.put(FIRST)
        if checkpoint:
            self._end_save(state)
        self._checkpoints += bool(checkpoint)
        if checkpoint and self._requested > self._stored:
            self._stored = self._requested
            self._handled = self._stored
            self._bell.put(REQUESTED)
        elif checkpoint and not self._checkpoint_pending:
            self._checkpoint_pending = True
            self._bell.put(CHECKPOINT)

    @property
    def last_step(self) -> int | None:
        return self._state.step

    def checkpoint_requested(self) -> bool:
        """Return whether the program should store a checkpoint. A rank that asks again and reports none is done too:
        another one stores it."""
        number = self.checkpoint_request()
        if number and number == self._noticed:
            self.checkpoint_handled(number)
        self._noticed = number
        return number > 0

    def checkpoint_request(self) -> int:
        """Return the number of the checkpoint that the program should store; 0 if there is none."""
        if not self._saves_on_request:
            self._saves_on_request = True
            self._bell.put(REQUESTED)  # otherwise a job that is suspended soon would not wait for a checkpoint
        requested = self._requested
        return requested if requested > self._stored else 0

    def checkpoint_handled(self, number: int) -> None:
        """Record that the program is done with a request. The operator waits for this: it is sent at once."""
        if number > self._handled:
            self._handled = number
            self._bell.put(REQUESTED)

    def checkpoint_due(self, step: int | None = None) -> bool:
        """Return whether this is the first call after the step of the next checkpoint, or at it."""
        step = self._state.step if step is None else step
        due = self.due_step(step)
        if step is None:
            return False
        before, self._asked_after = self._asked_after, step
        if not 0 <= before < due <= step:  # a process that starts beyond the step does not know what the others did
            return False
        self.begin_save(step)
        return True

    def due_step(self, step: int | None) -> int:
        """Return the step of a checkpoint that is due at `step`, or was; 0 if there is none."""
        self._asks_due = True
        due, agreed = self._due or (0, False)
        return due if agreed and step is not None and due <= step else 0

    def begin_save(self, step: int | None) -> None:
        """Record that the program stores a checkpoint now."""
        self._saving = (step, time.monotonic())

    def _end_save(self, state: State) -> None:
        """Measure how long the step has waited; not if the program went on with its next step meanwhile."""
        saving, self._saving, self._save_seconds = self._saving, None, None
        if saving is not None and saving[0] == state.step and state.checkpoint_at is not None:
            self._save_seconds = state.checkpoint_at - saving[1]

    def _measure(self, old: State, state: State, checkpoint: bool) -> None:
        meter = self.meter
        if meter is None:
            return
        if meter.ended_by_report and state.step is not None and state.step != old.step:
            meter.step_over(1 if old.step is None else state.step - old.step)
        elif checkpoint:
            meter.restart()

    def _take(self, name: str, value: Any, now: float) -> None:
        if name not in self._metrics and name not in self._later:
            if not METRIC.fullmatch(name):
                return warn_once(f"name {name[:63]}", f"report(): invalid metric name {name[:63]!r}")
            if len(self._metrics) + len(self._later) >= MOST_METRICS:
                return warn_once("many", f"report(): more than {MOST_METRICS} metrics: {name} and others are dropped")
            self._new_names.append(name)
        number = good(name, value, metric)
        if callable(number):
            later = self._later.setdefault(name, [])
            del later[VALUES - 1 :]  # the newest one takes the place of the one before
            later.append((now, self._step, number))
        elif number is not None:
            self._later.pop(name, None)
            self._set(name, number, self._step, now)
        return None

    def _warn_of_typing_errors(self, state: State) -> None:
        """Warn of new names that resemble a field, such as `report(stepp=3)`, unless that field is reported as well."""
        reported = {name for name in ("step", "total_steps", "epoch") if getattr(state, name) is not None}
        reported |= {"samples"} if state.sampled_at is not None else set()
        reported |= {"busy"} if state.busy_steps else set()
        names, self._new_names = self._new_names, []
        for name in names:
            meant = closest(name)
            if meant and meant not in reported and meant not in self._metrics and meant not in self._later:
                warn_once(f"typing {name}", f"report(): {name} is a metric of its own: did you mean {meant}?")

    def _set(self, name: str, number: float, step: int, at: float) -> None:
        """Drop a value that is not finite: a loss of NaN must not look like its last finite value."""
        self._record.add(name, number, step, at)
        if is_finite(number):
            self._metrics[name] = number
            self._not_finite.pop(name, None)
        else:
            self._metrics.pop(name, None)
            self._not_finite.setdefault(name, step)
            warn_once(f"finite {name}", f"report(): {name} is {number}: dropped until it is finite")

    def finish(self, timeout: float = 1.0) -> None:
        """Send the last message; block for at most `timeout` seconds.

        Block for LAST_CHECKPOINT_SECONDS if the operator does not know yet that a checkpoint is stored."""
        if os.getpid() != self._process or self._over.is_set():
            return  # a forked process has no background thread
        self._finishing = True
        self._bell.put(END)
        if self._checkpoints > self._received_checkpoints:
            timeout = max(timeout, LAST_CHECKPOINT_SECONDS)
        self._over.wait(timeout)
        atexit.unregister(self.finish)
        if self._watchdog:
            self._watchdog.stop()

    # --- in the background -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except AttemptOver:
            pass
        except Exception as error:
            warn_once("thread", f"reporting stopped: {type(error).__name__}: {error}")
        finally:
            self._transport.close()
            self._over.set()

    def _serve(self) -> None:
        interval, pause = INTERVAL_SECONDS, 0.0
        due = time.monotonic() + FETCH_SECONDS  # the first report is being made and may send at once
        recorded = WARM_FOLDER not in os.environ  # what this process has imported
        until: float | None = None  # the end of the tries to send the last checkpoint
        while True:
            self._await(due, time.monotonic() + pause)
            last, checkpoints = self._finishing, self._checkpoints
            self._checkpoint_pending = False
            pause = 0.0
            try:
                answer = self._post(last)
                interval = interval_of(answer.get("interval"), interval)
                self._received_checkpoints = checkpoints
                self._requested = request_in(answer.get("checkpoint"))
                self._due = due_in(answer.get("due"))
                self._answer(str(answer.get("stacks") or "")[:200])
            except Rejected as rejected:
                warn_once("rejected", f"the operator rejected a report: {rejected}")
            except SendFailed as failed:
                pause = self._transport.pause(failed, interval)
            if last:
                until = until or time.monotonic() + LAST_CHECKPOINT_SECONDS
                if checkpoints == self._received_checkpoints or not pause or time.monotonic() > until:
                    return
                time.sleep(RETRY_SECONDS * random.uniform(0.5, 1.5))
            if not recorded and self._state.step is not None:
                recorded = True
                record_imports()
            due = time.monotonic() + max(pause, interval * random.uniform(0.9, 1.1))

    def _post(self, last: bool) -> dict[str, Any]:
        """Send the state; before the last message, what does not fit into it."""
        message = self._message(last)
        for _ in range(LAST_MESSAGES):
            if not last or not self._records or self._record.fits(message["record"]):
                break
            self._transport.post({**message, "done": False}, 1.0)
            self._record.arrived(message["record"])
            message = self._message(last)
        answer = self._transport.post(message, 1.0 if last else 3.0)
        self._record.arrived(message.get("record", {}))
        self._records = answer.get("record", not number_in(RANK)) is True
        return answer

    def _await(self, due: float, not_before: float) -> None:
        """Wait until the next message is due or must be sent at once, but not before `not_before` (backoff)."""
        while not self._finishing:
            try:
                kind = self._bell.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                return
            if kind == FOLD:
                self._record.fold()
                continue
            soon = max(time.monotonic(), not_before)
            if kind == CHECKPOINT:
                soon = max(soon, self._sent_at + CHECKPOINT_GAP_SECONDS)
            due = min(due, soon)

    def _message(self, done: bool) -> dict[str, Any]:
        self._fetch()
        state, metrics, not_finite = self._moment()
        meter = self.meter
        self._means.update(state, (0.0, 0) if meter is None else meter.totals, self.loaded)
        self._sent_at = time.monotonic()
        waiting = None if meter is None else meter.waits()
        content = message(
            state,
            self._means,
            metrics,
            self._sent_at,
            waiting,
            done,
            self._saves_on_request,
            self._handled,
        )
        if not_finite:
            content["notFinite"] = not_finite
        if self._asks_due:
            content["dueStep"] = self._due[0] if self._due else 0
        if content["checkpoint"] and self._save_seconds is not None:
            content["checkpoint"]["seconds"] = rounded(self._save_seconds)
        still = state.stepped_at is not None and self._sent_at - state.stepped_at > POSITION_SECONDS
        if (still or self._stalled_at == state.step) and not done:
            content["position"] = good("position", position, lambda ask: ask())
        if done and (raised := exception(getattr(sys, "last_value", None))):
            content["position"] = {"call": "ended", "raising": raised}
        if self._records:
            room = min(BYTES, MESSAGE_BYTES - len(json.dumps(content)))
            content["record"] = self._record.message(self._sent_at, room)
        return content

    def _moment(self) -> tuple[State, dict[str, float], dict[str, int]]:
        """Return the state and the metrics of one report. The program's thread may be recording the next one."""
        for _ in range(_MOMENT_TRIES):
            notes = self._notes
            state, metrics, not_finite = self._state, self._metrics.copy(), self._not_finite.copy()
            if notes == self._notes and notes % 2 == 0:
                break
            time.sleep(_MOMENT_PAUSE_SECONDS)
        return state, metrics, not_finite

    def _fetch(self) -> None:
        """Get numbers from a GPU. A separate thread waits for them, because a GPU may hang."""
        later = self._later
        if self._fetcher is None and later:
            self._fetcher = Fetcher()
        if self._fetcher is None:
            return
        if later and self._fetcher.idle:
            self._later = {}
            self._fetcher.ask([(name, *question) for name in list(later) for question in list(later[name])])
        for name, at, step, number in self._fetcher.numbers():
            self._set(name, number, step, at)

    def _answer(self, stack_dump_id: str) -> None:
        if stack_dump_id and stack_dump_id not in self._stack_dump_ids:
            self._stack_dump_ids.append(stack_dump_id)
            self._stalled_at = self._state.step
            self._bell.put(REQUESTED)  # the operator waits a few seconds for the positions of all ranks
            self.answer_stacks(stack_dump_id)

    def _dump_stacks(self, stack_dump_id: str) -> None:
        rank, state = number_in(RANK), self._state
        who = f"process {os.getpid()}" if rank is None else f"rank {rank}"
        idle = None if state.stepped_at is None else round(time.monotonic() - state.stepped_at, 1)
        stacks.dump(who, reason_for(stack_dump_id), state.step, idle)


Question = tuple[float, int, Callable[[], float]]
"""(time and step of the report, what returns the number)"""


class Fetcher:
    """Calls functions that may take long, or hang, in a separate thread."""

    def __init__(self) -> None:
        self.idle = True
        self._questions: queue.SimpleQueue[list[tuple[str, float, int, Callable[[], float]]]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[list[tuple[str, float, int, float]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="allranks-fetch", daemon=True).start()

    def ask(self, questions: list[tuple[str, float, int, Callable[[], float]]]) -> None:
        """Get the numbers of these metrics, which have the times and steps of their reports."""
        self.idle = False
        self._questions.put(questions)

    def numbers(self) -> list[tuple[str, float, int, float]]:
        """Return the numbers that are ready; empty if they take too long, then the next message has them."""
        try:
            return self._answers.get(timeout=0.0 if self.idle else FETCH_SECONDS)
        except queue.Empty:
            return []

    def _run(self) -> None:
        while True:
            numbers = []
            for name, at, step, question in self._questions.get():
                number = good(name, question, lambda ask: ask())
                if number is not None:
                    numbers.append((name, at, step, number))
            self._answers.put(numbers)
            self.idle = True


def good(name: str, value: Any, convert: Callable[[Any], Any]) -> Any:
    """Return the number, or None and one warning for each name if the value is not a number."""
    try:
        return convert(value)
    except Exception as error:
        warn_once(f"value {name[:63]}", f"report(): {name[:63]} is dropped: {str(error)[:200] or type(error).__name__}")
        return None


def record_imports() -> None:
    """Let the next attempt import in advance what this process has imported."""
    try:
        import allranks_loaded_modules  # type: ignore[import-not-found]  # in `inpod/startup`

        allranks_loaded_modules.record(os.environ[WARM_FOLDER])
    except (ImportError, KeyError, OSError):
        pass  # PYTHONPATH is the program's own, or there is no folder: the next attempt imports by itself


def interval_of(value: Any, default: float) -> float:
    if isinstance(value, (int, float)) and is_finite(value):
        return min(max(float(value), SHORTEST_INTERVAL), LONGEST_INTERVAL)
    return default


def request_in(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= LARGEST else 0


def due_in(value: Any) -> tuple[int, bool] | None:
    """Return (step, whether it is agreed) from an answer."""
    step = value.get("step") if isinstance(value, dict) else None
    return (step, value.get("agreed") is True) if type(step) is int and 0 < step <= LARGEST else None


def reason_for(stack_dump_id: str) -> str:
    readable = "".join(letter if letter.isprintable() else "?" for letter in stack_dump_id)
    first, _, request = readable.partition(" ")
    if first == "requested":
        return f"somebody requested them ({request})"
    return f"the job makes no progress ({readable})"
