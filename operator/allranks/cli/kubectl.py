"""Replaces this process by kubectl, for what the API server streams: commands, terminals, ports and files.

kubectl has the terminal's modes and sizes, signals, exit statuses and both stream protocols of the API server.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click

from allranks.cli.options import FAILED, print_error, run_on_cluster
from allranks.cli.rank_pods import Choice, running_pod
from allranks.core.facts.model import Pod
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Where

dry_run_option = click.option("--dry-run", is_flag=True, help="Print the kubectl command instead of running it.")


def run_kubectl(
    where: Where,
    name: str,
    choice: Choice,
    arguments: Callable[[Pod, str], Sequence[str]],
    *,
    dry_run: bool = False,
) -> NoReturn:
    """Becomes `kubectl ARGUMENTS` for the running pod of a rank. `arguments(pod, namespace)`."""
    found: list[tuple[Pod, str]] = []

    async def find(cluster: Cluster) -> int:
        found.append((await running_pod(cluster, name, choice), cluster.namespace))
        return 0

    if status := run_on_cluster(find, where, {}):
        sys.exit(status)
    pod, namespace = found[0]
    command = ["kubectl", *_cluster_arguments(where, namespace), *arguments(pod, namespace)]
    if dry_run:
        click.echo(shlex.join(command))
        sys.exit(0)
    program = shutil.which("kubectl")
    if program is None:
        print_error(
            ClusterError(
                "this command runs kubectl, which is not in the PATH: install it "
                f"(https://kubernetes.io/docs/tasks/tools). The command is: {shlex.join(command)}"
            )
        )
        sys.exit(FAILED)
    sys.stdout.flush()
    os.execv(program, command)


def terminal_flags(stdin: bool, tty: bool) -> list[str]:
    """kubectl's flags for a terminal: those that were asked for, and both if a person sits in front of one."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    return [*(["--stdin"] if stdin or interactive else []), *(["--tty"] if tty or interactive else [])]


def terminal_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `-i` and `-t`, as kubectl has them."""
    tty = click.option("-t", "--tty", is_flag=True, help="Allocate a terminal. [default: if this is one]")
    stdin = click.option("-i", "--stdin", is_flag=True, help="Pass standard input on. [default: in a terminal]")
    return stdin(tty(command))


def _cluster_arguments(where: Where, namespace: str) -> list[str]:
    named = (("kubeconfig", where.kubeconfig), ("context", where.context), ("namespace", namespace))
    return [f"--{option}={value}" for option, value in named if value]
