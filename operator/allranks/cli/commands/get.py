"""`allranks get`: prints jobs, with the columns of `kubectl get dt`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Any

import click

from allranks.api.job import KIND as JOB
from allranks.api.sweep import KIND as SWEEP
from allranks.cli import archived
from allranks.cli.archived import ARCHIVED, VARIABLE, Archive, archive_option
from allranks.cli.completers import complete_jobs
from allranks.cli.local_runs import note_run
from allranks.cli.options import FAILED, OK, cluster_options, names_callback, print_error, print_problem, run_on_cluster
from allranks.client.jobs import get_job, with_suggestion
from allranks.errors import AllranksError, ClusterError
from allranks.kube import paths
from allranks.kube.cluster import TABLE, Change, Cluster, Manifest, Watch, Where, metadata
from allranks.kube.label_selectors import label_selection
from allranks.kube.paths import job_path
from allranks.views.format.objects import OBJECT_OUTPUTS, render_objects
from allranks.views.format.table import Table

OUTPUTS = ("wide", *OBJECT_OUTPUTS)


@click.command(
    epilog="""\b
Examples:
  allranks get
  allranks get penguins -w
  allranks get -A -l team=nlp -o wide
  allranks get penguins -o json | jq -r .status.phase
  allranks get --sweeps -w
  allranks get --all --archive s3://team/history
  allranks get --all --sweeps
\b
Exit status:
  0 printed, also when there are no jobs, 1 a named job does not exist or the API server rejected the request.
"""
)
@click.argument("names", nargs=-1, metavar="[NAME]...", callback=names_callback, shell_complete=complete_jobs)
@click.option("-w", "--watch", is_flag=True, help="Watch for changes and print them, until Ctrl-C.")
@click.option("-o", "--output", type=click.Choice(OUTPUTS), help="The output format. [default: a table]")
@click.option("-l", "--selector", metavar="LABELS", help="Show only jobs with these labels, for example team=nlp.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Show the jobs of all namespaces.")
@click.option("--sweeps", is_flag=True, help="Print sweeps instead of jobs.")
@click.option("--no-headers", is_flag=True, help="Print the table without headers.")
@click.option("--all", "deleted", is_flag=True, help="Print deleted jobs or sweeps as well, from the archive.")
@archive_option
@cluster_options
def get(
    where: Where, names: tuple[str, ...], all_namespaces: bool, deleted: bool, archive: str | None, **options: Any
) -> None:
    """Print the named jobs, or all jobs of the namespace.

    With --all, jobs that are deleted and in the archive come first, or with --sweeps sweeps. The column Deleted marks
    them, and in YAML and JSON the annotation allranks.dev/archived-in.
    """
    if names and all_namespaces:
        raise click.UsageError("a job name needs one namespace: use -n, not -A.")
    if names and options["selector"]:
        raise click.UsageError("specify either names or a selector, not both.")
    if len(names) > 1 and options["watch"]:
        raise click.UsageError("--watch supports one name, a selector, or all jobs.")
    if deleted:
        sys.exit(_WithArchive(where, names, all_namespaces, archive, **options).run())

    async def command(cluster: Cluster) -> int:
        return await print_jobs(cluster, names, None if all_namespaces else cluster.namespace, **options)

    def otherwise(error: AllranksError) -> int:
        print_error(error)
        for name in () if options["sweeps"] else names:
            note_run(error, "get", name)
        return FAILED

    sys.exit(run_on_cluster(command, where, {}, otherwise))


async def print_jobs(
    cluster: Cluster,
    names: tuple[str, ...],
    namespace: str | None,
    *,
    selector: str | None,
    output: str | None,
    watch: bool,
    no_headers: bool,
    sweeps: bool = False,
) -> int:
    """Print the named jobs or all of a namespace; None: of all namespaces. Return the exit status."""
    path = paths.sweeps if sweeps else job_path
    get_object = _get_sweep if sweeps else get_job
    query = {"labelSelector": selector}
    if watch:
        if names:
            await get_object(cluster, names[0])  # its error suggests similar names
            query["fieldSelector"] = f"metadata.name={names[0]}"
        await _follow(cluster, path(namespace), query, output, namespace is None, no_headers)
        return OK
    if output in ("yaml", "json", "name"):
        items = [await get_object(cluster, name) for name in names] if names else []
        if not names:
            items = (await cluster.get(path(namespace), query))["items"]
        click.echo(render_objects(items, output, single=len(names) == 1), nl=False)
        return OK
    columns, rows = await _rows(cluster, namespace, names, query, path)
    if not rows:
        where = f"namespace {namespace}" if namespace else "any namespace"
        with_labels = f" with {selector}" if selector else ""
        click.echo(f"No {'sweeps' if sweeps else 'jobs'}{with_labels} in {where}.", err=True)
        return OK
    table = _Rows(columns, wide=output == "wide", namespaces=namespace is None, headers=not no_headers)
    for line in table.lines(rows):
        click.echo(line)
    return OK


async def _get_sweep(cluster: Cluster, name: str) -> Manifest:
    return await cluster.get(paths.sweeps(cluster.namespace, name))


async def _rows(
    cluster: Cluster, namespace: str | None, names: tuple[str, ...], query: dict[str, Any], path: Callable[..., str]
) -> tuple[list[Manifest], list[Manifest]]:
    """Return columns and rows as the API server defines them."""
    columns: list[Manifest] = []
    rows: list[Manifest] = []
    for name in names or ("",):
        try:
            answer = await cluster.get(path(namespace, name), query, TABLE)
        except ClusterError as error:
            raise (await with_suggestion(cluster, name, error) if name else error) from error
        columns = answer["columnDefinitions"]
        rows += answer.get("rows") or []
    return columns, rows


class _WithArchive:
    """Prints jobs of the archive that are deleted, then jobs of the cluster if there is one.

    Methods return the exit status, or raise AllranksError.
    """

    def __init__(
        self,
        where: Where,
        names: tuple[str, ...],
        all_namespaces: bool,
        archive: str | None,
        *,
        selector: str | None,
        output: str | None,
        watch: bool,
        no_headers: bool,
        sweeps: bool,
    ) -> None:
        """Raise UsageError without an archive, with --watch, and for a selector that is not valid."""
        if not archive:
            raise click.UsageError(f"--all reads an archive: name it with --archive or {VARIABLE}.")
        if watch:
            raise click.UsageError("--all cannot be combined with --watch.")
        try:
            self._selects = label_selection(selector or "")
        except ValueError as error:
            raise click.UsageError(f"--selector: {error}") from error
        self._where, self._names, self._all_namespaces, self._archive = where, names, all_namespaces, archive
        self._selector, self._output, self._headers, self._sweeps = selector, output, not no_headers, sweeps
        self._path, self._kind, self._word = (paths.sweeps, SWEEP, "sweep") if sweeps else (job_path, JOB, "job")

    def run(self) -> int:
        return run_on_cluster(self._from_cluster, self._where, {}, self._without_cluster)

    async def _from_cluster(self, cluster: Cluster) -> int:
        namespace = None if self._all_namespaces else cluster.namespace
        jobs = (await cluster.get(self._path(namespace), {"labelSelector": self._selector}))["items"]
        return self._print([job for job in jobs if not self._names or metadata(job)["name"] in self._names], namespace)

    def _without_cluster(self, error: AllranksError) -> int:
        if not isinstance(error, ClusterError) or error.status:
            print_error(error)
            return FAILED
        print_problem("warning", f"{error}. Only {self._word}s of the archive are printed")
        try:
            return self._print([], None if self._all_namespaces else self._where.namespace or "default", "unknown")
        except AllranksError as archive_error:
            print_error(archive_error)
            return FAILED

    def _print(self, live: list[Manifest], namespace: str | None, deleted: str = "yes") -> int:
        """`live`: the jobs of the cluster. `deleted`: the cell of the column Deleted for jobs of the archive."""
        archived_jobs = self._archived(namespace, {metadata(job)["uid"] for job in live})
        existing = {metadata(job)["name"] for job in (*live, *archived_jobs)}
        if missing := [name for name in self._names if name not in existing]:
            text = f"there is no {self._word} {missing[0]}, neither on the cluster nor in the archive {self._archive}"
            raise ClusterError(text, 404, "NotFound")
        if self._output in OBJECT_OUTPUTS:
            jobs = [*(_marked(job, self._archive) for job in archived_jobs), *live]
            click.echo(render_objects(jobs, self._output, single=len(self._names) == len(jobs) == 1), nl=False)
        elif existing:
            titles = [*archived.columns(self._kind), {"name": "Deleted", "priority": 0}]
            table = _Rows(titles, wide=self._output == "wide", namespaces=namespace is None, headers=self._headers)
            rows = [archived.row(job, self._kind, titles, {"Deleted": deleted}) for job in archived_jobs]
            rows += [archived.row(job, self._kind, titles, {"Deleted": "no"}) for job in live]
            for line in table.lines(rows):
                click.echo(line)
        else:
            click.echo(f"No {self._word}s, neither on the cluster nor in the archive.", err=True)
        return OK

    def _archived(self, namespace: str | None, live_uids: set[str]) -> list[Manifest]:
        reader = Archive(self._archive).reader
        return [
            job
            for job in (reader.sweeps if self._sweeps else reader.jobs)(namespace, self._names)
            if metadata(job)["uid"] not in live_uids and self._selects(metadata(job).get("labels") or {})
        ]


def _marked(job: Manifest, archive: str) -> Manifest:
    """Return a copy with an annotation that names the archive."""
    annotations = {**(metadata(job).get("annotations") or {}), ARCHIVED: archive}
    return {**job, "metadata": {**metadata(job), "annotations": annotations}}


class _Rows:
    """Prints rows of the API server, with the columns that the options select."""

    def __init__(
        self, columns: list[Manifest], *, wide: bool, namespaces: bool, headers: bool, watch: bool = False
    ) -> None:
        self._places = [place for place, column in enumerate(columns) if wide or not column.get("priority")]
        self._names = [column["name"] for column in columns]
        self._namespaces = namespaces
        self._headers = headers
        titles = (["Namespace"] if namespaces else []) + [self._names[place] for place in self._places]
        # `Restarting` is the longest phase; a new job gets its progress later.
        self._table = Table(titles, min_widths={"Phase": 10, "Ready": 7, "Progress": 15, "ETA": 6} if watch else None)

    def lines(self, rows: Iterable[Manifest]) -> list[str]:
        lines = list(self._table.lines([self._cells(row) for row in rows]))
        if not self._headers:
            self._headers = True
            return lines[1:]
        return lines

    def _cells(self, row: Manifest) -> list[Any]:
        front = [metadata(row)["namespace"]] if self._namespaces else []
        return front + [row["cells"][place] for place in self._places]

    def visible(self, row: Manifest) -> tuple[Any, ...]:
        """Return the cells whose changes are printed: all but the age."""
        return tuple(row["cells"][place] for place in self._places if self._names[place] != "Age")

    def deleted(self, row: Manifest) -> Manifest:
        """Return the row of a deleted job, with Deleted as phase. (kubectl repeats the last line.)"""
        cells = ["Deleted" if name == "Phase" else value for name, value in zip(self._names, row["cells"], strict=True)]
        return {**row, "cells": cells}


async def _follow(
    cluster: Cluster, path: str, query: dict[str, Any], output: str | None, namespaces: bool, no_headers: bool
) -> None:
    """Print the jobs and their changes until Ctrl-C."""
    as_table = output in (None, "wide")
    watch = Watch(cluster, path, query, table=as_table, on_interruption=lambda text: click.echo(text, err=True))
    listed = await watch.listed()
    if not listed:
        click.echo("No jobs yet.", err=True)
    table = _Rows(watch.columns, wide=output == "wide", namespaces=namespaces, headers=not no_headers, watch=True)
    printed: dict[str, tuple[Any, ...]] = {}

    def print_items(items: list[Manifest]) -> None:
        if not as_table:
            for item in items:
                document = "---\n" if output == "yaml" else ""
                click.echo(document + render_objects([item], str(output), single=True), nl=False)
        elif items:
            for line in table.lines(items):
                click.echo(line)
        sys.stdout.flush()

    if as_table:
        printed = {metadata(row)["uid"]: table.visible(row) for row in listed}
    print_items(listed)
    async with aclosing(watch.changes()) as changes:
        async for change in changes:
            if not as_table:
                print_items([change.item])
            elif row := _changed_row(change, printed, table):
                print_items([row])


def _changed_row(change: Change, printed: dict[str, tuple[Any, ...]], table: _Rows) -> Manifest | None:
    """Return the row to print, or None if no printed column changed."""
    uid = metadata(change.item)["uid"]
    if change.kind == "deleted":
        printed.pop(uid, None)
        return table.deleted(change.item)
    visible = table.visible(change.item)
    if printed.get(uid) == visible:
        return None
    printed[uid] = visible
    return change.item
