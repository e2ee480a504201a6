"""SPMD: ranks of any program, and roles of any name beside them, which find each other by generic variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from allranks.fields import Model, Port, Rule
from allranks.frameworks.base import (
    FILES_DIR,
    HELPER_DIR,
    THREADS,
    AttemptContext,
    Framework,
    Replica,
    RoleKind,
    Scope,
    Shared,
    Wire,
    Wiring,
)
from allranks.frameworks.command_line import Start
from allranks.frameworks.hints import ScriptHints
from allranks.frameworks.rank_report import RankReports

_Role = Annotated[str, StringConstraints(min_length=1, max_length=50)]
_Roles = Annotated[list[_Role], Field(max_length=16)]


class SpmdOptions(Model):
    """Options of SPMD programs."""

    ranks: Annotated[_Roles, Field(min_length=1)] = Field(
        ["worker"],
        description="Roles whose pods hold ranks, in the order of their ranks: the first pod of the first role has "
        "rank 0. Default: [worker].",
    )
    services: _Roles | None = Field(
        None,
        description="Roles whose pods never exit by themselves and are deleted when the job is complete. Default: all "
        "roles without ranks.",
    )
    scope: Annotated[dict[_Role, Literal["Group", "Pod"]], Field(max_length=16)] | None = Field(
        None,
        description="Role -> what a failure of one of its pods restarts: Group, all pods, or Pod, this one alone. "
        "Default: Group for roles with ranks, Pod for all others.",
    )
    processes_per_pod: Annotated[int, Field(ge=1, le=64)] | Literal["Auto"] = Field(
        "Auto",
        description="Processes, and so ranks, in each pod of a role with ranks. Auto: one per GPU of the pod, or one "
        "without GPUs.",
        json_schema_extra={"x-kubernetes-int-or-string": True},
    )
    port: Port = Field(
        29500, description="Port of each pod, on which the others reach it. In rank 0's it is MASTER_PORT."
    )


def _named(field: str) -> str:
    """Return the CEL expression that each name in a list or map of the options is a role of the job."""
    return f"!has(self.spmd) || !has(self.spmd.{field}) || self.spmd.{field}.all(r, r in self.roles)"


_RANKS = "(has(self.spmd) && has(self.spmd.ranks) ? self.spmd.ranks : ['worker'])"
_EXIST = f"{_RANKS}.all(r, r in self.roles)"


class Spmd(Framework):
    name = "spmd"
    description = "SPMD programs"
    options = SpmdOptions
    roles: ClassVar[Mapping[str, RoleKind]] = {"worker": RoleKind("The ranks.")}
    ranks_keep_numbers = True
    any_role = True
    script = ScriptHints(rank="$RANK", any_program=True)
    log = RankReports()
    reserved_env = frozenset(
        {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES", "MASTER_ADDR", "MASTER_PORT"}
    )
    rules = (
        Rule(
            rule=_EXIST,
            message="names a role that this job does not have: list the roles that hold the ranks of framework spmd. "
            "Default: [worker]",
            field=".spmd.ranks",
        ),
        Rule(
            rule=f"!{_EXIST} || {_RANKS}.exists(r, self.roles[r].replicas > 0)",
            message="the job has no ranks: set the replicas of a role in spmd.ranks",
            field=".roles",
        ),
        Rule(rule=_named("services"), message="names a role that this job does not have", field=".spmd.services"),
        Rule(rule=_named("scope"), message="names a role that this job does not have", field=".spmd.scope"),
        Rule(
            rule="!has(self.spmd) || !has(self.spmd.services) || !self.spmd.services.exists(r, r in self.spmd.ranks)",
            message="names a role of spmd.ranks: pods that hold ranks must exit when the training is complete",
            field=".spmd.services",
        ),
    )

    def __init__(self, kinds: Mapping[str, RoleKind] | None = None, services: frozenset[str] = frozenset()) -> None:
        if kinds is not None:
            self.roles = kinds  # type: ignore[misc]
        self._services = services

    def for_job(self, options: SpmdOptions, roles: Sequence[str]) -> Framework:
        services = None if options.services is None else tuple(options.services)
        return _for_job(tuple(options.ranks), services, tuple((options.scope or {}).items()), tuple(roles))

    def wire(self, context: AttemptContext) -> Wire:
        port: int = context.options.port
        ranked = context.ranked()
        processes = {role: self.processes(context, role) for role in self.roles}
        first: dict[str, Replica] = {}
        first_rank: dict[str, int] = {}
        world = 0
        for replica in (*ranked, *context.replicas):
            first.setdefault(replica.role, replica)
        for replica in ranked:
            first_rank.setdefault(replica.role, world)
            world += processes[replica.role]
        address, rendezvous = context.address(ranked[0], port)
        replicas = sorted(first.items())
        common = {
            f"ALLRANKS_ADDR_{role.upper()}": context.host_port(replica, context.options.port)
            for role, replica in replicas
        }
        common |= {f"ALLRANKS_HOSTS_{role.upper()}": f"{FILES_DIR}/{_hosts_file(role)}" for role in sorted(first)}
        of_ranks = {"MASTER_ADDR": address, "MASTER_PORT": str(rendezvous), "WORLD_SIZE": str(world)}
        of_ranks["NNODES"] = str(len(ranked))

        def wiring(replica: Replica) -> Wiring:
            env = common | {"ALLRANKS_PORT": str(context.address(replica, port)[1])}
            count = processes[replica.role]
            if replica.node_rank is not None:
                rank = first_rank[replica.role] + replica.index * count
                env |= of_ranks | {"NODE_RANK": str(replica.node_rank), "RANK": str(rank), "LOCAL_RANK": "0"}
                env["LOCAL_WORLD_SIZE"] = str(count)
            if count > 1:
                env[THREADS] = context.threads(replica.role, count)
            # The helper starts the other processes of the pod, with ranks that follow.
            prefix = ("python3", f"{HELPER_DIR}/local_ranks.py", "--") if count > 1 else ()
            return Wiring(env=env, ports={"spmd": port}, prefix=prefix, helper=bool(prefix), files=True)

        return wiring

    def shared(self, context: AttemptContext) -> Shared:
        lines: dict[str, list[str]] = {}
        for replica in context.replicas:
            address = context.host_port(replica, context.options.port)
            lines.setdefault(_hosts_file(replica.role), []).append(f"{address}\n")
        return Shared(files={name: "".join(addresses) for name, addresses in lines.items()})

    def processes(self, context: AttemptContext, role: str) -> int:
        if not self.roles[role].ranked:
            return 1
        processes: int | str = context.options.processes_per_pod
        return max(1, context.gpus.get(role, 0)) if isinstance(processes, str) else processes

    def success_target(self, replicas: Mapping[str, int], elastic: bool = False) -> tuple[str, int | None]:
        ranked = [role for role, kind in self.roles.items() if kind.ranked]
        return next((role for role in ranked if replicas.get(role)), ranked[0]), None

    def long_running_roles(self, replicas: Mapping[str, int]) -> frozenset[str]:
        return self._services

    def connects(self, start: Start) -> bool:
        names = {"torchrun": "nnodes", "accelerate": "machine-rank", "deepspeed": "no-ssh"}
        option = start.option(names.get(start.kind, ""))
        # `ray start` has the address of another pod, or the other pods have its address.
        return start.kind == "ray" or (option is not None and (option.variable or option.name == "no-ssh"))


@lru_cache(maxsize=64)
def _for_job(
    ranks: tuple[str, ...],
    services: tuple[str, ...] | None,
    scopes: tuple[tuple[str, Scope], ...],
    roles: tuple[str, ...],
) -> Spmd:
    scope_of = dict(scopes)
    kinds = {role: RoleKind("Ranks.", scope=scope_of.get(role, "Group")) for role in ranks}
    others = [role for role in roles if role not in kinds]
    kinds |= {role: RoleKind("Beside the ranks.", scope=scope_of.get(role, "Pod"), ranked=False) for role in others}
    return Spmd(kinds, frozenset(others if services is None else services))


def _hosts_file(role: str) -> str:
    return f"hosts-{role}"
