"""JAX: worker processes that meet at the coordinator in worker-0, with all GPUs of its pod in each process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from allranks.fields import Model, Port
from allranks.frameworks.base import HELPER_DIR, AttemptContext, Framework, Replica, RoleKind, Wire, Wiring
from allranks.frameworks.hints import DoctorProbe, ScriptHints


class JaxOptions(Model):
    """Options of JAX."""

    port: Port = Field(8476, description="Port of the coordinator in worker-0. The default is 8476.")


class Jax(Framework):
    name = "jax"
    description = "JAX"
    options = JaxOptions
    roles: ClassVar[Mapping[str, RoleKind]] = {"worker": RoleKind("The processes. worker-0 runs the coordinator.")}
    ranks_keep_numbers = True
    script = ScriptHints(imports=frozenset({"jax", "flax"}), joins_group=frozenset({"initialize"}))
    probe = DoctorProbe("jax")  # asking for its devices would take most of a GPU's memory
    reserved_env = frozenset({"JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"})
    launcher_env = ("JAX_COORDINATOR_BIND_ADDRESS", "JAX_LOCAL_DEVICE_IDS")

    def wire(self, context: AttemptContext) -> Wire:
        first = context.ranked()[0]
        host, port = context.address(first, context.options.port)
        common = {"JAX_COORDINATOR_ADDRESS": f"{host}:{port}", "JAX_NUM_PROCESSES": str(len(context.ranked()))}
        # Programs that were written for Kubeflow's JAXJob read these names.
        defaults = {"COORDINATOR_ADDRESS": host, "COORDINATOR_PORT": str(port)}
        defaults["NUM_PROCESSES"] = str(len(context.ranked()))
        if context.local:
            # The coordinator listens on all addresses of its pod. Processes of one machine need only its own.
            defaults["JAX_COORDINATOR_BIND_ADDRESS"] = f"{host}:{port}"

        def wiring(replica: Replica) -> Wiring:
            return Wiring(
                env=common | {"JAX_PROCESS_ID": str(replica.node_rank)},
                defaults=defaults | {"PROCESS_ID": str(replica.node_rank)},
                ports={"coordinator": context.options.port} if replica == first else {},
                # `jax.distributed.initialize()` reads only the address from the environment.
                prefix=("python3", f"{HELPER_DIR}/jax_process.py", "--"),
                helper=True,
            )

        return wiring

    def success_target(self, replicas: Mapping[str, int], elastic: bool = False) -> tuple[str, int | None]:
        return ("worker", None)
