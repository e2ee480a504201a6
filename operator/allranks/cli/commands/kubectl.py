"""Commands that work in the pod of a rank: `allranks exec`, `attach`, `port-forward` and `cp`.

Each finds the pod and replaces this process by kubectl, for what the API server streams: commands, terminals, ports
and files. kubectl has the terminal's modes and sizes, signals, exit statuses and both stream protocols of the API
server.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from allranks.api.status import FINISHED, Status
from allranks.cli.completers import complete_files, complete_jobs
from allranks.cli.options import (
    FAILED,
    Count,
    check_rank,
    check_role,
    cluster_options,
    job_name,
    name_callback,
    print_error,
    run_on_cluster,
    with_options,
)
from allranks.client.jobs import get_job
from allranks.core.facts import naming
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import JOB_LABEL, TRAINER, replica_key
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.kube.job_codec import pods_of, ranks_of, status_of
from allranks.kube.paths import core_path
from allranks.views.format.progress import pod_state

_SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash || exec sh")
_PORTS = re.compile(r"(?:(\d{0,5}):)?(\d{1,5})")
_REMOTE = re.compile(r"((?:[^/:]+/)?[^/:]{2,}):(.*)", re.DOTALL)
"""`JOB:PATH`. One letter before the colon is a drive of Windows."""


# --- options ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """The rank and the container that the user selected. Without a rank, a role and an index it is rank 0."""

    rank: int | None = None
    role: str | None = None
    index: int | None = None
    container: str = TRAINER


def _rank_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--rank`, `--role`, `--index` and `--container` to `command(choice=...)`."""

    @functools.wraps(command)
    def run(rank: int | None, role: str | None, index: int | None, container: str, **options: Any) -> Any:
        if rank is not None and (role is not None or index is not None):
            raise click.UsageError("specify either --rank, or --role and --index, not both.")
        return command(choice=Choice(rank, role, index, container), **options)

    return with_options(run, _RANK_OPTIONS)


_RANK_OPTIONS = (
    click.option("--rank", type=Count(0), metavar="N", help="The rank (one for each pod). [default: 0]"),
    click.option("--role", metavar="ROLE", help="The role, for pods without a rank. [default with --index: worker]"),
    click.option("--index", type=Count(0), metavar="N", help="The index in its role. [default with --role: 0]"),
    click.option("-c", "--container", default=TRAINER, show_default=True, metavar="NAME", help="The container."),
)


_dry_run_option = click.option("--dry-run", is_flag=True, help="Print the kubectl command instead of running it.")


def _terminal_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-i` and `-t`, as kubectl has them."""
    tty = click.option("-t", "--tty", is_flag=True, help="Allocate a terminal. [default: if this is one]")
    stdin = click.option("-i", "--stdin", is_flag=True, help="Pass standard input on. [default: in a terminal]")
    return stdin(tty(command))


# --- commands --------------------------------------------------------------------------------------------------------


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
@_rank_options
@_terminal_options
@_dry_run_option
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

    The pod belongs to the current attempt. The command runs as the user of the container, and does not end when the
    connection is lost: stop what you started.
    """
    flags = _terminal_flags(stdin, tty)
    _run_kubectl(
        where,
        name,
        choice,
        lambda pod, _: ["exec", pod.name, f"--container={choice.container}", *flags, "--", *(command or _SHELL)],
        dry_run=dry_run,
    )


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
@_rank_options
@_terminal_options
@_dry_run_option
@cluster_options
def attach(where: Where, name: str, choice: Choice, stdin: bool, tty: bool, dry_run: bool) -> None:
    """Connect the terminal to the running program of a rank, by kubectl attach.

    The program gets input only if its container has `stdin: true` (and `tty: true` for a terminal) in spec.template. To
    read the output of all ranks from the start: allranks logs JOB -f.
    """
    flags = [*(["--stdin"] if stdin else []), *(["--tty"] if tty else [])]
    _run_kubectl(
        where,
        name,
        choice,
        lambda pod, _: ["attach", pod.name, f"--container={choice.container}", *flags],
        dry_run=dry_run,
    )


def _ports_callback(_context: click.Context, _parameter: click.Parameter, ports: tuple[str, ...]) -> tuple[str, ...]:
    for text in ports:
        match = _PORTS.fullmatch(text)
        numbers = [int(number) for number in match.groups() if number] if match else []
        if not match or int(match[2]) == 0 or any(number > 65_535 for number in numbers):
            raise click.BadParameter(f"{text!r} is no port: specify PORT, LOCAL:PORT or :PORT, up to 65535.")
    return ports


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
@click.argument("ports", nargs=-1, required=True, metavar="[LOCAL:]PORT...", callback=_ports_callback)
@_rank_options
@click.option("--address", metavar="ADDRESS", help="Listen on this address of this machine. [default: localhost]")
@_dry_run_option
@cluster_options
def port_forward(
    where: Where, name: str, ports: tuple[str, ...], choice: Choice, address: str | None, dry_run: bool
) -> None:
    """Make ports of the pod of a rank reachable on this machine, by kubectl port-forward.

    It ends with the pod: a restart of the job gives the rank a new one.
    """
    listen = [f"--address={address}"] if address else []
    _run_kubectl(where, name, choice, lambda pod, _: ["port-forward", pod.name, *listen, *ports], dry_run=dry_run)


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
@_rank_options
@_dry_run_option
@cluster_options
def cp(where: Where, source: str, target: str, choice: Choice, dry_run: bool) -> None:
    """Copy files and directories from or to the pod of a rank, by kubectl cp. One of the paths is JOB:PATH.

    The image needs the program tar.
    """
    matches = [_REMOTE.fullmatch(path) for path in (source, target)]
    remote = [match for match in matches if match]
    if len(remote) != 1 or not remote[0][2]:
        raise click.UsageError("specify exactly one path in a pod, as JOB:PATH, for example penguins:/tmp/trace.json.")
    name = job_name(remote[0][1])

    def arguments(pod: Pod, namespace: str) -> list[str]:
        paths = [
            f"{namespace}/{pod.name}:{match[2]}" if match else path
            for match, path in zip(matches, (source, target), strict=True)
        ]
        return ["cp", f"--container={choice.container}", "--", *paths]

    _run_kubectl(where, name, choice, arguments, dry_run=dry_run)


# --- kubectl ---------------------------------------------------------------------------------------------------------


def _run_kubectl(
    where: Where,
    name: str,
    choice: Choice,
    arguments: Callable[[Pod, str], Sequence[str]],
    *,
    dry_run: bool = False,
) -> NoReturn:
    """Become `kubectl ARGUMENTS` for the running pod of a rank. `arguments(pod, namespace)` returns the ARGUMENTS."""
    pods: list[tuple[Pod, str]] = []

    async def find(cluster: Cluster) -> int:
        pods.append((await _running_pod(cluster, name, choice), cluster.namespace))
        return 0

    if status := run_on_cluster(find, where, {}):
        sys.exit(status)
    [(pod, namespace)] = pods
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


def _terminal_flags(stdin: bool, tty: bool) -> list[str]:
    """Return kubectl's flags for a terminal: the selected ones, and both if this is a terminal."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    return [*(["--stdin"] if stdin or interactive else []), *(["--tty"] if tty or interactive else [])]


def _cluster_arguments(where: Where, namespace: str) -> list[str]:
    options = (("kubeconfig", where.kubeconfig), ("context", where.context), ("namespace", namespace))
    return [f"--{option}={value}" for option, value in options if value]


# --- the pod ---------------------------------------------------------------------------------------------------------


async def _running_pod(cluster: Cluster, name: str, choice: Choice) -> Pod:
    """Return the running pod of the rank. Raise UsageError if the job has no such rank, otherwise ClusterError."""
    job = await get_job(cluster, name)
    replica = _replica(name, ranks_of(job), choice)
    listed = await cluster.get(core_path(cluster.namespace, "pods"), {"labelSelector": f"{JOB_LABEL}={name}"})
    pod = _newest_pod(job, listed["items"], replica)
    if pod is None:
        raise ClusterError(_without_pod(name, replica, status_of(job)))
    if problem := _not_running(name, replica, pod, choice):
        raise ClusterError(problem)
    return pod


def _newest_pod(job: Manifest, pods: list[Manifest], replica: str) -> Pod | None:
    """Return the newest pod of a replica in the current attempt."""
    attempt = status_of(job).attempt
    of_replica = [p for p in pods_of(job, pods) if p.attempt == attempt and replica_key(p.role, p.index) == replica]
    return max(of_replica, key=lambda pod: pod.restart, default=None)


def _replica(name: str, ranks: Mapping[str, int | None], choice: Choice) -> str:
    """Return the replica, such as `worker-1`. Raise UsageError, and ClusterError if the job cannot be decoded."""
    if not ranks:
        raise ClusterError(f"{name} has no valid spec: allranks describe {name} shows why")
    if choice.role is None and choice.index is None:
        if choice.rank is None:
            return next(iter(ranks))
        check_rank(name, ranks, choice.rank)
        return next(key for key, rank in ranks.items() if rank == choice.rank)
    role = choice.role or "worker"
    check_role(name, ranks, role)
    replica = replica_key(role, choice.index or 0)
    if replica not in ranks:
        indexes = naming.encode_indices(int(key.rpartition("-")[2]) for key in ranks if key.rpartition("-")[0] == role)
        raise click.UsageError(f"{name} has no {replica}: the indexes of {role} are {indexes}.")
    return replica


def _without_pod(name: str, replica: str, status: Status) -> str:
    if status.phase in FINISHED:
        return f"{name} is {status.phase}, and the pod of {replica} is deleted"
    if status.phase == "Suspended":
        return f"{name} is suspended and has no pods: allranks resume {name} starts them"
    if status.phase == "Queued":
        return f"{name} waits in a queue and has no pods: allranks queue shows its position"
    if status.restart_time:
        return f"{name} is {status.phase}: the pod of {replica} is created at {status.restart_time:%H:%M:%S} UTC"
    return f"{name} is {status.phase}, and {replica} has no pod yet: allranks describe {name} shows why"


def _not_running(name: str, replica: str, pod: Pod, choice: Choice) -> str:
    """Return why the container does not run; empty if it does."""
    where = f"the pod of {replica}, {pod.name},"
    if pod.ended:
        how = f" with exit code {pod.exit.code}" if pod.exit else ""
        return f"{where} has ended{how}: allranks logs {name} --role {pod.role} --index {pod.index} prints its output"
    if pod.deleted_at:
        return f"{where} is being deleted"
    if pod.phase != "Running" and choice.container == TRAINER:
        reason = pod.waiting_message or pod.waiting_reason or pod.waiting_for
        return f"{where} does not run yet: it is {pod_state(pod)}{f' ({reason})' if reason else ''}"
    return ""
