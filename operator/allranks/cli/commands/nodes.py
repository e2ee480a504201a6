"""`allranks nodes`: what jobs met on nodes, and `nodes forgive`."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

import click

from allranks.cli.options import FAILED, OK, cluster_options, on_cluster, print_error, run_on_cluster
from allranks.cli.suggestions import SuggestingGroup
from allranks.client.jobs import forgive_nodes
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.kube.job_codec import status_of
from allranks.kube.paths import job_path
from allranks.views.format.duration import age
from allranks.views.format.json_form import as_json
from allranks.views.format.table import Table
from allranks.views.job_view import total_gpus
from allranks.views.nodes import JobStatus, NodeHistory, histories

_all_namespaces = click.option("-A", "--all-namespaces", is_flag=True, help="Read the jobs of all namespaces.")


@click.group(
    cls=SuggestingGroup,
    invoke_without_command=True,
    epilog="""\b
Examples:
  allranks nodes
  allranks nodes -A -o json | jq '.[] | {name, failures, lostGpuHours}'
  allranks nodes forgive gpu-7
\b
Exit status:
  0 printed, 1 the API server rejected the request.
""",
)
@click.option("-o", "--output", type=click.Choice(["json"]), help="The output format. [default: a table]")
@_all_namespaces
@cluster_options
@click.pass_context
def nodes(ctx: click.Context, where: Where, output: str | None, all_namespaces: bool) -> None:
    """Show on which nodes jobs failed, what they lost there, and which jobs avoid the nodes.

    The failures are the root causes in the statuses of the jobs, which keep ten attempts each. A job avoids a node
    until the job or ten more attempts have ended, or until `allranks nodes forgive`.
    """
    if ctx.invoked_subcommand is not None:
        if output or all_namespaces:
            raise click.UsageError("put options after forgive: allranks nodes forgive --help lists them.")
        return

    async def command(cluster: Cluster) -> int:
        jobs = [_status(job) for job in await _jobs(cluster, all_namespaces)]
        _print(list(histories(jobs).values()), output)
        return OK

    sys.exit(run_on_cluster(command, where, {}))


async def _jobs(cluster: Cluster, all_namespaces: bool) -> list[Manifest]:
    jobs: list[Manifest] = (await cluster.get(job_path(None if all_namespaces else cluster.namespace)))["items"]
    return jobs


def _status(job: Manifest) -> JobStatus:
    metadata, status = job["metadata"], status_of(job)
    return JobStatus(f"{metadata['namespace']}/{metadata['name']}", status, lambda: total_gpus(job, status))


def _print(shown: list[NodeHistory], output: str | None) -> None:
    if output:
        click.echo(json.dumps([as_json(node) for node in shown], indent=2))
        return
    if not shown:
        click.echo("No failures on nodes are on record.", err=True)
        return
    now = datetime.now(UTC)
    for line in Table(("node", "failures", "lost GPU-hours", "last failure", "avoided by")).lines(
        (
            node.name,
            ", ".join(f"{kind} {count}" for kind, count in node.failures.most_common()),
            f"{node.lost_gpu_hours:.1f}" if node.lost_gpu_hours else "",
            f"{age(last.time, now)} ago: {last.message}"[:80] if (last := node.last_failure) else "",
            ", ".join(job.job + (" (excluded)" if job.excluded else "") for job in node.avoidances),
        )
        for node in shown
    ):
        click.echo(line)


@nodes.command(
    epilog="""\b
Examples:
  allranks nodes forgive gpu-7
  allranks nodes forgive gpu-7 gpu-8 -A
\b
Exit status:
  0 no job avoids the nodes any more, 1 the API server rejected a request.
"""
)
@click.argument("names", nargs=-1, required=True, metavar="NODE...")
@_all_namespaces
@on_cluster
async def forgive(cluster: Cluster, names: tuple[str, ...], all_namespaces: bool) -> int:
    """Let jobs run on nodes again that they avoid, after a repair for example.

    It concerns the jobs that you may change, and what happened on the nodes until now. Pods that wait for other nodes
    are created again; running pods stay where they are.
    """
    status, now = OK, datetime.now(UTC)
    changed = 0
    for job in await _jobs(cluster, all_namespaces):
        try:
            if result := await forgive_nodes(cluster, job, names, now):
                click.echo(result.line)
                changed += 1
        except ClusterError as error:
            print_error(error)
            status = FAILED
    if not changed and status == OK:
        where = "any namespace" if all_namespaces else f"namespace {cluster.namespace}"
        click.echo(f"no job of {where} avoids {', '.join(names)}", err=True)
    return status
