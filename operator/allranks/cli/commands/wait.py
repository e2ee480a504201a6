"""`allranks wait`: waits until jobs reach a state. `allranks submit --wait` uses it too."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TextIO

import click

from allranks.api.status import FINISHED, Status
from allranks.cli.completers import complete_jobs
from allranks.cli.format.outcome import failure_block, failure_line, summary
from allranks.cli.live.follow import Deleted, Follower
from allranks.cli.live.renderer import Renderer
from allranks.cli.options import (
    FAILED,
    OK,
    TIMED_OUT,
    Duration,
    get_job,
    names_callback,
    object_output_option,
    on_cluster,
    print_jobs,
)
from allranks.cli.safe_output import use_colour
from allranks.core.model import Pod
from allranks.core.naming import TRAINER
from allranks.frameworks import FRAMEWORKS
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import status_of
from allranks.kube.pod_logs import Line, LogOptions
from allranks.open_files import raise_open_files

STATES: dict[str, Callable[[Status], bool]] = {
    "succeeded": lambda status: status.phase in FINISHED,
    "finished": lambda status: status.phase in FINISHED,
    "running": lambda status: status.phase in (*FINISHED, "Running"),
}
"""State to wait for -> whether to stop waiting, also because the job failed."""


@click.command(
    epilog="""\b
Examples:
  allranks wait penguins
  allranks wait penguins --for running --timeout 10m
  allranks wait penguins --logs
  allranks wait penguins --for finished && allranks describe penguins
\b
Exit status:
  0 condition met, 1 the job failed or was deleted, or the API server rejected the request, 124 timed out,
  130 interrupted by Ctrl-C. The job continues in any case.
"""
)
@click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", callback=names_callback, shell_complete=complete_jobs
)
@click.option(
    "--for",
    "state",
    type=click.Choice(list(STATES)),
    default="succeeded",
    show_default=True,
    help="succeeded: exit status 1 if the job fails. finished: 0 also if it fails. running: until all ranks run.",
)
@click.option("--timeout", type=Duration(), metavar="TIME", help="Time limit, for example 90s or 10m. [default: none]")
@click.option("--logs", is_flag=True, help="Print the logs of the ranks from now on.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the outcome.")
@object_output_option
@on_cluster
async def wait(
    cluster: Cluster,
    names: tuple[str, ...],
    state: str,
    timeout: float | None,
    logs: bool,
    quiet: bool,
    output: str | None,
) -> int:
    """Wait for jobs, one after the other, and print their progress.

    If a job fails, this prints the first rank that failed, the reason, and the last lines of its log.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    wanted = LogOptions(tail=0) if logs else None
    human = sys.stderr if output else sys.stdout
    jobs: list[Manifest] = []
    status = OK
    try:
        for name in names:
            job = await get_job(cluster, name)
            status = await wait_for_job(
                cluster, job, state, human, deadline=deadline, wanted=wanted, quiet=quiet, on_end=jobs.append
            )
            if status != OK:
                break
    finally:
        print_jobs(jobs, output, single=len(names) == 1)
    return status


async def wait_for_job(
    cluster: Cluster,
    job: Manifest,
    state: str,
    human: TextIO,
    *,
    deadline: float | None = None,
    wanted: LogOptions | None = None,
    quiet: bool = False,
    on_end: Callable[[Manifest], object] = lambda _job: None,
) -> int:
    """Shows a job until it reaches the state or has finished. Returns the exit status.

    `deadline` is a value of time.monotonic(). `on_end` gets the job as it is then, also after the deadline.
    """
    name = job["metadata"]["name"]
    cluster.interrupted = f"{name} continues: allranks logs -f {name} follows it, allranks delete {name} deletes it"
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    closed = False

    def on_closed() -> None:
        nonlocal closed
        closed = True
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)

    renderer = Renderer(
        human, live=human.isatty(), colour=use_colour(human), logs=wanted is not None, quiet=quiet, on_closed=on_closed
    )
    follower = Follower(cluster, job, _ToRenderer(renderer), wanted)
    if wanted:
        raise_open_files()
    renderer.begin(name, FRAMEWORKS.get((job.get("spec") or {}).get("framework", "")))
    reached: Status | None = None
    try:
        async with asyncio.timeout(None if deadline is None else max(0.0, deadline - time.monotonic())):
            await follower.list_pods()
            reached = await follower.follow(STATES[state])
    except TimeoutError:
        pass
    except Deleted:
        renderer.end()
        click.echo(f"{name} was deleted", err=True)
        return FAILED
    except asyncio.CancelledError:
        if closed:
            raise BrokenPipeError from None
        raise
    finally:
        renderer.end()
    on_end(follower.job)
    if reached is None:
        phase = status_of(follower.job).phase
        click.echo(f"timed out: {name} is still {phase}", err=True)
        return TIMED_OUT
    created = datetime.fromisoformat(follower.job["metadata"]["creationTimestamp"])
    return _print_outcome(name, reached, created, state, renderer, human)


def _print_outcome(name: str, status: Status, created: datetime, state: str, renderer: Renderer, human: TextIO) -> int:
    if status.phase not in FINISHED:
        _print(human, f"{name} is {status.phase}: {status.ready} pods running", fg="green", bold=True)
        return OK
    good = status.phase == "Succeeded"
    line = summary(name, status, created, renderer.seconds, "finished")
    _print(human, line, fg="green" if good else "red", bold=True)
    if good:
        return OK
    for text in failure_block(status):
        _print(human, text, **({} if text.startswith(" ") else {"fg": "red"}))
    _print(human, f"For details: allranks describe {name}; allranks logs {name}")
    return OK if state == "finished" else FAILED


def _print(human: TextIO, text: str, **style: Any) -> None:
    colour = use_colour(human)
    click.echo(click.style(text, **style) if colour else text, file=human, color=colour)


class _ToRenderer:
    """Shows a job on a cluster with the renderer of `allranks run`."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._failure: object = None
        self._begun = False

    def status(self, status: Status, pods: Sequence[Pod]) -> None:
        failure = status.last_failure
        key = failure and (failure.pod, failure.time)
        if failure and self._begun and key != self._failure and status.phase not in FINISHED:
            self._renderer.message(failure_line(failure))
        self._failure, self._begun = key, True
        self._renderer.status(status, pods)

    def lines(self, pod: Pod, lines: list[Line]) -> None:
        self._renderer.output(pod, TRAINER, b"".join(line.text + b"\n" for line in lines))

    def message(self, text: str) -> None:
        self._renderer.message(text)
