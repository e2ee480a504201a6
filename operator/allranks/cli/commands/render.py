"""`allranks validate` and `allranks render`: what the API server would say, and what it would get."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from allranks.errors import AllranksError, InvalidManifest
from allranks.version import __version__

if TYPE_CHECKING:
    from allranks.api.job import Job
    from allranks.api.pool import PoolSpec
    from allranks.cli.manifests import Loaded

BAD_MANIFEST = 2
"""Exit status for a manifest that is refused."""

HELPER_IMAGE = f"ghcr.io/allranks/operator:{__version__}"
REPORT_URL = "http://allranks.allranks-system.svc:8081/v1/report"
"""As the chart tells it where docs/platform/install.md installs it."""
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
        loaded = load(files, sets, pools_suffice=True)
    except InvalidManifest as error:
        if output == "json":
            problems = [{"path": path, "message": message} for path, message in error.problems]
            click.echo(json.dumps({"valid": False, "problems": problems}, indent=2))
        else:
            complain(error)
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


@click.command(
    epilog="""\b
Examples:
  allranks render job.yaml
  allranks render job.yaml -o json | jq .metadata.name
  allranks render job.yaml -f pool.yaml
"""
)
@files_argument
@set_option
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", help="How to print the objects.")
@click.option("--helper-image", default=HELPER_IMAGE, show_default=True, help="Image that brings in-pod helpers.")
@click.option(
    "--report-url",
    default=REPORT_URL,
    show_default=True,
    help="Where ranks report to, as the operator is told. Empty: nowhere.",
)
def render(files: tuple[str, ...], sets: tuple[str, ...], output: str, helper_image: str, report_url: str) -> None:
    """Print the objects that the cluster would get for a job's first attempt.

    A job that names a pool needs that TrainingPool among the files. The UID in owner references is the API server's to
    give, and zero here. Exit status: 0, 2 for a bad manifest.
    """
    from allranks.cli.format.yaml import dump
    from allranks.cli.manifests import load

    try:
        loaded = load(files, sets)
        used = _pools_used(loaded)
    except InvalidManifest as error:
        complain(error)
        sys.exit(BAD_MANIFEST)
    pairs = zip(loaded.jobs, used, strict=True)
    objects = [manifest for job, pool in pairs for manifest in rendered(job, helper_image, pool, report_url)]
    if output == "json":
        click.echo("\n".join(json.dumps(manifest) for manifest in objects))
    else:
        click.echo(dump(objects), nl=False)


def _pools_used(loaded: Loaded) -> list[PoolSpec | None]:
    """Each job's pool. Raises InvalidManifest for those that the files do not hold."""
    problems = []
    used: list[PoolSpec | None] = []
    for job in loaded.jobs:
        pool = loaded.pool(job.spec.pool) if job.spec.pool else None
        used.append(pool.spec if pool else None)
        if job.spec.pool and pool is None:
            hint = "add it, for example -f pool.yaml (kubectl get trainingpool -o yaml prints the cluster's)"
            problems.append((f"{job.name}: spec.pool", f'TrainingPool "{job.spec.pool}" is not in these files: {hint}'))
    if problems:
        raise InvalidManifest(problems)
    return used


def rendered(
    job: Job, helper_image: str = HELPER_IMAGE, pool: PoolSpec | None = None, report_url: str = REPORT_URL
) -> list[dict[str, Any]]:
    """The objects of a job's first attempt on a cluster, on that pool."""
    from allranks.api.status import Status
    from allranks.core.manifests import pods as desired
    from allranks.core.model import Platform
    from allranks.operator.settings import Settings

    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": NO_UID})})
    lost = Settings.model_fields["node_lost_seconds"].default
    platform = Platform(helper_image=helper_image, node_lost_seconds=lost, pool=pool, report_url=report_url)
    objects = desired.objects(job, Status(), platform)
    return objects.companions + objects.pods
