"""The pod of a rank, for commands that work in one pod: the options that choose it, and why it cannot be used."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from allranks.api.status import FINISHED, Status
from allranks.cli.options import Count
from allranks.client.jobs import get_job
from allranks.core.facts import naming
from allranks.core.facts.model import Pod
from allranks.core.facts.naming import JOB_LABEL, TRAINER, replica_key
from allranks.errors import ClusterError
from allranks.kube.cluster import Cluster, Manifest
from allranks.kube.job_codec import pods_of, ranks_of, status_of
from allranks.kube.paths import core_path
from allranks.text import joined
from allranks.views.format.progress import pod_state


@dataclass(frozen=True)
class Choice:
    """The rank that the user named. Without a rank, a role and an index it is rank 0."""

    rank: int | None = None
    role: str | None = None
    index: int | None = None
    container: str = TRAINER


def rank_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--rank`, `--role`, `--index` and `--container` to `command(choice=...)`."""

    @functools.wraps(command)
    def run(rank: int | None, role: str | None, index: int | None, container: str, **options: Any) -> Any:
        if rank is not None and (role is not None or index is not None):
            raise click.UsageError("specify either --rank, or --role and --index, not both.")
        return command(choice=Choice(rank, role, index, container), **options)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run


_OPTIONS = (
    click.option("--rank", type=Count(0), metavar="N", help="The rank (one for each pod). [default: 0]"),
    click.option("--role", metavar="ROLE", help="The role, for pods without a rank. [default with --index: worker]"),
    click.option("--index", type=Count(0), metavar="N", help="The index in its role. [default with --role: 0]"),
    click.option("-c", "--container", default=TRAINER, show_default=True, metavar="NAME", help="The container."),
)


def check_rank(name: str, ranks: Mapping[str, int | None], rank: int) -> None:
    """Raises UsageError if the job has no such rank. `ranks`: replica -> rank."""
    existing = {number for number in ranks.values() if number is not None}
    if ranks and rank not in existing:
        which = f"its ranks are 0 to {max(existing)}" if existing else "it has no ranks"
        raise click.UsageError(f"{name} has no rank {rank}: {which} (one for each pod).")


def check_role(name: str, ranks: Mapping[str, int | None], role: str) -> None:
    """Raises UsageError if the job has no such role."""
    roles = {key.rpartition("-")[0] for key in ranks}
    if roles and role not in roles:
        few = len(roles) == 1
        raise click.UsageError(
            f"{name} has no role {role}: its {'role is' if few else 'roles are'} {joined(sorted(roles), 'and')}."
        )


async def running_pod(cluster: Cluster, name: str, choice: Choice) -> Pod:
    """The running pod of the rank. Raises UsageError if the job has no such rank, else ClusterError."""
    job = await get_job(cluster, name)
    replica = _replica(name, ranks_of(job), choice)
    listed = await cluster.get(core_path(cluster.namespace, "pods"), {"labelSelector": f"{JOB_LABEL}={name}"})
    found = find_pod(job, listed["items"], replica)
    if found is None:
        raise ClusterError(_without_pod(name, replica, status_of(job)))
    if problem := _not_running(name, replica, found, choice):
        raise ClusterError(problem)
    return found


def find_pod(job: Manifest, pods: list[Manifest], replica: str) -> Pod | None:
    """The newest pod of a replica in the current attempt."""
    attempt = status_of(job).attempt
    of_replica = [p for p in pods_of(job, pods) if p.attempt == attempt and replica_key(p.role, p.index) == replica]
    return max(of_replica, key=lambda pod: pod.restart, default=None)


def _replica(name: str, ranks: Mapping[str, int | None], choice: Choice) -> str:
    """`worker-1`. Raises UsageError, and ClusterError if the job cannot be decoded."""
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
    """Why nothing can be done in the container; empty if it can."""
    where = f"the pod of {replica}, {pod.name},"
    if pod.ended:
        how = f" with exit code {pod.exit.code}" if pod.exit else ""
        return f"{where} has ended{how}: allranks logs {name} --role {pod.role} --index {pod.index} prints its output"
    if pod.deleted_at:
        return f"{where} is being deleted"
    if pod.phase != "Running" and choice.container == TRAINER:
        why = pod.waiting_message or pod.waiting_reason or pod.waiting_for
        return f"{where} does not run yet: it is {pod_state(pod)}{f' ({why})' if why else ''}"
    return ""
