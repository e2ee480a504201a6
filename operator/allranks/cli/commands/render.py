"""`allranks render`: prints the objects of a job, without a cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from allranks.cli.options import BAD_MANIFEST, files_argument, print_error, print_problem, set_option
from allranks.errors import InvalidManifest
from allranks.version import OPERATOR_IMAGE

if TYPE_CHECKING:
    from allranks.api.job import Job
    from allranks.api.pool import PoolSpec
    from allranks.authoring.manifests import Loaded

REPORT_URL = "http://allranks.allranks-system.svc:8081/v1/report"
"""The address of the operator's report server where docs/platform/install.md installs it."""
NO_UID = "00000000-0000-0000-0000-000000000000"
"""A job has no UID before the API server stores it."""


@click.command(
    epilog="""\b
Examples:
  allranks render job.yaml
  allranks render job.yaml -o json | jq .metadata.name
  allranks render job.yaml -f pool.yaml
  allranks render job.yaml --enforce restricted
\b
Exit status:
  0 printed, 2 a manifest is not valid.
"""
)
@files_argument
@set_option
@click.option(
    "-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="The output format."
)
@click.option(
    "--helper-image", default=OPERATOR_IMAGE, show_default=True, help="The image that provides the in-pod helpers."
)
@click.option(
    "--report-url",
    default=REPORT_URL,
    show_default=True,
    help="The URL that ranks report to; empty turns reports off.",
)
@click.option(
    "--data-image",
    help="The image that fetches inputs in the pods of a pool with inputCache.  [default: the value of --helper-image]",
)
@click.option(
    "--enforce",
    type=click.Choice(["privileged", "baseline", "restricted"]),
    help="The Pod Security Standard that the namespace enforces, by its label pod-security.kubernetes.io/enforce.  "
    "[default: privileged]",
)
def render(
    files: tuple[str, ...],
    sets: tuple[str, ...],
    output: str,
    helper_image: str,
    report_url: str,
    data_image: str | None,
    enforce: str | None,
) -> None:
    """Print the objects that the operator creates for the first attempt of a job.

    The files must contain the TrainingPools that a job names. Owner references have a UID of zeros, because the API
    server assigns the UID, and a job with generateName has the name NAME00001.
    """
    from allranks.authoring.manifests import load
    from allranks.authoring.yaml_text import dump

    try:
        loaded = load(files, sets)
        _check_pools(loaded)
    except InvalidManifest as error:
        print_error(error)
        sys.exit(BAD_MANIFEST)
    for severity, text in loaded.notes():
        print_problem(severity, text)
    pools = {pool.name: pool.spec for pool in loaded.pools}
    if enforce is None and any(job.spec.pod_security in (None, "Auto") for job in loaded.jobs):
        text = "--enforce restricted prints the pods for a namespace that does (podSecurity: Auto)"
        print_problem("note", f"the pods are for a namespace that does not enforce restricted pods: {text}")
    restricted = enforce == "restricted"
    objects = [
        item for job in loaded.jobs for item in rendered(job, helper_image, pools, report_url, data_image, restricted)
    ]
    if output == "json":
        click.echo("\n".join(json.dumps(manifest) for manifest in objects))
    else:
        click.echo(dump(objects), nl=False)


def _check_pools(loaded: Loaded) -> None:
    """Raise InvalidManifest for pools of jobs that are not in the files."""
    hint = "add it, for example -f pool.yaml (kubectl get trainingpool -o yaml prints the cluster's)"
    names = {pool.name for pool in loaded.pools}
    problems = [
        (f"{job.name}: {path}", f'TrainingPool "{name}" is not in these files: {hint}')
        for job in loaded.jobs
        for path, name in job.spec.pools.items()
        if name not in names
    ]
    if problems:
        raise InvalidManifest(problems)


def rendered(
    job: Job,
    helper_image: str = OPERATOR_IMAGE,
    pools: Mapping[str, PoolSpec] | None = None,
    report_url: str = REPORT_URL,
    data_image: str | None = None,
    restricted: bool = False,
) -> list[dict[str, Any]]:
    """Return the objects of the first attempt of a job, with its pools applied. `pools`: name -> pool."""
    from allranks.api.status import Status
    from allranks.core.facts import pod_security, pool_template
    from allranks.core.facts.data_store import DEFAULT_CACHE_BYTES, DataStore
    from allranks.core.facts.model import Platform
    from allranks.core.objects import pods, scheduling

    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": NO_UID})})
    labels = {pod_security.ENFORCE: "restricted"} if restricted else {}
    platform = Platform(
        helper_image=helper_image,
        node_lost_seconds=scheduling.NODE_LOST_SECONDS,
        pools=pools or {},
        report_url=report_url,
        why_restricted=pod_security.why_restricted(job.namespace, labels, {}),
    )
    pool = pool_template.pool_of_ranks(job, platform)
    if pool and pool.input_cache:
        platform = replace(platform, data=DataStore("", data_image or helper_image, DEFAULT_CACHE_BYTES))
    objects = pods.objects(job, Status(), platform)
    return objects.companions + objects.pods
