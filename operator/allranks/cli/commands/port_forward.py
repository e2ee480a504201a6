"""`allranks port-forward`: makes ports of a rank's pod reachable on this machine."""

from __future__ import annotations

import re

import click

from allranks.cli.completers import complete_jobs
from allranks.cli.kubectl import dry_run_option, run_kubectl
from allranks.cli.options import cluster_options, name_callback
from allranks.cli.rank_pods import Choice, rank_options
from allranks.kube.cluster import Where

_PORTS = re.compile(r"(?:(\d{0,5}):)?(\d{1,5})")


def _ports(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for text in given:
        match = _PORTS.fullmatch(text)
        numbers = [int(number) for number in match.groups() if number] if match else []
        if not match or int(match[2]) == 0 or any(number > 65_535 for number in numbers):
            raise click.BadParameter(f"{text!r} is no port: specify PORT, LOCAL:PORT or :PORT, up to 65535.")
    return given


@click.command(
    epilog="""\b
Examples:
  allranks port-forward penguins 6006                # TensorBoard of rank 0 at http://localhost:6006
  allranks port-forward penguins 8888:80 --rank 3
  allranks port-forward penguins :8265               # any free port of this machine
  allranks port-forward penguins 5678 --address 0.0.0.0
\b
Exit status:
  0 ended by Ctrl-C, 1 the rank has no running pod, its pod ended, or the API server rejects the
  request, 2 if the job has no such rank.
"""
)
@click.argument("name", metavar="JOB", callback=name_callback, shell_complete=complete_jobs)
@click.argument("ports", nargs=-1, required=True, metavar="[LOCAL:]PORT...", callback=_ports)
@rank_options
@click.option("--address", metavar="ADDRESS", help="Listen on this address of this machine. [default: localhost]")
@dry_run_option
@cluster_options
def port_forward(
    where: Where, name: str, ports: tuple[str, ...], choice: Choice, address: str | None, dry_run: bool
) -> None:
    """Make ports of the pod of a rank reachable on this machine, by kubectl port-forward.

    It ends with the pod: a restart of the job gives the rank a new one.
    """
    listen = [f"--address={address}"] if address else []
    run_kubectl(where, name, choice, lambda pod, _: ["port-forward", pod.name, *listen, *ports], dry_run=dry_run)
