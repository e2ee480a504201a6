"""`allranks cp`: copies files from or to the pod of a rank."""

from __future__ import annotations

import re

import click

from allranks.cli.completers import complete_files
from allranks.cli.kubectl import dry_run_option, run_kubectl
from allranks.cli.options import cluster_options, job_name
from allranks.cli.rank_pods import Choice, rank_options
from allranks.core.facts.model import Pod
from allranks.kube.cluster import Where

_REMOTE = re.compile(r"((?:[^/:]+/)?[^/:]{2,}):(.*)", re.DOTALL)
"""`JOB:PATH`. One letter before the colon is a drive of Windows."""


@click.command(
    epilog="""\b
Examples:
  allranks cp penguins:/checkpoints/model.pt model.pt
  allranks cp penguins:/tmp/trace.json trace.json --rank 3
  allranks cp train.py penguins:/workspace/train.py --role worker --index 1
\b
Exit status:
  0 copied, 1 the rank has no running pod, its image has no tar, or the API server rejects the
  request, 2 if the job has no such rank.
"""
)
@click.argument("source", metavar="SOURCE", shell_complete=complete_files)
@click.argument("target", metavar="TARGET", shell_complete=complete_files)
@rank_options
@dry_run_option
@cluster_options
def cp(where: Where, source: str, target: str, choice: Choice, dry_run: bool) -> None:
    """Copy files and directories from or to the pod of a rank, by kubectl cp. One of the paths is JOB:PATH.

    The image needs the program tar.
    """
    remote = [_REMOTE.fullmatch(path) for path in (source, target)]
    named = [match for match in remote if match]
    if len(named) != 1 or not named[0][2]:
        raise click.UsageError("specify exactly one path in a pod, as JOB:PATH, for example penguins:/tmp/trace.json.")
    name = job_name(named[0][1])

    def arguments(pod: Pod, namespace: str) -> list[str]:
        paths = [
            f"{namespace}/{pod.name}:{match[2]}" if match else path
            for match, path in zip(remote, (source, target), strict=True)
        ]
        return ["cp", f"--container={choice.container}", "--", *paths]

    run_kubectl(where, name, choice, arguments, dry_run=dry_run)
