"""`allranks attach`: connects the terminal to the running program of a rank."""

from __future__ import annotations

import click

from allranks.cli.completers import complete_jobs
from allranks.cli.kubectl import dry_run_option, run_kubectl, terminal_options
from allranks.cli.options import cluster_options, name_callback
from allranks.cli.rank_pods import Choice, rank_options
from allranks.kube.cluster import Where


@click.command(
    epilog="""\b
Examples:
  allranks attach penguins                   # the output of rank 0 from now on
  allranks attach penguins --rank 3 -it      # a program that waits in pdb; needs stdin and tty in the template
\b
Exit status:
  0 the program ended, 1 the rank has no running pod or the API server rejects the request,
  2 if the job has no such rank.
"""
)
@click.argument("name", metavar="JOB", callback=name_callback, shell_complete=complete_jobs)
@rank_options
@terminal_options
@dry_run_option
@cluster_options
def attach(where: Where, name: str, choice: Choice, stdin: bool, tty: bool, dry_run: bool) -> None:
    """Connect the terminal to the running program of a rank, by kubectl attach.

    The program gets input only if its container has `stdin: true` (and `tty: true` for a terminal) in spec.template. To
    read the output of all ranks from the start: allranks logs JOB -f.
    """
    flags = [*(["--stdin"] if stdin else []), *(["--tty"] if tty else [])]
    run_kubectl(
        where,
        name,
        choice,
        lambda pod, _: ["attach", pod.name, f"--container={choice.container}", *flags],
        dry_run=dry_run,
    )
