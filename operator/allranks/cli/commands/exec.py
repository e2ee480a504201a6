"""`allranks exec`: runs a command in the pod of a rank."""

from __future__ import annotations

import click

from allranks.cli.completers import complete_jobs
from allranks.cli.kubectl import dry_run_option, run_kubectl, terminal_flags, terminal_options
from allranks.cli.options import cluster_options, name_callback
from allranks.cli.rank_pods import Choice, rank_options
from allranks.kube.cluster import Where

SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash || exec sh")


@click.command(
    epilog="""\b
Examples:
  allranks exec penguins                                   # a shell in the pod of rank 0
  allranks exec penguins --rank 3 -- nvidia-smi
  allranks exec penguins --role worker --index 1 -- py-spy dump --pid 1
  tar c src | allranks exec penguins --rank 3 -i -- tar x -C /tmp
\b
Exit status:
  That of the command. 1 if the rank has no running pod or the API server rejects the request,
  2 if the job has no such rank.
"""
)
@click.argument("name", metavar="JOB", callback=name_callback, shell_complete=complete_jobs)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@rank_options
@terminal_options
@dry_run_option
@cluster_options
def exec_(
    where: Where,
    name: str,
    command: tuple[str, ...],
    choice: Choice,
    stdin: bool,
    tty: bool,
    dry_run: bool,
) -> None:
    """Run a command in the pod of a rank, by kubectl exec. Without a command: a shell.

    The pod is that of the current attempt. The command runs as the user of the container, and does not end when the
    connection is lost: stop what you started.
    """
    flags = terminal_flags(stdin, tty)
    run_kubectl(
        where,
        name,
        choice,
        lambda pod, _: ["exec", pod.name, f"--container={choice.container}", *flags, "--", *(command or SHELL)],
        dry_run=dry_run,
    )
