"""Runs local jobs one after the other on one screen, passes signals on, and prints how each job ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import click

from allranks.cli.options import BAD_MANIFEST, FAILED, OK, print_error
from allranks.views.format.objects import render_data

if TYPE_CHECKING:
    from allranks.errors import AllranksError
    from allranks.local import LocalRun

NOT_STARTED = BAD_MANIFEST
_DOUBLE_SECONDS = 0.5
"""Ctrl-C received again within this time is the same key press."""


class Words(NamedTuple):
    """How the user of a run stops it, and asks for restarts."""

    stopped: str
    again: str
    restarts: str = "restarts={}"


WORDS = {
    "command": Words("Ctrl-C", "Press Ctrl-C again to kill them immediately", "--restarts {}"),
    "python": Words("Interrupted", "A second interrupt kills them immediately"),
}
"""Caller -> its words: the command line, `allranks.run`."""


RESTART_MISSED = 75
"""Exit status of a run that ended before it read a request to restart: EX_TEMPFAIL of sysexits.h."""


class Session:
    """Runs jobs one after the other, on one screen. `restarts`: a pipe, of which each byte asks for a restart."""

    def __init__(
        self,
        human: TextIO,
        output: str | None,
        *,
        colour: bool,
        logs: bool,
        quiet: bool,
        words: Words,
        restarts: int | None = None,
    ) -> None:
        from allranks.views.live.renderer import Renderer

        self._human = human
        self._output = output
        self._colour = colour
        self._quiet = quiet
        self._words = words
        self._restarts = restarts
        if restarts is not None:
            os.set_blocking(restarts, False)
        self._renderer = Renderer(
            human, live=human.isatty(), colour=colour, logs=logs, quiet=quiet, on_closed=self._on_closed_output
        )
        self._received: int | None = None
        self._received_at = 0.0
        self._run: LocalRun | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, local: LocalRun) -> int:
        """Run one job and print its outcome. Return the exit status."""
        from allranks.core.facts.topology import framework_of
        from allranks.errors import AllranksError, CannotRun

        self._renderer.begin(local.job.name, framework_of(local.job).log, local.logs)
        ending, failure = "stopped", None
        try:
            ending = asyncio.run(self._drive(local))
        except AllranksError as error:
            failure = error
        finally:
            exit_on_ctrl_c()
            self._renderer.end()
        if isinstance(failure, CannotRun):
            print_error(failure)
            return NOT_STARTED
        self._print_outcome(local, ending, failure)
        if self._restarts is not None and not self._received and self._restart_requested():
            return RESTART_MISSED
        if ending == "finished" and not failure:
            return OK if local.status.phase == "Succeeded" else FAILED
        if self._received:
            return 128 + self._received
        return NOT_STARTED if ending == "suspended" else FAILED

    async def _drive(self, local: LocalRun) -> str:
        self._run, self._loop = local, asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A signal that is ignored (nohup, background of a script) must stay ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._stop, number)
        if self._restarts is None:
            return await local.run(self._renderer)
        local.develop()
        self._loop.add_reader(self._restarts, self._restart)
        try:
            return await local.run(self._renderer)
        finally:
            self._loop.remove_reader(self._restarts)

    def _restart(self) -> None:
        assert self._run is not None
        assert self._restarts is not None
        assert self._loop is not None
        if self._restart_requested():
            self._run.restart()
        else:  # `allranks dev` was killed
            self._loop.remove_reader(self._restarts)
            self._stop(signal.SIGTERM)

    def _restart_requested(self) -> bool:
        assert self._restarts is not None
        try:
            return bool(os.read(self._restarts, 4096))
        except BlockingIOError:
            return False

    def _stop(self, number: int) -> None:
        """Terminate the ranks at the first signal, at Ctrl-C after a checkpoint; kill them at a second Ctrl-C."""
        assert self._run is not None
        now = time.monotonic()
        name = self._words.stopped if number == signal.SIGINT else signal.Signals(number).name
        if self._received is None:
            self._received, self._received_at = number, now
            pods, grace = self._run.running, self._run.grace
            wait = self._run.save_and_stop() if number == signal.SIGINT else 0
            sent = f"SIGTERM to {pods} pods, SIGKILL after {grace:g} s" if pods else "no rank runs, so the run stops"
            if wait:
                sent = f"the ranks are asked for a checkpoint; when it is stored, or after {wait} s, {sent}"
            again = f". {self._words.again}." if pods or wait else ""
            self._renderer.message(f"{name}: {sent}{again}")
            if not wait:
                self._run.stop()
        # Some wrappers forward the Ctrl-C that the terminal has already sent to us.
        elif number == signal.SIGINT and now - self._received_at > _DOUBLE_SECONDS:
            self._renderer.message(f"{name} again: SIGKILL")
            self._run.stop(at_once=True)

    def _on_closed_output(self) -> None:
        """Stop, as SIGPIPE does: the reader of our output has exited."""
        if self._loop and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop, signal.SIGPIPE)

    def _print_outcome(self, local: LocalRun, ending: str, failure: AllranksError | None) -> None:
        from allranks.views.format.outcome import failure_block, resource, summary

        job, status, run_dir = local.job, local.status, local.options.run_dir
        document = resource(job.name, job.namespace, status)
        if ending == "stopped" and not local.started:
            ending = "not started"
        try:
            if local.started:
                (run_dir / "status.yaml").write_text(render_data(document, "yaml"), encoding="utf-8")
        except OSError as error:
            click.echo(f"cannot write the status to {run_dir}: {error.strerror}", err=True)
        line = summary(job.name, status, job.metadata.creation_timestamp, self._renderer.seconds, ending)
        good = ending == "finished" and status.phase == "Succeeded"
        self._print(line, fg="green" if good else "red" if status.phase == "Failed" else "yellow", bold=True)
        uploads = status.condition("OutputsUploaded")
        if ending == "stopped" and uploads and uploads.reason == "Failed":
            self._print(uploads.message, fg="yellow")
        if failure:
            print_error(failure)
        if self._output:
            separator = "---\n" if self._output == "yaml" else ""  # manifests of several jobs follow each other
            click.echo(separator + render_data(document, self._output), nl=False)
        if ending not in ("suspended", "not started") and not self._quiet:
            self._print(f"Report: allranks report --run-dir {shlex.quote(str(run_dir))}")
            self._print(f"Logs:   {local.logs}")
        if ending == "finished" and status.phase == "Failed":
            for line in failure_block(status, local.logs):
                if not self._renderer.has_printed(line):
                    self._print(line, **({} if line.startswith(" ") else {"fg": "red"}))

    def _print(self, text: str, **style: Any) -> None:
        click.echo(click.style(text, **style) if self._colour else text, file=self._human, color=self._colour)


def exit_on_ctrl_c() -> None:
    """Let Ctrl-C exit at once while no rank runs. SIGINT stays ignored if it is (in the background of a script)."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: sys.exit(128 + signal.SIGINT))
