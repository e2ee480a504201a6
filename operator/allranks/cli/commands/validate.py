"""`allranks validate`: checks manifests with the rules of the API server, without a cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from allranks.cli.options import BAD_MANIFEST, files_argument, print_problem, set_option

if TYPE_CHECKING:
    from allranks.authoring.manifests import Finding, Loaded


@click.command(
    epilog="""\b
Examples:
  allranks validate job.yaml
  cat job.yaml | allranks validate -
  allranks validate job.yaml -o json --set image=me/train:2
  allranks validate --strict examples/*.yaml
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
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
def validate(files: tuple[str, ...], sets: tuple[str, ...], output: str, strict: bool) -> None:
    """Validate manifests with the rules of the API server, and print every error with its field path.

    Pod templates are checked with the types of Kubernetes. A field that this version of Kubernetes does not have is an
    error if it is a misspelling, and a warning otherwise. Notes are advice. FILE can be - for standard input.
    """
    from allranks.authoring.manifests import InvalidManifests, load

    try:
        loaded = load(files, sets, pools_suffice=True, sweeps_suffice=True)
    except InvalidManifests as error:
        _print(None, error.findings, output)
        sys.exit(BAD_MANIFEST)
    rejected = strict and any(finding.problem.severity == "warning" for finding in loaded.findings)
    _print(None if rejected else loaded, loaded.findings, output)
    if rejected:
        sys.exit(BAD_MANIFEST)


def _print(loaded: Loaded | None, findings: Sequence[Finding], output: str) -> None:
    """Print the findings, and the valid objects. `loaded` is None if the manifests are not valid."""
    if output == "json":
        problems = [finding.as_json() for finding in findings]
        names: dict[str, Any] = {}
        if loaded:
            names = {"jobs": list(loaded.titles), "pools": [pool.name for pool in loaded.pools]}
        names |= {"podSecurity": _pod_security(loaded)} if loaded and loaded.jobs else {}
        names |= {"sweeps": [item.sweep.name for item in loaded.sweeps]} if loaded and loaded.sweeps else {}
        click.echo(json.dumps({"valid": loaded is not None, **names, "problems": problems}, indent=2))
        return
    for finding in sorted(findings, key=lambda finding: ("error", "warning", "note").index(finding.problem.severity)):
        print_problem(finding.problem.severity, f"{finding.place}: {finding.text}")
    if loaded:
        from allranks.api import sweep_values

        for pool in loaded.pools:
            click.echo(f"{pool.name} is valid: a TrainingPool")
        for item in loaded.sweeps:
            trials = sweep_values.number_of_trials(item.sweep.spec)
            click.echo(f"{item.sweep.name} is valid: a TrainingSweep of {trials} trials")
        for job, title in zip(loaded.jobs, loaded.titles, strict=True):
            pods = sum(role.replicas for _, role in job.spec.roles.items())
            click.echo(f"{title} is valid: {job.spec.framework}, {pods} pod{'' if pods == 1 else 's'}")
        for text in dict.fromkeys(filter(None, _pod_security(loaded).values())):
            print_problem("note", text)


def _pod_security(loaded: Loaded) -> dict[str, str]:
    """Return title -> what the security of the pods of a job depends on."""
    from allranks.authoring.checks.notes import pod_security_text

    return {title: pod_security_text(job) for job, title in zip(loaded.jobs, loaded.titles, strict=True)}
