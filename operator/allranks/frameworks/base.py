"""The interface of a framework: its roles and options, how it wires ranks together, and when its jobs are complete.

A framework is one file in this folder, registered in `frameworks/__init__.py`. It depends neither on Kubernetes, nor on
kopf, nor on local processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel

from allranks.fields import Rule
from allranks.frameworks.command_line import Launch, Start, line_to_write, starts
from allranks.frameworks.hints import DoctorProbe, LogReader, ScriptHints

Scope = Literal["Group", "Pod"]
Elasticity = Literal["restarts", "absorbs"]


@dataclass(frozen=True, slots=True)
class RoleKind:
    """Properties of one role of a framework."""

    description: str
    max_replicas: int | None = None
    """Largest number of replicas; None for the limit of the API."""
    scope: Scope = "Group"
    """Default restart scope. `Group` for ranks that communicate, because the peers of a dead rank only hang; `Pod` for
    replicas that can be replaced alone, such as parameter servers."""
    ranked: bool = True
    """True if pods of this role hold ranks."""
    required_by_peers: bool = True
    """True if the other replicas fail after a while without it, although it restarts alone."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of an attempt. `node_rank` is its position among all replicas that hold ranks; None without ranks."""

    role: str
    index: int
    hostname: str
    node_rank: int | None


class ElasticBounds(NamedTuple):
    """Limits for the number of workers of an elastic job."""

    min_workers: int
    max_workers: int
    wait_seconds: int
    """Longest wait for all desired workers before fewer may start."""


@dataclass(frozen=True)
class AttemptContext:
    """The replicas of one attempt, and everything else that their wiring depends on."""

    job: str
    namespace: str
    attempt: int
    replicas: tuple[Replica, ...]
    """In the framework's order of roles, then by index."""
    options: Any
    """The framework's own options, an instance of `Framework.options`."""
    gpus: Mapping[str, int]
    """Role -> GPUs that each of its pods requests."""
    gpus_determined: bool = True
    """False if the job's pool, which may add GPUs, is missing here."""
    cpus: Mapping[str, int] = field(default_factory=dict)
    """Role -> whole CPUs of the limit of each of its pods, or of the request without a limit; absent without both."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Role -> the same for memory, in bytes."""
    tpus: frozenset[str] = frozenset()
    """Roles whose pods request TPUs of Google."""
    own_command: frozenset[str] = frozenset()
    """Roles with a command in their own section of the manifest."""
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Role -> the command line of its program; empty without a command."""
    variables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Role -> names of the other environment variables of its pods, including the user's."""
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Role -> the user's variables that have a value in the manifest."""
    grace_seconds: int = 30
    elastic: ElasticBounds | None = None
    """Bounds of an elastic job; None for other jobs."""
    local: bool = False
    """All pods run as processes of one machine."""
    endpoints: Mapping[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    """(hostname, port) -> (address, port) at which it can be reached, where that differs."""

    def in_roles(self, *roles: str) -> tuple[Replica, ...]:
        return tuple(r for r in self.replicas if r.role in roles)

    def ranked(self) -> tuple[Replica, ...]:
        """Return the replicas that hold ranks, by node rank."""
        return tuple(sorted((r for r in self.replicas if r.node_rank is not None), key=lambda r: r.node_rank or 0))

    def address(self, replica: Replica, port: int) -> tuple[str, int]:
        """Return the host and the port at which peers reach a replica: its stable DNS name, unless `endpoints` has
        another."""
        endpoint = self.endpoints.get((replica.hostname, port))
        return endpoint or (f"{replica.hostname}.{self.job}.{self.namespace}.svc", port)

    def threads(self, role: str, processes: int) -> str:
        """Return the number of threads for each of several processes in a pod: its share of the CPUs, or 1, as torchrun
        does, if the pod requests none."""
        return str(max(1, self.cpus.get(role, 0) // processes))

    def host_port(self, replica: Replica, port: int) -> str:
        """Return the address as HOST:PORT."""
        return "{}:{}".format(*self.address(replica, port))


@dataclass(frozen=True)
class Wiring:
    """Additions of a framework to one pod's training container.

    Their size must not depend on the number of replicas: such values are in `Shared`. `prefix`, `command` and `helper`
    are the same for all replicas of a role.
    """

    shared_env: tuple[str, ...] = ()
    """Names of the `Shared.variables` that this pod needs. Values of `env` may refer to them as `$(NAME)`."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables by which ranks find each other. The user may not set them."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Variables that are set unless the user sets them."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Port name -> number."""
    prefix: tuple[str, ...] = ()
    """Arguments inserted before the user's command."""
    command: tuple[str, ...] | None = None
    """Replaces the user's command, for example by an sshd. None keeps it."""
    helper: bool = False
    """The pod needs the in-pod helper files at `HELPER_DIR`."""
    files: bool = False
    """The pod needs `Shared.files` at `FILES_DIR`."""
    file_mounts: Mapping[str, str] = field(default_factory=dict)
    """Path -> name of one of `Shared.files` that programs expect there too, unless the user mounts a volume there."""
    ssh_key: bool = False
    """The pod needs the job's ssh key at `SSH_DIR`."""
    secret: bool = False
    """The pod needs the secret that only the job's pods have, at `SECRET_DIR`. See inpod/rendezvous_secret.py."""


@dataclass(frozen=True)
class Shared:
    """Data that the pods of one attempt share. It is stored once, because n copies of n addresses fill etcd."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Name -> value, for `Wiring.shared_env`. Names start with `ALLRANKS_`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """File name -> content."""
    ssh_key: bool = False
    """The job needs an ssh key pair."""
    secret: bool = False
    """The job needs a secret, for `Wiring.secret`."""


Wire = Callable[[Replica], Wiring]
"""Returns the wiring of one replica of an attempt."""


FILES_DIR = "/etc/allranks"
SSH_DIR = "/etc/allranks-ssh"
ROOT_SSH_DIR = "/etc/allranks-ssh-root"
"""The key for programs that run as root: OpenSSH refuses a key of its user that others can read."""
SECRET_DIR = "/etc/allranks-rendezvous"
THREADS = "ALLRANKS_THREADS"
"""The helper that starts several ranks in a pod sets OMP_NUM_THREADS to it, unless the user, the image or a ConfigMap
does."""
HELPER_DIR = "/allranks"
"""Where an init container copies the helper files. They need only the standard library."""


class Framework(ABC):
    """One framework. Instances are stateless. The members without a value, `wire` and `success_target` are required."""

    name: ClassVar[str]
    description: ClassVar[str]
    options: ClassVar[type[BaseModel]]
    roles: ClassVar[Mapping[str, RoleKind]]
    """Ordered by node rank: index 0 of the first role is rank 0."""
    reserved_env: ClassVar[frozenset[str]]
    """Variables by which ranks find each other. The user may not set them."""

    @abstractmethod
    def wire(self, context: AttemptContext) -> Wire:
        """Return the function that returns environment, ports and command of one of `context.replicas`.

        A job may have 10,000 replicas, and often only a few of them are wired: each call takes constant time.
        """

    @abstractmethod
    def success_target(self, replicas: Mapping[str, int], elastic: bool = False) -> tuple[str, int | None]:
        """Return the replica whose completion completes the job by default: (role, index), or (role, None) for the
        whole role. `replicas`: role -> number."""

    # Optional from here on.

    script: ClassVar[ScriptHints] = ScriptHints()
    log: ClassVar[LogReader] = LogReader()
    probe: ClassVar[DoctorProbe | None] = None
    """The Python package of the framework; None if its programs need none."""
    any_role: ClassVar[bool] = False
    """The job names the roles, and `for_job` describes them; `roles` has the most usual ones."""
    command_starts_ranks: ClassVar[bool] = False
    """The command of a pod is one process that starts its ranks, as torchrun does; else allranks starts each rank."""
    ranks_keep_numbers: ClassVar[bool] = False
    """Each rank has its number for the whole attempt. Ranks of others, elastic ones for example, may change it."""
    launcher_env: ClassVar[tuple[str, ...]] = ()
    """Further variables that the framework's launchers set in the processes that they start. A name that ends in `_` is
    a prefix. A local run removes these and `reserved_env` from the environment that it inherits."""
    elastic: ClassVar[Elasticity | None] = None
    """The way in which elastic jobs change their number of workers; None if there are no elastic jobs.

    `restarts`: all ranks restart with the new size. `absorbs`: workers with restart scope `Pod` may join and leave
    while the others run."""
    rules: ClassVar[tuple[Rule, ...]] = ()
    """Further CEL rules for jobs of this framework; `self` is the spec."""

    def for_job(self, options: Any, roles: Sequence[str]) -> Framework:
        """Return the framework of one job, if its roles depend on the job's options and roles."""
        return self

    def missing_command(self) -> str:
        """Return what a job may set instead of a command, as the end of a sentence; empty if it needs one."""
        return ""

    def shared(self, context: AttemptContext) -> Shared:
        """Return the variables, files and secrets that the pods of the attempt have in common."""
        return Shared()

    def long_running_roles(self, replicas: Mapping[str, int]) -> frozenset[str]:
        """Return the roles whose pods never exit by themselves. A complete job does not wait for them."""
        return frozenset()

    def scope(self, role: str, index: int, replicas: Mapping[str, int], elastic: bool = False) -> Scope:
        """Return whether a failure of this replica restarts all replicas or this one alone."""
        return self.roles[role].scope

    def processes(self, context: AttemptContext, role: str) -> int:
        """Return the number of processes, and so of ranks, in each pod of a role."""
        return 1

    @property
    def ranks_are_pods(self) -> bool:
        """Return whether each pod runs exactly one process, so that its rank follows from its node rank."""
        return type(self).processes is Framework.processes

    def launch(self, context: AttemptContext, role: str) -> Launch:
        """Return the command of a role as allranks runs it, if it starts ranks by a launcher of its own.

        The default refuses such a launcher in a job with several ranks: each of them would start ranks that know
        nothing of the others.
        """
        command = context.commands.get(role, ())
        if not self.roles[role].ranked:
            return Launch(command)
        return self.refuse_launchers(command, self.copies(context))

    def copies(self, context: AttemptContext) -> int:
        """Return how often the command runs, in all pods with ranks at the largest size of the job."""
        ranked = context.ranked()
        processes = {role: self.processes(context, role) for role in {replica.role for replica in ranked}}
        number = sum(processes[replica.role] for replica in ranked)
        if context.elastic:
            number = max(number, context.elastic.max_workers * processes.get("worker", 1))
        return number

    def refuse_launchers(self, command: Sequence[str], copies: int) -> Launch:
        """Return the command, with a problem if each of its `copies` starts ranks by a launcher of its own."""
        for start in starts(command) if copies > 1 else ():
            framework = LAUNCHED[start.kind]
            if framework == self.name or self.connects(start):
                continue
            cure = f"use framework {framework}"
            if start.kind != "ray":
                cure = f"{line_to_write(command, start)}, or {cure}"
            place, problem = start.head[0].argument, f"would run {copies} times, each with ranks of its own: {cure}"
            if start.sure:
                return Launch(tuple(command), problem=(place, f"{start.name} {problem}"))
            return Launch(tuple(command), warnings=((place, f"if {start.name} runs, it {problem}"),))
        return Launch(tuple(command))

    def connects(self, start: Start) -> bool:
        """Return whether the options of a launcher connect its ranks by variables, which may be those of allranks."""
        return False

    def advice(self, context: AttemptContext) -> list[tuple[str, str]]:
        """Return (field path, sentence with the cure) of settings of a valid job with which its ranks cannot train."""
        return []

    def changes(self, context: AttemptContext) -> list[tuple[str, str]]:
        """Return (field path, sentence) of what a program meets in this job and not when it runs alone."""
        return []


LAUNCHED = {
    "torchrun": "pytorch",
    "accelerate": "pytorch",
    "deepspeed": "pytorch",
    "mpirun": "mpi",
    "horovodrun": "horovod",
    "ray": "ray",
}
"""Launcher -> the framework that starts its programs."""
