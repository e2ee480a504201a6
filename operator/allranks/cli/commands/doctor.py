"""`allranks doctor`: finds what is missing on this machine and on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from allranks.cli.doctor import cluster as of_cluster
from allranks.cli.doctor import machine as of_machine
from allranks.cli.doctor.findings import Finding, not_checked, problem, run_checks
from allranks.cli.options import FAILED, OK, cluster_options, run_on_cluster
from allranks.errors import AllranksError
from allranks.kube.cluster import Cluster, Where
from allranks.views.format.objects import DATA_OUTPUTS, render_data
from allranks.views.format.table import cell

COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


@click.command(
    epilog="""\b
Examples:
  allranks doctor
  allranks doctor --local
  allranks doctor --context prod -n team
  allranks doctor -o json | jq '.checks[] | select(.status == "problem")'
\b
Exit status:
  0 no problem, 1 there is a problem. A note is no problem: what it names may be intended.
"""
)
@click.option("--local", "only_local", is_flag=True, help="Check only this machine.")
@click.option("--cluster", "only_cluster", is_flag=True, help="Check only the cluster.")
@click.option("-o", "--output", type=click.Choice(DATA_OUTPUTS), help="Print the findings in this format.")
@cluster_options
def doctor(where: Where, only_local: bool, only_cluster: bool, output: str | None) -> None:
    """Find what is missing on this machine and on the cluster, and say how to cure it.

    Machine: Python, frameworks, torchrun, GPUs, shared memory, disk, network. Cluster, if one is configured: API
    server, CRDs, operator, your rights, GPUs of the nodes, pools, RDMA, storage classes, DNS, Kueue.

    Nothing is changed. A check without an answer, or without the right to make it, is a note.
    """
    if only_local and only_cluster:
        raise click.UsageError("specify either --local or --cluster, not both.")
    result = _Result(output)
    if not only_cluster:
        result.section(of_machine.SECTION, "This machine")
        for finding in run_checks(of_machine.Machine().checks(), of_machine.SECONDS):
            result.add(finding)
    if not only_local:
        result.section(of_cluster.SECTION, "Cluster")
        needed = only_cluster or bool(where.context or where.kubeconfig)
        status = run_on_cluster(_check, where, {"result": result}, lambda error: result.no_cluster(error, needed))
        if status not in (OK, FAILED):
            sys.exit(status)
    sys.exit(result.end())


async def _check(cluster: Cluster, result: _Result) -> int:
    async for finding in of_cluster.check_cluster(cluster):
        result.add(finding)
    return OK


class _Result:
    """Prints findings as they come, or all of them at the end for a program."""

    def __init__(self, output: str | None) -> None:
        self._output = output
        self._section = ""
        self._findings: list[tuple[str, Finding]] = []

    def section(self, name: str, title: str) -> None:
        if not self._output:
            click.echo(f"{'' if not self._section else chr(10)}{title}")
        self._section = name

    def add(self, finding: Finding) -> None:
        self._findings.append((self._section, finding))
        if not self._output:
            for line in _lines(finding):
                click.echo(line)
            sys.stdout.flush()

    def no_cluster(self, error: AllranksError, needed: bool) -> int:
        """Add the failed connection: a problem if the user asked for a cluster, or if one is configured.

        Return the exit status.
        """
        from allranks.kube.auth import NotConfigured

        if isinstance(error.__cause__, NotConfigured | ImportError) and not needed:
            self.add(not_checked("api server", str(error)))
            return OK
        self.add(problem("api server", str(error), "see docs/guides/cluster.md, Cluster and namespace"))
        return FAILED

    def end(self) -> int:
        """Print the number of problems and notes. Return the exit status."""
        counts = {kind: sum(1 for _, finding in self._findings if finding.status == kind) for kind in COLOURS}
        if self._output:
            checks = [finding.data(section) for section, finding in self._findings]
            click.echo(
                render_data({"problems": counts["problem"], "notes": counts["note"], "checks": checks}, self._output),
                nl=False,
            )
        else:
            click.echo(f"\n{_count(counts['problem'], 'problem')}, {_count(counts['note'], 'note')}")
        return FAILED if counts["problem"] else OK


def _lines(finding: Finding) -> Iterator[str]:
    style: dict[str, Any] = {"fg": COLOURS[finding.status], "bold": finding.status == "problem"}
    yield f"  {click.style(f'{finding.status:<7}', **style)}  {finding.check:<13}  {cell(finding.message)}"
    if finding.cure:
        yield f"{'':<26}cure: {cell(finding.cure)}"


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' * (number != 1)}"
