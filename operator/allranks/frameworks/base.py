"""What a framework is to the rest: its roles, its options, how its ranks find one another, when it is done.

A framework is one file beside this one, registered in `frameworks/__init__.py`; it knows nothing of Kubernetes, of kopf
or of processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel

from allranks.fields import Rule

Scope = Literal["group", "pod"]
Elasticity = Literal["restarts", "absorbs"]


@dataclass(frozen=True, slots=True)
class RoleKind:
    """What one role of a framework is."""

    description: str
    max_replicas: int | None = None
    """None: as many as the API allows."""
    scope: Scope = "group"
    """Default restart scope: peers of a dead all-reduce rank only hang, a parameter server is replaced alone."""
    ranked: bool = True
    """Its pods hold ranks."""
    missed: bool = True
    """The others cannot go on for long without it, though it restarts alone."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One pod to be: `node_rank` is its place among all that hold ranks, None where it holds none."""

    role: str
    index: int
    hostname: str
    node_rank: int | None


class Bounds(NamedTuple):
    """Within which the number of workers may change."""

    least: int
    most: int
    wait_seconds: int
    """For all that are wanted, before fewer begin."""


@dataclass(frozen=True)
class Group:
    """The replicas of one attempt, and what their wiring depends on."""

    job: str
    namespace: str
    attempt: int
    replicas: tuple[Replica, ...]
    """In the framework's order of roles, then by index."""
    options: Any
    """The framework's own options, an instance of `Framework.options`."""
    gpus: Mapping[str, int]
    """Role -> GPUs that each of its pods asks for."""
    own_command: frozenset[str] = frozenset()
    """Roles for which the user wrote a command of their own."""
    variables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Role -> names of all other variables that its pods have, the user's among them."""
    grace_seconds: int = 30
    elastic: Bounds | None = None
    """Of an elastic job."""
    local: bool = False
    endpoints: Mapping[tuple[str, int], tuple[str, int]] = field(default_factory=dict)

    def of(self, *roles: str) -> tuple[Replica, ...]:
        return tuple(r for r in self.replicas if r.role in roles)

    def ranked(self) -> tuple[Replica, ...]:
        """The replicas that hold ranks, by node rank."""
        return tuple(sorted((r for r in self.replicas if r.node_rank is not None), key=lambda r: r.node_rank or 0))

    def address(self, replica: Replica, port: int) -> tuple[str, int]:
        """Where the others reach this replica's port: its stable DNS name, unless the platform says otherwise."""
        elsewhere = self.endpoints.get((replica.hostname, port))
        return elsewhere or (f"{replica.hostname}.{self.job}.{self.namespace}.svc", port)


@dataclass(frozen=True)
class Wiring:
    """What a framework adds to one pod's training container."""

    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that make the ranks find one another: a user may not set these."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Variables set only where the user has not."""
    ports: Mapping[str, int] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    """Put before the user's command and args."""
    command: tuple[str, ...] | None = None
    """Replaces the user's command (an sshd, a stand-by): None keeps it."""
    helper: bool = False
    """The pod needs the in-pod helper files at `HELPER_DIR`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """File name -> content of small files at `FILES_DIR`, the same for every pod of the attempt."""
    ssh_key: bool = False
    """The pod needs the job's own ssh key at `SSH_DIR`."""


FILES_DIR = "/etc/allranks"
SSH_DIR = "/etc/allranks-ssh"
HELPER_DIR = "/allranks"
"""Where an init container puts the helper files (standard library only) in pods that need them."""


@dataclass(frozen=True, slots=True)
class RootCause:
    """What a launcher's own report says of the process that failed first, behind the launcher's exit code."""

    rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    message: str | None = None
    time: datetime | None = None
    """In the pod's local time, to the second: launchers write it without a zone."""


class Framework(ABC):
    """One framework. Instances hold no state."""

    name: ClassVar[str]
    description: ClassVar[str]
    options: ClassVar[type[BaseModel]]
    roles: ClassVar[Mapping[str, RoleKind]]
    """In order of node ranks: the first role's index 0 is rank 0."""
    reserved_env: ClassVar[frozenset[str]]
    """Variables that a user may not set, because they make the ranks find one another."""
    elastic: ClassVar[Elasticity | None] = None
    """What an elastic job's ranks do about another number of workers: `restarts`, all together, at the new size, or
    `absorbs`, each worker but the first may come and go. None: no such jobs."""
    rules: ClassVar[tuple[Rule, ...]] = ()
    """Further CEL rules for jobs of this framework; `self` is the spec."""

    @abstractmethod
    def wire(self, group: Group) -> list[Wiring]:
        """Environment, ports and command of each of `group.replicas`, in their order."""

    @abstractmethod
    def done(self, replicas: Mapping[str, int], elastic: bool = False) -> tuple[str, int | None]:
        """Default success: (role, index), or (role, None) for all of that role."""

    def services(self, replicas: Mapping[str, int]) -> frozenset[str]:
        """Roles whose pods never end by themselves: nothing waits for them when the job is done."""
        return frozenset()

    def scope(self, role: str, index: int, replicas: Mapping[str, int], elastic: bool = False) -> Scope:
        """Whether the failure of this pod restarts all or the pod alone."""
        return self.roles[role].scope

    def processes(self, group: Group, role: str) -> int:
        """How many processes, and so ranks, each pod of a role runs."""
        return 1

    @property
    def ranks_are_pods(self) -> bool:
        """Each pod runs one process, whatever the options say: where it does not say its rank, its place does."""
        return type(self).processes is Framework.processes

    def root_cause(self, message: str) -> RootCause | None:
        """Reads a launcher's failure report out of a pod's last log lines; None where there is none."""
        return None
