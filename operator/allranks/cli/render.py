"""`allranks validate` and `allranks render`: what the API server would say, and what it would get."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import Any

import click

from allranks.errors import AllranksError, InvalidManifest
from allranks.version import __version__

BAD_MANIFEST = 2
"""Exit status for a manifest that is refused."""

HELPER_IMAGE = f"ghcr.io/allranks/operator:{__version__}"
NO_UID = "00000000-0000-0000-0000-000000000000"
"""The API server gives the UID; before that there is none."""


def files_argument(command: Callable[..., None]) -> Callable[..., None]:
    """`FILE...`, and kubectl's `-f FILE`: the command gets both as `files`, at least one."""

    @functools.wraps(command)
    def with_files(files: tuple[str, ...], filenames: tuple[str, ...], **options: Any) -> None:
        if not files and not filenames:
            raise click.UsageError("which manifest? Give a FILE, or - for standard input.")
        command(files=(*files, *filenames), **options)

    option = click.option("-f", "--filename", "filenames", multiple=True, metavar="FILE", help="The same as FILE.")
    return click.argument("files", nargs=-1, metavar="FILE...")(option(with_files))


set_option = click.option(
    "--set", "sets", multiple=True, metavar="PATH=VALUE", help="Override a field, for example roles.worker.replicas=2."
)


def complain(error: AllranksError) -> None:
    """Prints an error for people: every problem on its own line."""
    problems = error.problems if isinstance(error, InvalidManifest) else [("", str(error))]
    for path, message in problems:
        click.echo(f"{click.style('error:', fg='red')} {path + ': ' if path else ''}{message}", err=True)


@click.command(
    epilog="""\b
Examples:
  allranks validate job.yaml
  cat job.yaml | allranks validate -
  allranks validate job.yaml -o json --set image=me/train:2
"""
)
@files_argument
@set_option
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How to print the result.")
def validate(files: tuple[str, ...], sets: tuple[str, ...], output: str) -> None:
    """Check manifests as the API server would, and tell every error with its field path.

    FILE may be - for standard input. Exit status: 0 valid, 2 not.
    """
    from allranks.cli.manifests import load

    try:
        loaded = load(files, sets)
    except InvalidManifest as error:
        if output == "json":
            problems = [{"path": path, "message": message} for path, message in error.problems]
            click.echo(json.dumps({"valid": False, "problems": problems}, indent=2))
        else:
            complain(error)
        sys.exit(BAD_MANIFEST)
    if output == "json":
        click.echo(json.dumps({"valid": True, "jobs": [job.name for job in loaded.jobs]}, indent=2))
    else:
        for job in loaded.jobs:
            pods = sum(role.replicas for _, role in job.spec.roles.items())
            click.echo(f"{job.name} is valid: {job.spec.framework}, {pods} pods")


@click.command(
    epilog="""\b
Examples:
  allranks render job.yaml
  allranks render job.yaml -o json | jq .metadata.name
"""
)
@files_argument
@set_option
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", help="How to print the objects.")
@click.option("--helper-image", default=HELPER_IMAGE, show_default=True, help="Image that brings in-pod helpers.")
def render(files: tuple[str, ...], sets: tuple[str, ...], output: str, helper_image: str) -> None:
    """Print the objects that the cluster would get for a job's first attempt.

    The UID in their owner references is the API server's to give, and zero here. Exit status: 0, 2 for a bad manifest.
    """
    from allranks.cli.manifests import load
    from allranks.cli.output import dump

    try:
        loaded = load(files, sets)
    except InvalidManifest as error:
        complain(error)
        sys.exit(BAD_MANIFEST)
    objects = [manifest for job in loaded.jobs for manifest in rendered(job, helper_image)]
    if output == "json":
        click.echo("\n".join(json.dumps(manifest) for manifest in objects))
    else:
        click.echo(dump(objects), nl=False)


def rendered(job: Any, helper_image: str = HELPER_IMAGE) -> list[dict[str, Any]]:
    """The objects of a job's first attempt on a cluster."""
    from allranks.api.status import Status
    from allranks.core import desired
    from allranks.core.model import Platform

    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": NO_UID})})
    platform = Platform(helper_image=helper_image)
    objects = desired.objects(job, Status(), platform)
    return objects.companions + objects.pods
