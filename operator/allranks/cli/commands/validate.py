"""`allranks validate`: checks manifests with the rules of the API server, without a cluster."""

from __future__ import annotations

import json
import sys

import click

from allranks.cli.options import BAD_MANIFEST, files_argument, print_error, set_option
from allranks.errors import InvalidManifest


@click.command(
    epilog="""\b
Examples:
  allranks validate job.yaml
  cat job.yaml | allranks validate -
  allranks validate job.yaml -o json --set image=me/train:2
\b
Exit status:
  0 valid, 2 not valid.
"""
)
@files_argument
@set_option
@click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="The output format."
)
def validate(files: tuple[str, ...], sets: tuple[str, ...], output: str) -> None:
    """Validate manifests with the rules of the API server, and print every error with its field path.

    FILE can be - for standard input.
    """
    from allranks.cli.manifests import load
    from allranks.core.manifests import command_notes

    try:
        loaded = load(files, sets, pools_suffice=True)
    except InvalidManifest as error:
        if output == "json":
            problems = [{"path": path, "message": message} for path, message in error.problems]
            click.echo(json.dumps({"valid": False, "problems": problems}, indent=2))
        else:
            print_error(error)
        sys.exit(BAD_MANIFEST)
    if output == "json":
        names = {"jobs": [job.name for job in loaded.jobs], "pools": [pool.name for pool in loaded.pools]}
        click.echo(json.dumps({"valid": True, **names}, indent=2))
    else:
        for pool in loaded.pools:
            click.echo(f"{pool.name} is valid: a TrainingPool")
        for job in loaded.jobs:
            pods = sum(role.replicas for _, role in job.spec.roles.items())
            click.echo(f"{job.name} is valid: {job.spec.framework}, {pods} pods")
    for job in loaded.jobs:
        for path, note in command_notes.notes(job):
            click.echo(f"note: {job.name}: {path}: {note}", err=True)
