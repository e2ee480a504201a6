"""`allranks.submit`, `allranks.job` and `allranks.jobs`, and their asynchronous twins."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from allranks.api.status import Phase
from allranks.kube.cluster import Where
from allranks.sdk import async_job, background
from allranks.sdk.async_job import AsyncJob
from allranks.sdk.documents import Options, Ranks, Target
from allranks.sdk.interrupt import ASYNCHRONOUS, SYNCHRONOUS, Words
from allranks.sdk.job import Job
from allranks.sdk.stored_values import Outputs
from allranks.sdk.submit import IMAGE, create, prepare
from allranks.sdk.twins import twin_of


def submit(
    target: Target,
    *args: Any,
    ranks: Ranks,
    gpus: int = 0,
    image: str | None = None,
    framework: str | None = None,
    name: str | None = None,
    pool: str | None = None,
    queue: str | None = None,
    code: str | os.PathLike[str] | None = None,
    packages: Sequence[str] = (),
    checkpoint: str | None = None,
    outputs: Outputs | None = None,
    env: Mapping[str, str] | None = None,
    restarts: int | None = None,
    every_rank: bool = False,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **more: Any,
) -> Job:
    """Creates a job on a cluster and returns at once.

    `target`: a function, which is called with `args`, `kwargs` and `more` in each rank; or the path of a script, which
    gets `args` as its command line. `ranks`: the number of replicas, or (least, most) of an elastic job. `gpus`: GPUs
    of each replica. `image`: by default that of the variable ALLRANKS_IMAGE. `framework`: by default that of the
    packages that the function or script imports. `name`: by default that of the function, with a suffix. `pool`: a
    TrainingPool. `queue`: that admits the job. `code`: a directory that is sent to the ranks and is their working
    directory. `packages`: pip requirements that are installed before the start. `checkpoint`: a volume claim.
    `outputs`: name -> address, such as s3://BUCKET/PREFIX; what the function writes to /outputs/NAME is uploaded there.
    `env`: further variables of the ranks. `restarts`: after failures at most so many. `every_rank`: all ranks send
    their values back, not only rank 0. `namespace`, `context`, `kubeconfig`: by default those of kubectl. `kwargs`:
    arguments of the function whose names are parameters of `submit` as well.

    Raises CannotPickle, CannotShip, InvalidManifest and CannotRun before anything is sent, ClusterError.
    """
    work = _submit(locals(), SYNCHRONOUS)
    return Job(background.run(work, lambda late: print(SYNCHRONOUS.continues(late), file=sys.stderr)))


@twin_of(submit)
async def submit_async(given: dict[str, Any]) -> AsyncJob:
    """As `submit`, as a coroutine.

    After a cancellation the job either does not exist, or is complete, and a message says how to find it.
    """
    return await _submit(given, ASYNCHRONOUS)


async def _submit(given: Mapping[str, Any], words: Words) -> AsyncJob:
    """`given`: the parameters of `submit`, by name."""
    alike = ("gpus", "framework", "name", "restarts", "pool", "queue", "checkpoint", "every_rank")
    options = Options(
        replicas=_replicas(given["ranks"]),
        env=dict(given["env"] or {}),
        image=given["image"] or os.environ.get(IMAGE),
        outputs=given["outputs"] or {},
        packages=tuple(given["packages"]),
        **{name: given[name] for name in alike},
    )
    kwargs = {**(given["kwargs"] or {}), **given.get("more", {})}
    # The files of the code are read, and git runs: other tasks continue meanwhile.
    document, bundle = await asyncio.to_thread(
        prepare, given["target"], given.get("args", ()), kwargs, options, given["code"]
    )
    return await create(Where(given["namespace"], given["context"], given["kubeconfig"]), document, bundle, words)


async def job_async(
    name: str, *, namespace: str | None = None, context: str | None = None, kubeconfig: str | None = None
) -> AsyncJob:
    """As `job`, as a coroutine."""
    return await async_job.find(name, Where(namespace, context, kubeconfig))


def job(name: str, *, namespace: str | None = None, context: str | None = None, kubeconfig: str | None = None) -> Job:
    """The job with this name, from whatever program it was submitted. Raises ClusterError."""
    return Job(background.run(job_async(name, namespace=namespace, context=context, kubeconfig=kubeconfig)))


async def jobs_async(
    *,
    phase: Phase | Collection[Phase] | None = None,
    labels: str | None = None,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | None = None,
) -> list[AsyncJob]:
    """As `jobs`, as a coroutine."""
    phases = {phase} if isinstance(phase, str) else set(phase or ())
    where = Where(namespace, context, kubeconfig)
    return await async_job.find_all(where, lambda status: not phases or status.phase in phases, labels)


def jobs(
    *,
    phase: Phase | Collection[Phase] | None = None,
    labels: str | None = None,
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | None = None,
) -> list[Job]:
    """The jobs of a namespace, the newest first: of a phase or of several, with labels such as `team=nlp`.

    Raises ClusterError.
    """
    found = jobs_async(phase=phase, labels=labels, namespace=namespace, context=context, kubeconfig=kubeconfig)
    return [Job(one) for one in background.run(found)]


def _replicas(ranks: Ranks) -> Ranks:
    """Raises ValueError."""
    bounds = (ranks,) if not isinstance(ranks, tuple) else ranks if len(ranks) == 2 else ()
    if bounds and all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in bounds):
        return ranks
    raise ValueError(
        f"ranks={ranks!r}: must be the number of replicas on a cluster, or (least, most) for an elastic job; "
        "allranks.run(..., ranks=-2) runs two replicas on this machine"
    )
