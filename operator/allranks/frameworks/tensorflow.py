"""TensorFlow: chief, workers, parameter servers and an evaluator, which find each other by TF_CONFIG."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from allranks.fields import Model, Port, Rule
from allranks.frameworks.base import AttemptContext, Framework, Replica, RoleKind, Scope, Shared, Wire, Wiring
from allranks.frameworks.hints import DoctorProbe, ScriptHints


class TensorFlowOptions(Model):
    """Options of TensorFlow."""

    port: Port = Field(2222, description="Port on which every task listens.")


CLUSTER = "ALLRANKS_TF_CLUSTER"
"""The addresses of all tasks but the evaluator, as JSON. The TF_CONFIG of each task refers to it."""
LEGACY_KERAS = {"TF_USE_LEGACY_KERAS": "1"}
"""Makes `tf.keras` Keras 2, from the package tf-keras. A program that imports `keras` gets Keras 3 all the same.

Horovod's optimizers and callbacks do not support Keras 3 either: its variables have no `ref`."""


class TensorFlow(Framework):
    name = "tensorflow"
    description = "TensorFlow"
    options = TensorFlowOptions
    roles: ClassVar[Mapping[str, RoleKind]] = {
        "chief": RoleKind("The task that coordinates the others and writes checkpoints.", max_replicas=1),
        "worker": RoleKind("Tasks that train."),
        "ps": RoleKind("Parameter servers, which never exit by themselves.", scope="Pod", ranked=False),
        "evaluator": RoleKind(
            "A task that evaluates checkpoints during the training.",
            max_replicas=1,
            scope="Pod",
            ranked=False,
            required_by_peers=False,
        ),
    }
    script = ScriptHints(
        imports=frozenset({"tensorflow", "keras"}),
        joins_group=frozenset({"MultiWorkerMirroredStrategy", "ParameterServerStrategy", "TFConfigClusterResolver"}),
    )
    probe = DoctorProbe("tensorflow", details="', %d GPUs' % len(m.config.list_physical_devices('GPU'))")
    reserved_env = frozenset({"TF_CONFIG"})
    rules = (
        Rule(
            rule="has(self.roles.chief) && self.roles.chief.replicas > 0 || "
            "has(self.roles.worker) && self.roles.worker.replicas > 0",
            message="tensorflow needs a chief or at least one worker",
            field=".roles",
        ),
    )

    def wire(self, context: AttemptContext) -> Wire:
        port: int = context.options.port
        defaults = LEGACY_KERAS if _has_several_tasks(context) else {}

        def wiring(replica: Replica) -> Wiring:
            # The evaluator is in a cluster of its own, because the others would wait for it.
            alone = replica.role == "evaluator"
            cluster = _json({"evaluator": [context.host_port(replica, port)]}) if alone else f"$({CLUSTER})"
            config = f'{{"cluster":{cluster},"task":{{"type":"{replica.role}","index":{replica.index}}}}}'
            shared = () if alone else (CLUSTER,)
            return Wiring(shared_env=shared, env={"TF_CONFIG": config}, defaults=defaults, ports={"grpc": port})

        return wiring

    def shared(self, context: AttemptContext) -> Shared:
        cluster: dict[str, list[str]] = {}
        for replica in context.in_roles(*_CLUSTER_ROLES):
            cluster.setdefault(replica.role, []).append(context.host_port(replica, context.options.port))
        return Shared(variables={CLUSTER: _json(cluster)})

    def scope(self, role: str, index: int, replicas: Mapping[str, int], elastic: bool = False) -> Scope:
        if role == "worker" and _workers_serve_chief(replicas):
            return "Pod"  # the chief gives its work to other workers, and to the new one when it is ready
        return super().scope(role, index, replicas, elastic)

    def long_running_roles(self, replicas: Mapping[str, int]) -> frozenset[str]:
        return frozenset({"ps", "worker"} if _workers_serve_chief(replicas) else {"ps"})

    def advice(self, context: AttemptContext) -> list[tuple[str, str]]:
        if context.in_roles("chief") or not context.in_roles("ps"):
            return []
        problem = "ParameterServerStrategy needs a chief, which gives workers and parameter servers their work"
        return [("spec.roles.ps", f"{problem}: without one they wait for ever, so add chief: {{}}")]

    def changes(self, context: AttemptContext) -> list[tuple[str, str]]:
        [name] = LEGACY_KERAS
        if not _has_several_tasks(context) or any(name in names for names in context.variables.values()):
            return []
        reason = "Model.fit of Keras 3 does not support several tasks"
        cure = f'set {name} to "0" in env for Keras 3'
        return [("spec.framework", f"tf.keras is legacy Keras ({name}=1), because {reason}: {cure}")]

    def success_target(self, replicas: Mapping[str, int], elastic: bool = False) -> tuple[str, int | None]:
        return ("chief", 0) if replicas.get("chief") else ("worker", 0)


_CLUSTER_ROLES = ("chief", "worker", "ps")


def _has_several_tasks(context: AttemptContext) -> bool:
    """Return whether `compile` and `fit` of `tf.keras` need legacy Keras.

    Those of Keras 3 work with the strategies of one task, but not with MultiWorkerMirroredStrategy and
    ParameterServerStrategy. The evaluator uses the Keras of the tasks whose weights it reads.
    """
    return len(context.in_roles(*_CLUSTER_ROLES)) > 1


def _json(cluster: Mapping[str, list[str]]) -> str:
    return json.dumps(cluster, separators=(",", ":"))


def _workers_serve_chief(replicas: Mapping[str, int]) -> bool:
    """Return whether workers only serve a chief: beside parameter servers they never exit by themselves."""
    return bool(replicas.get("ps") and replicas.get("chief"))
