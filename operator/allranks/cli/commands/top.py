"""`allranks top`: shows live what jobs are doing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import click

from allranks.api.status import FINISHED
from allranks.cli.completers import complete_jobs
from allranks.cli.live import dashboard
from allranks.cli.live.dashboard import data, plain
from allranks.cli.local_runs import note_run
from allranks.cli.options import FAILED, OK, Duration, cluster_options, name_callback, print_error, run_on_cluster
from allranks.client.jobs import get_job
from allranks.errors import AllranksError
from allranks.kube.cluster import Change, Cluster, Manifest, Watch, Where, metadata
from allranks.kube.paths import job_path
from allranks.views.format.objects import DATA_OUTPUTS, render_data
from allranks.views.format.plots import supports_unicode
from allranks.views.format.table import Grid
from allranks.views.job_view import JobView
from allranks.views.live.terminal import FullScreen, Line, terminal
from allranks.views.safe_output import use_colour

MIN_INTERVAL = 0.2


@click.command(
    epilog="""\b
Examples:
  allranks top
  allranks top penguins
  allranks top -A --interval 5s
  allranks top penguins --once
  allranks top -o json | jq '.jobs[] | {name, goodput}'
\b
On a terminal this runs until q or Ctrl-C, for one job until the job has finished. Elsewhere it prints once.
\b
Exit status:
  0 shown, 1 the job does not exist or was deleted, or the API server rejected the request,
  130 interrupted by Ctrl-C.
"""
)
@click.argument("name", required=False, metavar="[JOB]", callback=name_callback, shell_complete=complete_jobs)
@click.option("-A", "--all-namespaces", is_flag=True, help="Show the jobs of all namespaces.")
@click.option("-l", "--selector", metavar="LABELS", help="Show only jobs with these labels, for example team=nlp.")
@click.option("-o", "--output", type=click.Choice(DATA_OUTPUTS), help="Print the data once, in this format.")
@click.option("--once", is_flag=True, help="Print once as plain text and exit.")
@click.option(
    "--interval", type=Duration(), default="2s", show_default=True, metavar="TIME", help="Time between redraws."
)
@cluster_options
def top(where: Where, name: str | None, **options: Any) -> None:
    """Show what jobs are doing: progress, rates, ETA, restarts, goodput, stragglers and the loss curve.

    For one job, this also shows its ranks, the slowest first, and where its time went.
    """

    def otherwise(error: AllranksError) -> int:
        print_error(error)
        note_run(error, "top", name)
        return FAILED

    sys.exit(run_on_cluster(_top, where, {"name": name, **options}, otherwise))


async def _top(
    cluster: Cluster,
    name: str | None,
    all_namespaces: bool,
    selector: str | None,
    output: str | None,
    once: bool,
    interval: float,
) -> int:
    if name and all_namespaces:
        raise click.UsageError("a job name needs one namespace: use -n, not -A.")
    if name and selector:
        raise click.UsageError("specify either a name or a selector, not both.")
    if name:
        await get_job(cluster, name)  # its error suggests similar names
    query = {"labelSelector": selector, "fieldSelector": f"metadata.name={name}" if name else None}
    namespace = None if all_namespaces else cluster.namespace
    shown = _Jobs(name, namespace)
    watch = Watch(cluster, job_path(namespace), query, on_interruption=shown.connection_message)
    shown.replace(await watch.listed())
    if output:
        click.echo(render_data(shown.data(), output), nl=False)
        return OK
    console = None if once or shown.finished else terminal(sys.stdout, use_colour(sys.stdout))
    if console is None:
        _print(shown)
        return OK
    async with aclosing(watch.changes()) as changes:
        ended = await _live(FullScreen(console), shown, changes, max(interval, MIN_INTERVAL))
    if shown.deleted:
        click.echo(f"{name} was deleted", err=True)
        return FAILED
    if ended:
        _print(shown)  # the alternate screen and its content are gone
    return OK


class _Jobs:
    """The current jobs."""

    def __init__(self, name: str | None, namespace: str | None) -> None:
        self._name, self._namespace = name, namespace
        self._jobs: dict[str, JobView] = {}
        self._note = ""
        self.deleted = False
        """Whether the named job was deleted."""

    @property
    def finished(self) -> bool:
        """Whether one job is shown and has finished."""
        phases = {view.phase for view in self._jobs.values()}
        return bool(self._name) and bool(phases) and phases <= FINISHED

    def connection_message(self, text: str) -> None:
        """Shown until the next change arrives."""
        self._note = text

    def replace(self, items: Iterable[Manifest]) -> None:
        self._jobs = {metadata(item)["uid"]: JobView.decode(item, datetime.now(UTC)) for item in items}

    def change(self, change: Change) -> None:
        self._note = ""
        uid = metadata(change.item)["uid"]
        if change.kind == "deleted":
            self._jobs.pop(uid, None)
            self.deleted = bool(self._name) and not self._jobs
        else:
            self._jobs[uid] = JobView.decode(change.item, datetime.now(UTC))

    def _current(self) -> list[JobView]:
        now = datetime.now(UTC)
        return [view.at(now) for view in self._jobs.values()]

    def data(self) -> dict[str, Any]:
        jobs = [data(view) for view in self._current()]
        return jobs[0] if self._name and jobs else {"jobs": jobs}

    def content(self, width: int, height: int, unicode: bool) -> Iterator[Line | Grid]:
        views = self._current()
        height = height and height - bool(self._note)
        if self._name and views:
            yield from dashboard.job(views[0], width, height, unicode)
        elif views:
            yield from dashboard.jobs(views, width, height, unicode, namespaces=self._namespace is None)
        else:
            where = f"namespace {self._namespace}" if self._namespace else "any namespace"
            yield [(f"No jobs in {where}.", "")]
        if self._note:
            yield [(self._note, "red")]


def _print(shown: _Jobs) -> None:
    """Prints the whole content as plain text."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in plain(shown.content(width, 0, supports_unicode(sys.stdout.encoding))):
        click.echo(line)


async def _live(screen: FullScreen, shown: _Jobs, changes: AsyncGenerator[Change], interval: float) -> bool:
    """Draws until the user quits (False), or the job has finished or was deleted (True)."""
    quitting = asyncio.Event()

    async def read() -> None:
        async for change in changes:
            shown.change(change)
            if shown.finished or shown.deleted:
                return

    reading = asyncio.create_task(read())
    stop = asyncio.create_task(quitting.wait())
    try:
        with screen, _keys(quitting.set):
            while not (reading.done() or stop.done()):
                screen.draw(shown.content)
                await asyncio.wait({reading, stop}, timeout=interval, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            reading.result()
        return reading.done()
    finally:
        for task in (reading, stop):
            task.cancel()
        await asyncio.gather(reading, stop, return_exceptions=True)


@contextlib.contextmanager
def _keys(quit_: Callable[[], None]) -> Iterator[None]:
    """Calls `quit_` for `q` (without Enter), and for signals that would not restore the terminal."""
    loop, keyboard = asyncio.get_running_loop(), sys.stdin.fileno() if sys.stdin.isatty() else None
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, quit_)

    def pressed() -> None:
        assert keyboard is not None
        keys = os.read(keyboard, 64).lower()
        if not keys or b"q" in keys:
            quit_()

    if keyboard is not None:
        loop.add_reader(keyboard, pressed)
    try:
        yield
    finally:
        if keyboard is not None:
            loop.remove_reader(keyboard)
