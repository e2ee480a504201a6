"""The parent of the program in a pod: forwards its output, its signals and its exit code.

With a pattern it reports what `log_progress_matcher.py` finds in the output. With a channel it restarts the program in
its pod: it does not end when the program fails, but waits for the orders of the operator, ends the whole process tree
of an attempt, and starts the next one. It ends with the program's exit code if the operator does not answer, so that
the operator then sees a failed pod. If the pods start together, it also waits for an order before the first start, and
starts the program if the operator does not answer. Needs the standard library and `allranks.report`, which is in the
same directory.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import signal
import time
from typing import Any

from job_code import JobCode, Unavailable  # type: ignore[import-not-found]
from log_progress_matcher import Matcher  # type: ignore[import-not-found]  # in the same directory
from order_channel import Channel, LastExit, Order, State  # type: ignore[import-not-found]
from process_tree import (  # type: ignore[import-not-found]
    clear_shared_memory,
    kill_descendants,
    pythons_below,
)
from program_run import (  # type: ignore[import-not-found]
    ENDING,
    FORWARDED,
    STACKS_SIGNAL,
    ProgramRun,
    cannot_start,
    write_line,
    write_signal,
)
from warm_start import WarmStart  # type: ignore[import-not-found]

SILENCE_SECONDS = 20.0
"""The pod ends if the operator has not answered for this long since the end of the program. The first program starts
after this time."""
KILL_SECONDS = 0.02
"""Interval in which processes that are left are killed again."""
STACK_SECONDS = 0.3
"""Time for one process to write its stacks before the next one is signaled."""


class Supervisor:
    """`run` once. An empty `pattern`: the output is not parsed. Without `in_place` the pod ends with the program.
    `together`: it waits for an order before the first start. `warm`: the next attempt's program is started in
    advance."""

    def __init__(
        self,
        program: list[str],
        env: dict[str, str],
        pattern: str,
        in_place: bool,
        together: bool = False,
        warm: bool = False,
    ) -> None:
        self._program, self._env, self._pattern, self._in_place = program, env, pattern, in_place
        self._before_first = together
        """The pod waits for the other pods of its first attempt."""
        self._waits_since = time.monotonic()
        self._channel = None
        self._code = JobCode.of_pod(env) if in_place else None
        self._warm: WarmStart | None = None
        if in_place and warm:
            with contextlib.suppress(OSError):  # no folder for temporary files
                self._warm = WarmStart(program, env, bool(pattern))
        if in_place or together:
            self._channel = Channel(env["ALLRANKS_REPORT_URL"], env["ALLRANKS_REPORT_TOKEN_FILE"], self._receive)
        attempt = env.get("ALLRANKS_ATTEMPT", "")
        self._state = State(int(attempt) if attempt.isdecimal() else 0, "Down")
        self._run: ProgramRun | None = None
        """The program while it runs."""
        self._began = 0.0
        """Start of the attempt, in seconds since the epoch."""
        self._next: tuple[int, int] | None = None
        """The attempt, and the restart in it, for which everything is being stopped."""
        self._kill_at: float | None = None
        """End of the grace of a stop."""
        self._cleared = True
        """No process of an attempt that ended is left."""
        self._ending = False
        """The kubelet ends the pod."""
        self._code_is_lost = False
        """The code of the attempt cannot be had: the pod ends, and a new one gets it."""
        self._early: list[int] = []
        self._orders: collections.deque[Order] = collections.deque()
        self._woken, self._wake = os.pipe()

    def run(self) -> int:
        """Return the exit status of the program: its code, 128 + n for signal n."""
        try:
            return self._supervise()
        finally:
            if self._warm is not None:
                self._warm.close()

    def _supervise(self) -> int:
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        # Signals, including SIGCHLD, wake the main thread through a pipe: a signal right before a blocking waitpid
        # would be forwarded too late.
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
                signal.signal(number, self._forward)
        status = None
        if self._before_first:
            self._tell(self._state)
        else:
            status = self._start()
        while status is None:
            status = self._reap()
            while status is None and self._orders:
                status = self._obey(self._orders.popleft())
            if status is None:
                status = self._continue()
            if status is None:
                select.select([self._woken], [], [], self._seconds())
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
        return status

    # --- the program -------------------------------------------------------------------------------------------------

    def _start(self) -> int | None:
        """Start the program. Return the exit status if that is impossible."""
        self._early.clear()
        self._before_first = False
        self._began = time.time()
        matcher = self._report_output() if self._pattern else None
        try:
            prepared = self._warm.take(self._env) if self._warm is not None else None
            self._run = ProgramRun(self._program, self._env, matcher, prepared)
        except OSError as error:
            return int(cannot_start(self._program, error))
        for early in tuple(self._early):
            self._forward(early, None)
        self._cleared = False
        self._tell(self._state._replace(state="Running", started_at=time.monotonic()))
        return None

    def _report_output(self) -> Matcher:
        from allranks import report

        def report_match(values: dict[str, Any]) -> None:
            metrics = values.pop("metrics", {})
            report.report(**{**metrics, **values})

        report.forget()
        report.answer_stacks(dump_stacks)
        return Matcher(self._pattern, report_match, write_line)

    def _forward(self, number: int, frame: object) -> None:
        self._ending = self._ending or number in ENDING
        if self._run is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._run.process.pid, number)
        else:
            self._early.append(number)

    def _reap(self) -> int | None:
        """Reap what has ended, also orphans. Return the exit status if the pod ends with the program."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, raw = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if self._run is None or pid != self._run.process.pid:
                    continue
                run, self._run = self._run, None
                run.process.returncode = os.waitstatus_to_exitcode(raw)
                if (status := self._program_ended(run, run.process.returncode)) is not None:
                    return status
        return None

    def _program_ended(self, run: ProgramRun, code: int) -> int | None:
        at = time.monotonic()
        restarts = self._in_place and not self._ending and (code != 0 or self._next is not None)
        if restarts:
            kill_descendants(self._spared(run))  # as the kernel does at the end of a pod
        run.finish()
        if self._pattern:
            from allranks import report

            report.finish()
        message = ""
        if code < 0:
            message = f"\nallranks: {write_signal(-code)}"
        status = 128 - code if code < 0 else code
        if not restarts:
            return status
        message = (run.last_output().rstrip("\n") + message).lstrip("\n")
        last = LastExit(self._state.attempt, status, -code if code < 0 else None, at, message)
        self._tell(self._state._replace(state="Ended", last=last))
        return None

    # --- orders ------------------------------------------------------------------------------------------------------

    def _receive(self, order: Order) -> None:
        """Take an order, in the channel's thread."""
        self._orders.append(order)
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b"\0")

    def _obey(self, order: Order) -> int | None:
        """Begin what an order says; ignore one that is old. Return the exit status if the pod ends."""
        if order.action == "Exit" and self._run is None:
            return self._status()
        if order.action == "Stop" and order.process > max(self._state.process, self._next or (0, 0)):
            self._next, self._before_first = order.process, False
            if self._run is not None and self._kill_at is None:
                with contextlib.suppress(PermissionError):  # then it is not ended, and the operator creates new pods
                    os.kill(self._run.process.pid, signal.SIGTERM)
                self._kill_at = time.monotonic() + order.grace
        elif order.action == "Start" and self._is_down_for(order):
            for name, value in order.env.items():
                for environment in (self._env, os.environ):
                    if value is None:
                        environment.pop(name, None)
                    else:
                        environment[name] = value
            if order.code and not self._replace_code(order.code):
                return self._status() if self._code_is_lost else None
            if order.restart:
                write_line(f"restart {order.restart} in attempt {order.attempt} begins in this pod")
            elif not self._before_first:
                write_line(f"attempt {order.attempt} begins in this pod")  # `allranks logs` reads it
            return self._start()
        return None

    def _replace_code(self, sha256: str) -> bool:
        """Fetch the code of the attempt. Return False if the program cannot start with it: never with older code."""
        try:
            if self._code is None:
                raise Unavailable("the pod has none that can be replaced")
            return bool(self._code.replace(sha256, lambda: self._ending)) and not self._ending
        except Unavailable as error:
            write_line(f"code {sha256[:12]}: {error}")
            self._code_is_lost = True
            return False

    def _is_down_for(self, order: Order) -> bool:
        return (self._state.state, self._state.process, self._next, self._ending) == (
            "Down",
            order.process,
            None,
            False,
        )

    def _continue(self) -> int | None:
        """Do what is due. Return the exit status if the pod ends."""
        if self._run is not None:
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                kill_descendants(self._spared(self._run))
            elif self._warm is not None and self._kill_at is None:
                self._warm.look(self._run.process.pid, self._env)
            return None
        if self._ending or time.monotonic() >= self._silent_at():
            if self._before_first and not self._ending:
                write_line(f"no answer of the operator for {SILENCE_SECONDS:g} s: not waiting for the other pods")
                return self._start()
            return self._status()
        if not self._cleared and kill_descendants(self._spared(None)):
            self._cleared = True
            clear_shared_memory(self._began)
        if self._cleared and self._next is not None:
            (attempt, restart), self._next, self._kill_at = self._next, None, None
            self._tell(State(attempt, "Down", None, self._state.last, self._state.number, restart=restart))
        return None

    def _spared(self, run: ProgramRun | None) -> set[int]:
        """Return the processes that the end of an attempt does not end."""
        matcher = {run.matcher_pid} if run is not None and run.matcher_pid is not None else set()
        return matcher | (self._warm.pids() if self._warm is not None else set())

    def _seconds(self) -> float | None:
        """Return how long nothing is due."""
        if self._run is not None:
            if self._kill_at is None:
                return self._warm.seconds() if self._warm is not None else None
            return max(KILL_SECONDS, self._kill_at - time.monotonic())
        return max(0.0, self._silent_at() - time.monotonic()) if self._cleared else KILL_SECONDS

    def _silent_at(self) -> float:
        """Return when the operator has been silent for too long."""
        assert self._channel is not None
        since = self._state.last.at if self._state.last is not None else self._waits_since
        return float(max(since, self._channel.answered_at) + SILENCE_SECONDS)

    def _status(self) -> int:
        """Return the exit status after the program has ended. One that was stopped, or has not started, has not
        succeeded."""
        code = self._state.last.code if self._state.last is not None else 0
        return code or 128 + signal.SIGTERM

    def _tell(self, state: State) -> None:
        code = self._code.sha256 if self._code else None
        self._state = state._replace(number=self._state.number + 1, code=code)
        if self._channel is not None:
            self._channel.tell(self._state)


def dump_stacks(stack_dump_id: str) -> None:
    """Signal all Python descendants to dump their stacks, one after another."""
    from allranks.report.client import reason_for
    from allranks.report.stacks import pod

    any_signaled = False
    for pid, command in pythons_below(os.getpid(), STACKS_SIGNAL):
        write_line(f"process {pid} ({command}, {pod()}): stacks, asked for because {reason_for(stack_dump_id)}")
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, STACKS_SIGNAL)
            any_signaled = True
        time.sleep(STACK_SECONDS)
    if not any_signaled:
        write_line(f"no process of {pod()} can show its stacks, asked for because {reason_for(stack_dump_id)}")
