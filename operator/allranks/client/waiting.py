"""Shows a job on a cluster until it reaches a state: for `allranks wait`, `submit --wait` and `Job.show`."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal, TextIO

from allranks.api.status import FINISHED, Status
from allranks.client.follow import Deleted, Follower
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import TRAINER
from allranks.frameworks import FRAMEWORKS
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import status_of
from allranks.kube.pod_logs import Line, LogOptions
from allranks.open_files import raise_open_files
from allranks.views.format.outcome import failure_block, failure_line, summary
from allranks.views.live.renderer import Renderer
from allranks.views.safe_output import use_colour

STATES: dict[str, Callable[[Status], bool]] = {
    "succeeded": lambda status: status.phase in FINISHED,
    "finished": lambda status: status.phase in FINISHED,
    "running": lambda status: status.phase in (*FINISHED, "Running"),
}
"""State to wait for -> whether to stop waiting, also because the job failed."""
Ending = Literal["Reached", "Failed", "TimedOut"]
"""`Failed`: the job failed, unless the state is `finished`, or was deleted."""


async def wait_for_job(
    cluster: Cluster,
    job: Manifest,
    state: str,
    human: TextIO,
    *,
    deadline: float | None = None,
    logs: LogOptions | None = None,
    quiet: bool = False,
    on_end: Callable[[Manifest], object] = lambda _job: None,
) -> Ending:
    """Show a job until it reaches the state or has finished.

    `deadline` is a value of time.monotonic(). `on_end` gets the job as it is then, also after the deadline.
    """
    name = job["metadata"]["name"]
    cluster.interrupted = f"{name} continues: allranks logs -f {name} follows it, allranks delete {name} deletes it"
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    closed = threading.Event()

    def on_closed() -> None:
        closed.set()
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)

    renderer = Renderer(
        human, live=human.isatty(), colour=use_colour(human), logs=logs is not None, quiet=quiet, on_closed=on_closed
    )
    follower = Follower(cluster, job, ToRenderer(renderer), logs)
    if logs:
        raise_open_files()
    framework = FRAMEWORKS.get((job.get("spec") or {}).get("framework", ""))
    renderer.begin(name, framework.log if framework else None)
    reached: Status | None = None
    try:
        async with asyncio.timeout(None if deadline is None else max(0.0, deadline - time.monotonic())):
            await follower.list_pods()
            reached = await follower.follow(STATES[state])
    except TimeoutError:
        pass
    except Deleted:
        renderer.end()
        print(f"{name} was deleted", file=sys.stderr)
        return "Failed"
    except asyncio.CancelledError:
        if closed.is_set():
            raise BrokenPipeError from None
        raise
    finally:
        renderer.end()
    on_end(follower.job)
    if reached is None:
        phase = status_of(follower.job).phase
        print(f"timed out: {name} is still {phase}", file=sys.stderr)
        return "TimedOut"
    created = datetime.fromisoformat(follower.job["metadata"]["creationTimestamp"])
    return _print_outcome(name, reached, created, state, renderer)


def _print_outcome(name: str, status: Status, created: datetime, state: str, renderer: Renderer) -> Ending:
    if status.phase not in FINISHED:
        renderer.print(f"{name} is {status.phase}: {status.ready} pods running", "green", bold=True)
        return "Reached"
    good = status.phase == "Succeeded"
    line = summary(name, status, created, renderer.seconds, "finished")
    renderer.print(line, "green" if good else "red", bold=True)
    if good:
        return "Reached"
    for text in failure_block(status):
        renderer.print(text, "" if text.startswith(" ") else "red")
    renderer.print(f"For details: allranks describe {name}; allranks logs {name}")
    return "Reached" if state == "finished" else "Failed"


class ToRenderer:
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
