"""`allranks usage`: what jobs used, in groups, from the cluster, an archive and the runs of this machine."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.cli.archived import Archive, archive_option
from allranks.cli.options import FAILED, OK, cluster_options, print_error, print_problem, run_on_cluster
from allranks.core.accounting.time_accounting import last_update
from allranks.errors import AllranksError, ClusterError
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.kube.job_codec import status_of
from allranks.kube.label_selectors import label_selection
from allranks.kube.paths import job_path
from allranks.views import usage as views
from allranks.views.format import duration
from allranks.views.format.json_form import as_json
from allranks.views.format.table import Table
from allranks.views.usage import UsageGroup, UsedBy

if TYPE_CHECKING:
    import msgspec

    from allranks.kube.object_text import ObjectText

Condition = Callable[[Mapping[str, str]], bool]


class _Moment(click.ParamType[datetime]):
    """A duration before now, or a date or time in UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return datetime.now(UTC) - timedelta(seconds=duration.parse(str(value)))
        except (ValueError, OverflowError):
            try:
                moment = datetime.fromisoformat(str(value))
            except ValueError:
                self.fail(f"{value} is not a time: use for example 7d, 12h, 2026-03-01 or 2026-03-01T12:00", param, ctx)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _keys(_ctx: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    try:
        return views.parse_keys(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _condition(_ctx: click.Context, _parameter: click.Parameter, value: str) -> Condition:
    try:
        return label_selection(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(
    epilog="""\b
Examples:
  allranks usage -A --since 7d
  allranks usage -A --by namespace,week -o csv > usage.csv
  allranks usage --by user --since 2026-03-01 --until 2026-04-01
  allranks usage -A --by pool,label:project -l team=nlp
  allranks usage --by job --since 1d
  allranks usage -A --archive s3://team/history -o json
  allranks usage --runs runs --by job
\b
Exit status:
  0 printed, also when there are no jobs, 1 the cluster or the archive cannot be read.
"""
)
@click.option(
    "--by",
    "keys",
    default="namespace",
    show_default=True,
    metavar="KEY[,KEY]...",
    callback=_keys,
    help=f"The groups: {', '.join(views.KEYS)}.",
)
@click.option(
    "--since", type=_Moment(), metavar="TIME", help="Only jobs that ended since then, or run: 7d, 2026-03-01."
)
@click.option("--until", type=_Moment(), metavar="TIME", help="Only jobs that ended before then.")
@click.option(
    "-l",
    "--selector",
    "labelled",
    default="",
    metavar="LABELS",
    callback=_condition,
    help="Only jobs with these labels, for example team=nlp.",
)
@click.option("-o", "--output", type=click.Choice(["csv", "json"]), help="The output format. [default: a table]")
@click.option("-A", "--all-namespaces", is_flag=True, help="Count the jobs of all namespaces.")
@click.option(
    "--runs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Count the runs of allranks run in this directory instead of a cluster.",
)
@archive_option
@cluster_options
def usage(
    where: Where,
    keys: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    labelled: Condition,
    output: str | None,
    all_namespaces: bool,
    runs: Path | None,
    archive: str | None,
) -> None:
    """Sum up GPU-hours, cost, goodput and queue time of jobs.

    Jobs of the cluster count, and with --archive deleted jobs. A job counts as a whole in the week in which it ended;
    a job that runs counts in the current week. Times are in UTC.
    """
    count = _Count(keys, since, until, labelled, output)
    if runs:
        click.echo(count.printed(_of_runs(runs)), nl=False)
        sys.exit(OK)

    async def on_cluster(cluster: Cluster) -> int:
        namespace = None if all_namespaces else cluster.namespace
        live = await cluster.items(job_path(namespace), None, _listed)
        click.echo(count.printed(_existing(live, archive, namespace, since)), nl=False)
        if not archive:
            print_problem("note", "deleted jobs are not counted without an archive: name it with --archive")
        return OK

    def without_cluster(error: AllranksError) -> int:
        if not archive or not isinstance(error, ClusterError) or error.status:
            print_error(error)
            return FAILED
        print_problem("warning", f"{error}. Only jobs of the archive are counted")
        try:
            namespace = None if all_namespaces else where.namespace or "default"
            click.echo(count.printed(_existing([], archive, namespace, since)), nl=False)
        except AllranksError as archive_error:
            print_error(archive_error)
            return FAILED
        return OK

    sys.exit(run_on_cluster(on_cluster, where, {}, without_cluster))


@dataclass(frozen=True)
class _Count:
    """Selects jobs, sums them up and writes the groups."""

    keys: tuple[str, ...]
    since: datetime | None
    until: datetime | None
    labelled: Condition
    output: str | None

    def printed(self, jobs: Iterator[UsedBy]) -> str:
        """Raises ArchiveError."""
        ended = views.selection(self.since, self.until)
        selected = (job for job in jobs if ended(job) and self.labelled(_labels(job.manifest)))
        [groups] = views.groupings(selected, [self.keys])
        if self.output == "json":
            return json.dumps([as_json(group) for group in groups], indent=2) + "\n"
        if self.output == "csv":
            return _csv(views.csv_rows(groups, self.keys))
        if not groups:
            click.echo("No jobs.", err=True)
            return ""
        return "\n".join(_table(groups, self.keys)) + "\n"


def _labels(manifest: Mapping[str, Any]) -> dict[str, str]:
    labels = (manifest.get("metadata") or {}).get("labels")
    return labels if isinstance(labels, dict) else {}


def _table(groups: Sequence[UsageGroup], keys: Sequence[str]) -> Iterator[str]:
    rows = [(*group.keys.values(), *views.cells(group)) for group in groups]
    if len(groups) > 1:
        rows.append(("all", *("" for _ in keys[1:]), *views.cells(views.total(groups))))
    # A column without any cell, such as the cost without prices, is left out.
    titles = [*(key.removeprefix("label:") for key in keys), *views.TITLES]
    shown = [place for place in range(len(titles)) if place < len(keys) or any(row[place] for row in rows)]
    return Table([titles[place] for place in shown]).lines([[row[place] for place in shown] for row in rows])


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    import io

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


# --- jobs ------------------------------------------------------------------------------------------------------------


def _listed(data: msgspec.Raw) -> ObjectText:
    from allranks.kube.object_text import object_text, without_large_spec

    return without_large_spec(object_text(data), "usage needs no large ones")


def _existing(
    live: Sequence[ObjectText], archive: str | None, namespace: str | None, since: datetime | None
) -> Iterator[UsedBy]:
    """Yield the jobs of the cluster, and those of the archive that the cluster does not have. Raises ArchiveError."""
    now = datetime.now(UTC)
    for text in live:
        manifest = text.manifest()
        yield UsedBy(manifest, status_of(manifest), now)
    if archive:
        uids = {text.metadata.get("uid") for text in live}
        for manifest in Archive(archive).reader.each_job(namespace, since):
            if manifest["metadata"]["uid"] not in uids:
                yield _ended(manifest, now)


def _of_runs(root: Path) -> Iterator[UsedBy]:
    """Yield the runs below a directory."""
    from allranks.local.run_directories import stored_runs

    now = datetime.now(UTC)
    for run in stored_runs(root):
        if manifest := run.manifest:
            yield UsedBy(manifest, status_of(manifest), now) if run.running else _ended(manifest, now)


def _ended(manifest: Manifest, now: datetime) -> UsedBy:
    """Count a job up to the last moment in its status: it may have been deleted before its end."""
    status = status_of(manifest)
    return UsedBy(manifest, status, last_update(status) or now)
