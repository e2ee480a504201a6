"""The injected faults, and the outcome that the rules of docs/guides/manifest.md ("When a rank fails") require.

The expectations are written from the rules, not from the results of a run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from recovery import inject, processes
from recovery.jobs import Job, JobError, Layout


@dataclass(frozen=True)
class Rank:
    """A training process: how to find it, and the pod that the status must name as the root cause."""

    variables: tuple[str, ...]
    pod: str
    """Role and index of its pod."""
    number: int | None
    """Its rank, if each pod with ranks runs one process."""

    @classmethod
    def of(cls, pod: str, number: int | None) -> Rank:
        role, _, index = pod.rpartition("-")
        return cls((f"ALLRANKS_ROLE={role}", f"ALLRANKS_INDEX={index}"), pod, number)


@dataclass(frozen=True)
class Framework:
    """One column of the table."""

    name: str
    title: str
    """Launcher and number of ranks, as shown in the table."""
    layout: Layout
    first: Rank
    other: Rank
    inside: Rank
    """The rank in which the program itself fails."""
    stopped: tuple[int, ...] = (143,)
    """Exit codes of the root cause when all pods get SIGTERM."""
    launched: bool = False
    """The first process of a pod is a launcher, and the ranks are its children."""
    server: Rank | None = None
    alone: bool = False
    """Some ranks restart alone and rejoin the others: each fault has a job of its own."""
    pods: int = 2
    undisturbed: bool = False
    """The other ranks lose no work when a rank that restarts alone is lost."""


def mpi_rank(number: int) -> Rank:
    return Rank((f"OMPI_COMM_WORLD_RANK={number}",), "launcher-0", number)


FRAMEWORKS = (
    Framework(
        "PyTorch",
        "torchrun, 2 ranks",
        Layout("penguins-pytorch", "train/penguins_pytorch.py", ("torchrun",), ("roles.worker.replicas=2",)),
        first=Rank.of("worker-0", 0),
        other=Rank.of("worker-1", 1),
        inside=Rank.of("worker-1", 1),
        stopped=(1,),  # torchrun forwards SIGTERM, and exits with 1 itself
        launched=True,
    ),
    Framework(
        "TensorFlow",
        "MultiWorkerMirrored, 2 ranks",
        Layout("penguins-tensorflow", "train/penguins_tensorflow.py"),
        first=Rank.of("worker-0", 0),
        other=Rank.of("worker-1", 1),
        inside=Rank.of("worker-1", 1),
    ),
    Framework(
        "TensorFlow-PS",
        "a chief, 2 workers, 1 ps",
        Layout("penguins-tensorflow-ps", "train/penguins_tensorflow_ps.py"),
        first=Rank.of("chief-0", 0),
        other=Rank.of("worker-1", 2),
        inside=Rank.of("chief-0", 0),  # workers and ps only serve, in C++: the program runs in the chief
        server=Rank.of("ps-0", None),
        alone=True,
        pods=4,
        undisturbed=True,
    ),
    Framework(
        "Horovod",
        "gloo, 2 ranks",
        Layout("penguins-horovod", "train/penguins_horovod.py"),
        first=Rank.of("worker-0", 0),
        other=Rank.of("worker-1", 1),
        inside=Rank.of("worker-1", 1),
        launched=True,
    ),
    Framework(
        "Horovod-MPI",
        "mpirun, 2 ranks",
        Layout("penguins-horovod-mpi", "train/penguins_horovod.py"),
        first=mpi_rank(0),
        other=mpi_rank(1),
        inside=mpi_rank(1),
        launched=True,
    ),
    Framework(
        "PyTorch-elastic",
        "torchrun, 2 ranks of 1 to 4",
        Layout("penguins-pytorch-elastic", "train/penguins_pytorch.py", ("torchrun",)),
        first=Rank.of("worker-0", 0),
        other=Rank.of("worker-1", 1),
        inside=Rank.of("worker-1", 1),
        stopped=(1,),
        launched=True,
    ),
    Framework(
        "Horovod-elastic",
        "gloo, 3 ranks of 1 to 4",
        Layout("penguins-horovod-elastic", "train/penguins_horovod_elastic.py", settings=("roles.worker.replicas=3",)),
        first=Rank.of("worker-0", 0),
        other=Rank.of("worker-2", 2),
        inside=Rank.of("worker-2", 2),
        launched=True,
        alone=True,
        pods=3,
    ),
    Framework(
        "JAX",
        "2 processes",
        Layout("digits-jax", "train/digits_jax.py", arguments=("--patience=1000",)),  # no early stopping
        first=Rank.of("worker-0", 0),
        other=Rank.of("worker-1", 1),
        inside=Rank.of("worker-1", 1),
    ),
    Framework(
        "MPI",
        "mpirun and mpi4py, 2 ranks",
        Layout("penguins-mpi", "train/penguins_mpi.py", ("python3", "-m", "mpi4py")),
        first=mpi_rank(0),
        other=mpi_rank(1),
        inside=mpi_rank(1),
        launched=True,
    ),
    Framework(
        "SPMD",
        "2 ranks and a data service",
        # The service is not among the ranks that get signals.
        Layout(
            "penguins-spmd",
            "train/penguins_spmd.py",
            settings=("roles.data.command=[python3, train/penguins_spmd.py]",),
        ),
        first=Rank.of("worker-0", 0),
        other=Rank.of("worker-1", 1),
        inside=Rank.of("worker-1", 1),
    ),
)


@dataclass(frozen=True)
class Expected:
    """The required status of the attempt that the fault ended."""

    exit_codes: tuple[int, ...]
    pods: tuple[str, ...] = ()
    """The root cause is one of these pods; empty: any pod."""
    rank: int | None = None
    signal: int | None = None
    reasons: tuple[str, ...] = ("Error",)
    message: str = ""
    """Part of the last lines of the root cause."""
    verdict: str = "Succeeded"
    counted: tuple[int, ...] = (1,)
    """Allowed numbers of counted restarts: replicas that restart alone count separately."""
    undisturbed: bool = False
    """No work is lost: no checkpoint is read."""


@dataclass(frozen=True)
class Fault:
    """One row of the table."""

    name: str
    description: str
    """What is done, for docs/reference/recovery.md."""
    expected: Callable[[Framework], Expected | str]
    """A string: the reason why this framework has no such fault."""
    act: Callable[[Framework], Callable[[Job], None]] = field(default=lambda framework: lambda job: None)
    alone: bool = False
    """Runs in a job of its own: the result is not a single restart of the group."""
    needs_memory: bool = False
    raises: bool = False
    """The program raises before anything else, in every attempt."""


def one(job: Job, rank: Rank) -> int:
    found = processes.ranks(job.marker, *rank.variables)
    if len(found) != 1:
        raise JobError(f"{len(found)} processes instead of one belong to {rank.pod}")
    return found[0]


def sent(number: int, target: Callable[[Framework], Rank | None]) -> Callable[[Framework], Callable[[Job], None]]:
    """Sends a signal to one rank."""

    def act(framework: Framework) -> Callable[[Job], None]:
        rank = target(framework)
        assert rank
        return lambda job: os.kill(one(job, rank), number)

    return act


def to_all(find: Callable[[str], list[int]]) -> Callable[[Framework], Callable[[Job], None]]:
    """SIGTERM to all of them at once."""

    def act(job: Job) -> None:
        for pid in find(job.marker):
            os.kill(pid, signal.SIGTERM)

    return lambda framework: act


def kill_launcher(framework: Framework) -> Callable[[Job], None]:
    def act(job: Job) -> None:
        role, _, index = framework.other.pod.rpartition("-")
        [pid] = processes.first_processes(job.marker, f"ALLRANKS_ROLE={role}", f"ALLRANKS_INDEX={index}")
        os.kill(pid, signal.SIGKILL)

    return act


def exhaust(framework: Framework) -> Callable[[Job], None]:
    """Returns when the kernel has killed the rank, and then lifts the limit for the others."""

    def act(job: Job) -> None:
        memory = job.memory
        assert memory
        pid, kills = one(job, framework.inside), memory.kills
        memory.press()
        os.kill(pid, inject.ALLOCATE)
        try:
            job.until(lambda: memory.kills > kills, "no process was killed by the OOM killer")
        finally:
            memory.lift()

    return act


def killed(rank: Rank) -> Expected:
    return Expected((137,), (rank.pod,), rank.number, signal=9)


def other_killed(framework: Framework) -> Expected:
    return replace(killed(framework.other), undisturbed=framework.undisturbed)


def all_stopped(framework: Framework, codes: tuple[int, ...]) -> Expected:
    return Expected(codes, counted=tuple(range(1, framework.pods + 1)) if framework.alone else (1,))


def failed(rank: Rank, code: int, message: str = "", verdict: str = "Succeeded") -> Expected:
    return Expected((code,), (rank.pod,), rank.number, message=message, verdict=verdict)


def out_of_memory(rank: Rank) -> Expected:
    return replace(killed(rank), reasons=("OOMKilled",))


def server_killed(framework: Framework) -> Expected:
    """The server restarts alone. The chief cannot continue without the weights; its failure is a consequence."""
    assert framework.server
    return killed(framework.server)


FAULTS = (
    Fault(
        "kill -9 of rank 0",
        "SIGKILL to the training process of rank 0 (with parameter servers, the chief)",
        lambda framework: killed(framework.first),
        sent(signal.SIGKILL, lambda framework: framework.first),
    ),
    Fault(
        "kill -9 of another rank",
        "SIGKILL to the training process of the last rank",
        other_killed,
        sent(signal.SIGKILL, lambda framework: framework.other),
    ),
    Fault(
        "kill -9 of the launcher",
        "SIGKILL to the first process of a pod: torchrun, mpirun, or the helper that starts Horovod's ranks with gloo",
        lambda framework: (
            replace(killed(framework.other), rank=None)
            if framework.launched
            else "no launcher: the rank is the pod's first process"
        ),
        kill_launcher,
    ),
    Fault(
        "SIGTERM to all ranks",
        "SIGTERM to all training processes: they save together and exit with 143",
        lambda framework: all_stopped(framework, (143,)),
        to_all(processes.ranks),
    ),
    Fault(
        "SIGTERM to all pods",
        "SIGTERM to the first process of every pod, as a kubelet sends it",
        lambda framework: (
            all_stopped(framework, framework.stopped)
            if framework.launched
            else "the same: the rank is the pod's first process"
        ),
        to_all(processes.first_processes),
    ),
    Fault(
        "exit 138",
        "one rank exits with 138, the code that requests a restart",
        lambda framework: failed(framework.inside, 138),
        sent(inject.EXIT_138, lambda framework: framework.inside),
    ),
    Fault(
        "out of memory",
        "one rank allocates until the kernel kills it, because the memory cgroup of the run is full",
        lambda framework: out_of_memory(framework.inside),
        exhaust,
        needs_memory=True,
    ),
    Fault(
        "an exception",
        "one rank raises an exception, once, during training",
        lambda framework: failed(framework.inside, 1, message=inject.EXCEPTION),
        sent(inject.RAISE, lambda framework: framework.inside),
    ),
    Fault(
        "the same exception twice",
        "the program in rank 0's pod raises an exception immediately, in every attempt",
        lambda framework: failed(framework.first, 1, message=inject.EXCEPTION, verdict="Failed"),
        alone=True,
        raises=True,
    ),
    Fault(
        "kill -9 of a ps",
        "SIGKILL to the parameter server, which holds the weights",
        lambda framework: server_killed(framework) if framework.server else "no parameter server",
        sent(signal.SIGKILL, lambda framework: framework.server),
        alone=True,
    ),
)
