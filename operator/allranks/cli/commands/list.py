"""`allranks list`: prints the jobs of a namespace."""

from __future__ import annotations

from typing import Any

import click

from allranks.cli.commands.get import print_jobs, table_options
from allranks.cli.options import on_cluster
from allranks.kube.cluster import Cluster


@click.command(
    name="list",
    hidden=True,
    epilog="""\b
Examples:
  allranks list
  allranks list -A -o wide
  allranks list -w -l team=nlp
""",
)
@table_options
@on_cluster
async def list_(cluster: Cluster, all_namespaces: bool, **options: Any) -> int:
    """Print the jobs of a namespace: an alias of allranks get."""
    return await print_jobs(cluster, (), None if all_namespaces else cluster.namespace, **options)
