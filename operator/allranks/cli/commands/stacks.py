"""`allranks stacks`: prints what the threads of each rank do at the moment."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from allranks.cli.completers import complete_jobs
from allranks.cli.local_runs import note_run
from allranks.cli.options import (
    FAILED,
    OK,
    Count,
    Duration,
    check_rank,
    cluster_options,
    name_callback,
    print_error,
    run_on_cluster,
    with_options,
)
from allranks.client.jobs import get_job
from allranks.core.facts.naming import JOB_LABEL, rank_name, replica_key
from allranks.errors import AllranksError, ClusterError
from allranks.kube.cluster import Cluster, Where
from allranks.kube.job_codec import pods_of, ranks_of, status_of
from allranks.kube.paths import core_path

if TYPE_CHECKING:
    from allranks.client.rank_stacks import Dump, Stacks

POLL_SECONDS = 1.0


def stacks_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--rank`, `--timeout` and `--output` to `command(ranks=..., timeout=..., output=...)`."""
    return with_options(command, _OPTIONS)


_OPTIONS = (
    click.option(
        "--rank", "ranks", type=Count(0), multiple=True, metavar="N", help="Print only this rank. Repeatable."
    ),
    click.option(
        "--timeout",
        type=Duration(),
        default="30s",
        show_default=True,
        metavar="TIME",
        help="How long to wait for the answers, for example 10s or 1m.",
    ),
    click.option("-o", "--output", type=click.Choice(["json"]), help="The output format. [default: text]"),
)


@click.command(
    epilog="""\b
Examples:
  allranks stacks penguins
  allranks stacks penguins --rank 0 --rank 3
  allranks stacks penguins -o json | jq -r .sentence
  allranks runs stacks penguins
\b
Exit status:
  0 all chosen ranks have answered, 1 some have not, the job does not run, or the API server rejected the request.
"""
)
@click.argument("name", callback=name_callback, shell_complete=complete_jobs)
@stacks_options
@cluster_options
def stacks(where: Where, name: str, **options: Any) -> None:
    """Print which rank the others wait for, and the stacks of all threads of the ranks of a job.

    Ranks with the same stacks are printed together, the main thread first. While the ranks make steps, the first line
    only says where they are.

    The ranks print them to their logs, and the program continues. Only ranks that report can be asked. It needs the
    rights to change the job (patch distributedtrainings), and to read its pods and their logs. A run of this machine is
    asked with allranks runs stacks.

    With -o json, the output is an object with request, sentence, dumps, groups, waiting and notes, as in the REST
    interface.
    """

    def otherwise(error: AllranksError) -> int:
        print_error(error)
        note_run(error, "stacks", name)
        return FAILED

    sys.exit(run_on_cluster(_stacks, where, {"name": name, **options}, otherwise))


async def _stacks(cluster: Cluster, name: str, ranks: tuple[int, ...], timeout: float, output: str | None) -> int:
    from allranks.client import rank_stacks

    job = await get_job(cluster, name)
    status, rank_of = status_of(job), ranks_of(job)
    missing = _chosen(name, rank_of, ranks)
    if problem := rank_stacks.why_not(name, status.phase, status):
        raise ClusterError(problem)
    request = await rank_stacks.ask(cluster, name, status.attempt, datetime.now(UTC))
    cluster.interrupted = f"{name} continues; its ranks print their stacks to their logs"
    began, result, completed = time.monotonic(), _no_answers(request), frozenset[str]()
    while True:
        age = time.monotonic() - began
        ended, succeeded = await _add_answers(cluster, name, status.attempt, missing, age, result)
        missing -= ended | {dump.replica for dump in result.dumps}
        completed |= succeeded
        if not missing or age >= timeout:
            break
        await asyncio.sleep(min(POLL_SECONDS, timeout))
    result.waiting = [replica for replica in rank_of if replica in missing]
    if missing:
        await _explain(cluster, name, status.attempt, result, timeout)
    result.compare({replica: rank_of[replica] for replica in completed})
    return _show(result, output)


def _chosen(name: str, rank_of: dict[str, int | None], ranks: Collection[int]) -> frozenset[str]:
    """Return the replicas of the ranks, by default all. Raise UsageError for a rank that the job does not have."""
    for rank in ranks:
        check_rank(name, rank_of, rank)
    return frozenset(replica for replica, rank in rank_of.items() if not ranks or rank in ranks)


def _no_answers(request: str) -> Stacks:
    from allranks.client.rank_stacks import Stacks

    return Stacks(request=request, waiting=[], over=True, notes=[], dumps=[])


async def _add_answers(
    cluster: Cluster, name: str, attempt: int, missing: Collection[str], age: float, result: Stacks
) -> tuple[frozenset[str], frozenset[str]]:
    """Add the answers of pods that have not answered before. Return the replicas whose pods have ended, and of these
    the ones that completed."""
    from allranks.client import rank_stacks
    from allranks.client.rank_stacks import lines_since

    job = await get_job(cluster, name)
    listed = await cluster.get(core_path(cluster.namespace, "pods"), {"labelSelector": f"{JOB_LABEL}={name}"})
    pods = {
        replica_key(pod.role, pod.index): pod
        for pod in pods_of(job, listed["items"])
        if pod.attempt == attempt and replica_key(pod.role, pod.index) in missing
    }
    seconds = round(age) + rank_stacks.CLOCK_SECONDS
    logs, result.notes = await lines_since(cluster, list(pods.values()), seconds)
    lines = [(replica_key(pod.role, pod.index), lines) for pod, lines in logs]
    dumps, _ = rank_stacks.answers(result.request, lines, ranks_of(job))
    result.dumps += dumps
    ended = frozenset(replica for replica, pod in pods.items() if pod.ended)
    return ended, frozenset(replica for replica in ended if pods[replica].succeeded)


async def _explain(cluster: Cluster, name: str, attempt: int, result: Stacks, timeout: float) -> None:
    """Add notes on why ranks have not answered."""
    from allranks.client import rank_stacks

    now = status_of(await get_job(cluster, name))
    if now.attempt != attempt:
        result.notes.append(f"{name} has restarted: the ranks of attempt {attempt} are gone; ask again")
        return
    result.notes.append(f"within {timeout:g} s, {rank_stacks.silent(result.waiting)}")
    if not result.dumps:
        result.notes.append(
            "no rank answered: the operator, or the allranks in the image of the ranks, may be older than this request"
        )


async def stacks_of_run(stored: Any, ranks: tuple[int, ...], timeout: float, output: str | None) -> int:
    """Print the stacks of a run of this machine (StoredRun). Return the exit status. Raise AllranksError."""
    from allranks.client import rank_stacks

    job = stored.manifest
    status, rank_of = status_of(job), ranks_of(job)
    chosen = _chosen(stored.job, rank_of, ranks)
    if problem := rank_stacks.why_not(stored.name, stored.phase, status, active=stored.running):
        raise AllranksError(problem)
    request = await rank_stacks.ask_run(stored.directory, status.attempt, datetime.now(UTC))
    began, result = time.monotonic(), _no_answers(request)
    while True:
        age = time.monotonic() - began
        logs, result.notes = await asyncio.to_thread(
            rank_stacks.logs_of_run, stored.directory, stored.job, status.attempt
        )
        logs = [(replica, lines) for replica, lines in logs if replica in chosen]
        result.dumps, _ = rank_stacks.answers(request, logs, rank_of)
        result.waiting = sorted(chosen - {dump.replica for dump in result.dumps})
        if not result.waiting or age >= timeout:
            break
        await asyncio.sleep(min(POLL_SECONDS, timeout))
    if result.waiting:
        result.notes.append(f"within {timeout:g} s, {rank_stacks.silent(result.waiting)}")
    result.compare()
    return _show(result, output)


def _show(result: Stacks, output: str | None) -> int:
    """Print the sentence, the stacks by rank, and notes on missing answers. Return the exit status."""
    if output:
        click.echo(result.model_dump_json(indent=2, exclude={"over"}))
    else:
        for line in _lines(result):
            click.echo(line)
        for note in result.notes:
            click.echo(note, err=True)
    return FAILED if result.waiting else OK


def _lines(result: Stacks) -> Iterator[str]:
    if result.sentence:
        yield from (result.sentence, "")
    for number, group in enumerate(result.groups):
        dumps = [result.dumps[place] for place in group]
        if number:
            yield ""
        if len(dumps) == 1:
            title = dumps[0].title
            yield f"{_name(dumps[0])}: {title[max(0, title.find('(')) :]}"
        else:
            yield f"{', '.join(map(_name, dumps))}: the same stacks"
        yield from dumps[0].lines


def _name(dump: Dump) -> str:
    return rank_name(dump.rank, dump.replica)
