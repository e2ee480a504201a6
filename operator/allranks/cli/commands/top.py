"""`allranks top`: what jobs are doing, drawn anew until it is enough."""

from __future__ import annotations

import asyncio
import contextlib
import json
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
from allranks.cli.format import plots
from allranks.cli.live import dashboard
from allranks.cli.live.dashboard import Known, data, known
from allranks.cli.live.terminal import Board, terminal
from allranks.cli.options import FAILED, OK, Duration, colours, get_job, job_name, on_cluster
from allranks.kube.cluster import Change, Cluster, Manifest, Watch, metadata
from allranks.kube.paths import job_path

LEAST_SECONDS = 0.2


def _name(_context: click.Context, _parameter: click.Parameter, given: str | None) -> str | None:
    return job_name(given) if given else None


@click.command(
    epilog="""\b
Examples:
  allranks top
  allranks top penguins
  allranks top -A --interval 5s
  allranks top penguins --once
  allranks top -o json | jq '.jobs[] | {name, goodput}'
\b
On a terminal it goes on until q or Ctrl-C, for one job until that is over; anywhere else it prints once.
\b
Exit status:
  0 shown, 1 the job is not there or was deleted, or the cluster refuses, 130 Ctrl-C.
"""
)
@click.argument("name", required=False, metavar="[JOB]", callback=_name)
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of all namespaces.")
@click.option("-l", "--selector", metavar="LABELS", help="Only jobs with these labels, for example team=nlp.")
@click.option("-o", "--output", type=click.Choice(["json"]), help="Print the data once, for programs.")
@click.option("--once", is_flag=True, help="Print once, plain, and end.")
@click.option(
    "--interval", type=Duration(), default="2s", show_default=True, metavar="TIME", help="Draw anew so often."
)
@on_cluster
async def top(
    cluster: Cluster,
    name: str | None,
    all_namespaces: bool,
    selector: str | None,
    output: str | None,
    once: bool,
    interval: float,
) -> int:
    """Show what jobs are doing: progress, rates, ETA, restarts, goodput, slow ranks, the curve of the loss.

    For one job also its ranks, the slowest first, and where its time went.
    """
    if name and all_namespaces:
        raise click.UsageError("a job that is named is in one namespace: give its namespace with -n, not -A.")
    if name and selector:
        raise click.UsageError("give either a name or a selector, not both.")
    if name:
        await get_job(cluster, name)  # for the sentence that says what there is instead
    query = {"labelSelector": selector, "fieldSelector": f"metadata.name={name}" if name else None}
    namespace = None if all_namespaces else cluster.namespace
    shown = _Shown(name, namespace)
    watch = Watch(cluster, job_path(namespace), query, on_interruption=shown.tell)
    shown.take(await watch.listed())
    if output:
        click.echo(json.dumps(shown.data(), indent=2))
        return OK
    console = None if once or shown.over else terminal(sys.stdout, colours(sys.stdout))
    if console is None:
        _print(shown)
        return OK
    async with aclosing(watch.changes()) as changes:
        ended = await _live(Board(console), shown, changes, max(interval, LEAST_SECONDS))
    if shown.gone:
        click.echo(f"{name} was deleted", err=True)
        return FAILED
    if ended:
        _print(shown)  # the screen has gone, with what was on it
    return OK


class _Shown:
    """The jobs as they are now."""

    def __init__(self, name: str | None, namespace: str | None) -> None:
        self._name, self._namespace = name, namespace
        self._jobs: dict[str, Known] = {}
        self._note = ""
        self.gone = False
        """The one that is shown was deleted."""

    @property
    def over(self) -> bool:
        """There is one job, and nothing more will happen to it."""
        phases = {one.status.phase for one in self._jobs.values()}
        return bool(self._name) and bool(phases) and phases <= FINISHED

    def tell(self, text: str) -> None:
        """Of the connection."""
        self._note = text

    def take(self, items: Iterable[Manifest]) -> None:
        self._jobs = {metadata(item)["uid"]: known(item) for item in items}

    def change(self, change: Change) -> None:
        self._note = ""
        uid = metadata(change.item)["uid"]
        if change.kind == "deleted":
            self._jobs.pop(uid, None)
            self.gone = bool(self._name) and not self._jobs
        else:
            self._jobs[uid] = known(change.item)

    def data(self) -> dict[str, Any]:
        found = [data(job, datetime.now(UTC)) for job in self._jobs.values()]
        return found[0] if self._name and found else {"jobs": found}

    def lines(self, width: int, height: int, unicode: bool) -> Iterator[dashboard.Line]:
        now, found = datetime.now(UTC), list(self._jobs.values())
        if self._name and found:
            yield from dashboard.job(found[0], now, width, height and height - bool(self._note), unicode)
        elif found:
            namespaces = self._namespace is None
            height = height and height - bool(self._note)
            yield from dashboard.jobs(found, now, width, height, unicode, namespaces=namespaces)
        else:
            where = f"namespace {self._namespace}" if self._namespace else "any namespace"
            yield [(f"No jobs in {where}.", "")]
        if self._note:
            yield [(self._note, "red")]


def _print(shown: _Shown) -> None:
    """As on the screen, but all of it."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in shown.lines(width, 0, plots.draws(sys.stdout.encoding)):
        click.echo("".join(text for text, _ in line).rstrip())


async def _live(board: Board, shown: _Shown, changes: AsyncGenerator[Change], interval: float) -> bool:
    """Draws until somebody has had enough, False, or there is nothing more to see."""
    enough = asyncio.Event()

    async def read() -> None:
        async for change in changes:
            shown.change(change)
            if shown.over or shown.gone:
                return

    reading = asyncio.create_task(read())
    stop = asyncio.create_task(enough.wait())
    try:
        with board, _keys(enough.set):
            while not (reading.done() or stop.done()):
                board.draw(shown.lines)
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
    """`q` ends it, without Enter; so do signals that would leave the terminal as it is now."""
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
