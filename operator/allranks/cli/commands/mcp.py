"""`allranks mcp`: jobs for assistants, over the Model Context Protocol."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from allranks.cli.archived import archive_option
from allranks.cli.options import FAILED, cluster_options, print_error, root_option
from allranks.errors import AllranksError
from allranks.extras import install_command
from allranks.kube.cluster import Where
from allranks.views.safe_output import unguard_output


@click.command(
    epilog="""\b
Examples:
  claude mcp add allranks -- allranks mcp -n team
  allranks mcp --changes
"""
)
@click.option("--changes", is_flag=True, help="Offer tools that change jobs. Each asks you before it does anything.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Show the jobs of all namespaces.")
@archive_option
@root_option
@cluster_options
def mcp(where: Where, changes: bool, all_namespaces: bool, archive: str | None, root: Path) -> None:
    """Serve jobs to an assistant, over the Model Context Protocol on standard input and output.

    The tools read what `allranks ui` shows, with the rights of your kubeconfig: jobs, reports with the cause of a
    failure, logs, Events, queues, nodes, and the plan of a manifest. Your client starts the command.
    """
    if all_namespaces and where.namespace:
        raise click.UsageError("specify either -n or -A, not both.")
    try:
        from allranks.ui.assistant import server
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"allranks mcp needs the Python package {error.name}, which is not installed: {install_command('mcp')}"
        ) from error
    try:
        served = server(where, all_namespaces=all_namespaces, runs=root, archive=archive or None, changes=changes)
    except AllranksError as error:
        print_error(error)
        sys.exit(FAILED)
    unguard_output()
    served.run()
