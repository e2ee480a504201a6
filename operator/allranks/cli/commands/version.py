"""`allranks version`: prints the versions of allranks and Python."""

from __future__ import annotations

import platform
import sys

import click

from allranks.version import __version__
from allranks.views.format.objects import render_data


@click.command(
    epilog="""\b
Examples:
  allranks version
  allranks version -o json | jq -r .allranks
"""
)
@click.option("-o", "--output", type=click.Choice(["json", "yaml"]), help="Print in this format.")
def version(output: str | None) -> None:
    """Print the versions of allranks and Python. `allranks doctor` also prints the versions of the cluster."""
    facts = {"allranks": __version__, "python": platform.python_version(), "executable": sys.executable}
    if output:
        click.echo(render_data(facts, output), nl=False)
    else:
        click.echo(f"allranks {__version__}, Python {facts['python']} ({sys.executable})")
