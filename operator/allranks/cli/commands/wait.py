"""`allranks wait`, and the part of `allranks submit` that follows a job to its end."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import click

from allranks.api.status import FINISHED, Status
from allranks.cli.format.outcome import failure_block, summary
from allranks.cli.live.follow import Follower, Gone
from allranks.cli.live.renderer import View
from allranks.cli.live.summary import failure_line
from allranks.cli.options import FAILED, OK, TIMED_OUT, Duration, colours, get_job, names_callback, on_cluster
from allranks.core.model import Pod
from allranks.core.naming import TRAINER
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import status_of
from allranks.kube.pod_logs import Line, Wanted
from allranks.open_files import raise_open_files

STATES: dict[str, Callable[[Status], bool]] = {
    "succeeded": lambda status: status.phase in FINISHED,
    "finished": lambda status: status.phase in FINISHED,
    "running": lambda status: status.phase in (*FINISHED, "Running"),
}
"""What is waited for -> whether the waiting is over; not that it ended well."""


@click.command(
    epilog="""\b
Examples:
  allranks wait penguins
  allranks wait penguins --for running --timeout 10m
  allranks wait penguins --logs
  allranks wait penguins --for finished && allranks describe penguins
\b
Exit status:
  0 it came to pass, 1 the job failed, or was deleted, or the cluster refuses,
  124 the time was over, 130 interrupted by Ctrl-C. The job goes on in any case.
"""
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", callback=names_callback)
@click.option(
    "--for",
    "state",
    type=click.Choice(list(STATES)),
    default="succeeded",
    show_default=True,
    help="succeeded: a job that fails is told, status 1. finished: however it ends, status 0. running: all ranks run.",
)
@click.option("--timeout", type=Duration(), metavar="TIME", help="Give up after so long: 90s, 10m. [default: never]")
@click.option("--logs", is_flag=True, help="Show what the ranks print from now on.")
@click.option("-q", "--quiet", is_flag=True, help="Show only how it ended.")
@on_cluster
async def wait(
    cluster: Cluster, names: tuple[str, ...], state: str, timeout: float | None, logs: bool, quiet: bool
) -> int:
    """Wait for jobs, one after the other, and print how they are doing meanwhile.

    For a job that fails: the first rank that failed, how, and its last lines.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    wanted = Wanted(tail=0) if logs else None
    for name in names:
        job = await get_job(cluster, name)
        status = await until(cluster, job, state, sys.stdout, deadline=deadline, wanted=wanted, quiet=quiet)
        if status != OK:
            return status
    return OK


async def until(
    cluster: Cluster,
    job: Manifest,
    state: str,
    human: TextIO,
    *,
    deadline: float | None = None,
    wanted: Wanted | None = None,
    quiet: bool = False,
) -> int:
    """Shows a job until it is in that state, or over. The exit status. `deadline` as time.monotonic() has it."""
    name = job["metadata"]["name"]
    cluster.interrupted = f"{name} goes on: allranks logs -f {name} shows it, allranks delete {name} ends it"
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    gone: list[bool] = []

    def hung_up() -> None:
        gone.append(True)
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)

    view = View(
        human, live=human.isatty(), colour=colours(human), logs=wanted is not None, quiet=quiet, hung_up=hung_up
    )
    shown = _Shown(view)
    follower = Follower(cluster, job, shown, wanted)
    if wanted:
        raise_open_files()
    view.begin(name)
    reached: Status | None = None
    try:
        async with asyncio.timeout(None if deadline is None else max(0.0, deadline - time.monotonic())):
            await follower.look()
            reached = await follower.follow(STATES[state])
    except TimeoutError:
        pass
    except Gone:
        view.end()
        click.echo(f"{name} was deleted", err=True)
        return FAILED
    except asyncio.CancelledError:
        if gone:
            raise BrokenPipeError from None
        raise
    finally:
        view.end()
    if reached is None:
        phase = status_of(follower.job).phase
        click.echo(f"the time is over: {name} is {phase}, and goes on", err=True)
        return TIMED_OUT
    return _tell_ending(name, reached, state, view, human)


def _tell_ending(name: str, status: Status, state: str, view: View, human: TextIO) -> int:
    if status.phase not in FINISHED:
        _print(human, f"{name} is {status.phase}: {status.ready} pods running", fg="green", bold=True)
        return OK
    good = status.phase == "Succeeded"
    line = summary(name, status, view.elapsed, "finished")
    _print(human, line, fg="green" if good else "red", bold=True)
    if good:
        return OK
    for text in failure_block(status):
        _print(human, text, **({} if text.startswith(" ") else {"fg": "red"}))
    _print(human, f"More: allranks describe {name}; allranks logs {name}")
    return OK if state == "finished" else FAILED


def _print(human: TextIO, text: str, **style: Any) -> None:
    colour = colours(human)
    click.echo(click.style(text, **style) if colour else text, file=human, color=colour)


class _Shown:
    """Tells a view of `allranks run` about a job on a cluster."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._failure: object = None
        self._begun = False

    def status(self, status: Status, pods: Sequence[Pod]) -> None:
        failure = status.last_failure
        key = failure and (failure.pod, failure.time)
        if failure and self._begun and key != self._failure and status.phase not in FINISHED:
            self._view.say(failure_line(failure))
        self._failure, self._begun = key, True
        self._view.status(status, pods)

    def lines(self, pod: Pod, lines: list[Line]) -> None:
        self._view.output(pod, TRAINER, b"".join(line.text + b"\n" for line in lines))

    def say(self, text: str) -> None:
        self._view.say(text)
