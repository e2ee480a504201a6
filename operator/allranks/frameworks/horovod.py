"""Horovod: workers that meet at a gloo rendezvous without ssh, or a launcher that starts ranks by MPI over ssh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from allranks.fields import Model, Port, Rule
from allranks.frameworks import mpirun
from allranks.frameworks.base import (
    HELPER_DIR,
    SECRET_DIR,
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
from allranks.frameworks.command_line import Launch
from allranks.frameworks.hints import DoctorProbe, ScriptHints
from allranks.frameworks.tensorflow import LEGACY_KERAS


class HorovodOptions(Model):
    """Options of Horovod."""

    controller: Literal["Gloo", "MPI"] = Field(
        "Gloo",
        description="How ranks are started and find one another: Gloo needs no ssh and no launcher, MPI needs both.",
    )
    slots_per_worker: Annotated[int, Field(ge=1, le=64)] | Literal["Auto"] = Field(
        "Auto",
        description="Processes in each worker pod. Auto: one per GPU of the pod, or one without GPUs.",
        json_schema_extra={"x-kubernetes-int-or-string": True},
    )
    port: Port = Field(29400, description="Port of the gloo rendezvous in the pod of rank 0.")


class Horovod(Framework):
    name = "horovod"
    description = "Horovod"
    options = HorovodOptions
    roles: ClassVar[Mapping[str, RoleKind]] = {
        "worker": RoleKind("The ranks."),
        "launcher": RoleKind("Runs mpirun, for controller MPI.", max_replicas=1, ranked=False),
    }
    script = ScriptHints(
        imports=frozenset({"horovod"}),
        joins_group=frozenset({"init"}),
        launchers=frozenset({"horovodrun"}),
        rank="$HOROVOD_RANK",
    )
    log = mpirun.MpirunLog()
    probe = DoctorProbe("horovod")
    reserved_env = frozenset(
        {"HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK"}
        | {"HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME", "HOROVOD_CONTROLLER", "HOROVOD_GLOO_RENDEZVOUS_ADDR"}
        | {"HOROVOD_GLOO_RENDEZVOUS_PORT"}
    )
    launcher_env = ("HOROVOD_", "OMPI_", "PMIX_", "PMI_", "PRTE_")
    elastic = "absorbs"
    rules = (
        Rule(
            rule="!has(self.elastic) || !has(self.success)",
            message="cannot be set in an elastic Horovod job, which is complete when worker 0 is: remove it",
            field=".success",
        ),
        Rule(
            rule="!has(self.elastic) || !has(self.horovod) || self.horovod.controller in ['Gloo', 'gloo']",
            message="elastic Horovod needs controller Gloo: MPI cannot add or remove ranks of a running job",
            field=".elastic",
        ),
        Rule(
            rule="(has(self.horovod) && self.horovod.controller in ['MPI', 'mpi']) == "
            "(has(self.roles.launcher) && self.roles.launcher.replicas > 0)",
            message="controller MPI needs a launcher, and controller Gloo must not have one: "
            "add launcher: {} or remove it",
            field=".roles.launcher",
        ),
        Rule(
            rule="has(self.roles.worker) && self.roles.worker.replicas > 0",
            message="horovod needs at least one worker",
            field=".roles.worker",
        ),
    )

    def wire(self, context: AttemptContext) -> Wire:
        if context.options.controller == "MPI":
            return mpirun.wire(context, mpirun.slots(context), defaults=LEGACY_KERAS)
        return _elastic_wire(context) if context.elastic else _gloo_wire(context)

    def shared(self, context: AttemptContext) -> Shared:
        if context.options.controller != "MPI":
            return Shared(secret=True)
        return mpirun.shared(context, mpirun.slots(context))

    def scope(self, role: str, index: int, replicas: Mapping[str, int], elastic: bool = False) -> Scope:
        # All other workers need the first one, where the rendezvous is.
        return "Pod" if elastic and index else super().scope(role, index, replicas, elastic)

    def long_running_roles(self, replicas: Mapping[str, int]) -> frozenset[str]:
        return frozenset({"worker"} if replicas.get("launcher") else ())  # they run sshd

    def launch(self, context: AttemptContext, role: str) -> Launch:
        if context.options.controller == "MPI":
            return mpirun.launch(self, context, role)
        return mpirun.replaced(self, context, context.commands.get(role, ()))

    def processes(self, context: AttemptContext, role: str) -> int:
        return mpirun.slots(context) if role == "worker" else 1

    def success_target(self, replicas: Mapping[str, int], elastic: bool = False) -> tuple[str, int | None]:
        if elastic:
            return ("worker", 0)  # it exits when all have finished; another one may still be unschedulable
        return ("launcher", 0) if replicas.get("launcher") else ("worker", None)


_GLOO = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}


def _gloo_wire(context: AttemptContext) -> Wire:
    """Wire a job of fixed size: the helper in each worker starts its slots. The first one also serves the rendezvous,
    as horovodrun does."""
    slots = mpirun.slots(context)
    workers = context.ranked()
    first = workers[0]
    common = {
        **_GLOO,
        **_rendezvous(context, first),
        "HOROVOD_SIZE": str(slots * len(workers)),
        "HOROVOD_LOCAL_SIZE": str(slots),
        "HOROVOD_CROSS_SIZE": str(len(workers)),
        **_threads(context),
    }
    # The helper makes the list of hosts from it: a list of thousands does not fit into a variable.
    before, _, attempt = first.hostname.rsplit("-", 2)
    hosts = f"{before}-{{}}-{attempt}:{slots}"

    def wiring(worker: Replica) -> Wiring:
        env = common | {"HOROVOD_HOSTNAME": worker.hostname, "HOROVOD_CROSS_RANK": str(worker.node_rank)}
        if slots == 1:
            env |= {"HOROVOD_RANK": str(worker.node_rank), "HOROVOD_LOCAL_RANK": "0"}
        if worker == first:
            env["ALLRANKS_HOROVOD_HOSTS"] = hosts
        return Wiring(
            env=env,
            # The default of 30 s is too short if ranks load their data before hvd.init() at different speeds.
            defaults=LEGACY_KERAS | {"HOROVOD_GLOO_TIMEOUT_SECONDS": "600"},
            ports={"rendezvous": context.options.port} if worker == first else {},
            prefix=("python3", f"{HELPER_DIR}/horovod_gloo.py"),
            helper=True,
            secret=True,
        )

    return wiring


def _rendezvous(context: AttemptContext, first: Replica) -> dict[str, str]:
    """Return the variables with which a worker finds the rendezvous that `first` serves."""
    address, port = context.address(first, context.options.port)
    return {
        "ALLRANKS_RENDEZVOUS_SECRET_FILE": f"{SECRET_DIR}/secret",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }


def _threads(context: AttemptContext) -> dict[str, str]:
    slots = mpirun.slots(context)
    return {THREADS: context.threads("worker", slots)} if slots > 1 else {}


def _elastic_wire(context: AttemptContext) -> Wire:
    """Wire an elastic job: the helper in each worker offers its slots to Horovod's elastic driver, in the first
    worker's pod.

    The wiring must not depend on the current number of workers, because pods that run are not updated.
    """
    assert context.elastic
    workers = context.ranked()
    first = workers[0]
    common = {
        **_GLOO,
        "HOROVOD_ELASTIC": "1",
        **_rendezvous(context, first),
        "HOROVOD_LOCAL_SIZE": str(mpirun.slots(context)),
        **_threads(context),
        "ALLRANKS_HOROVOD_MIN": str(context.elastic.min_workers),
        "ALLRANKS_HOROVOD_MAX": str(context.elastic.max_workers),
        "ALLRANKS_HOROVOD_WAIT_SECONDS": str(context.elastic.wait_seconds),
    }

    def wiring(worker: Replica) -> Wiring:
        env = common | {"HOROVOD_HOSTNAME": worker.hostname}
        if worker == first:
            env["ALLRANKS_HOROVOD_WORKERS"] = str(len(workers))
        return Wiring(
            env=env,
            defaults=LEGACY_KERAS,
            ports={"rendezvous": context.options.port} if worker == first else {},
            prefix=("python3", f"{HELPER_DIR}/horovod_elastic.py"),
            helper=True,
            secret=True,
        )

    return wiring
