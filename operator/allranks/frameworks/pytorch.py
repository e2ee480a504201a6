"""PyTorch: a master and workers that meet at MASTER_ADDR:MASTER_PORT, under torchrun or as plain programs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from allranks.fields import Model, Port
from allranks.frameworks.base import (
    AttemptContext,
    Framework,
    Note,
    Replica,
    RoleKind,
    Wire,
    Wiring,
)
from allranks.frameworks.hints import DoctorProbe, ScriptHints
from allranks.frameworks.torchrun_log import TorchrunLog


class PyTorchOptions(Model):
    """Options of PyTorch."""

    backend: Literal["Auto", "NCCL", "Gloo"] = Field(
        "Auto",
        description="Backend for init_process_group: the program reads it from ALLRANKS_BACKEND, unset for Auto.",
    )
    processes_per_node: Annotated[int, Field(ge=1, le=64)] | Literal["Auto"] = Field(
        "Auto",
        description="Processes in each pod. Auto: one per GPU of the pod, or one without GPUs.",
        json_schema_extra={"x-kubernetes-int-or-string": True},
    )
    port: Port = Field(29500, description="Port of rank 0 for the rendezvous.")


class PyTorch(Framework):
    name = "pytorch"
    description = "PyTorch"
    options = PyTorchOptions
    roles: ClassVar[Mapping[str, RoleKind]] = {
        "master": RoleKind("The pod of rank 0, at most one. Without it, worker 0 has rank 0.", max_replicas=1),
        "worker": RoleKind("The ranks. Worker 0 is rank 0, unless the job has a master or chief."),
    }
    # torchrun's own elasticity restarts all processes as well, and first waits for half a minute.
    elastic = "restarts"
    script = ScriptHints(
        imports=frozenset(
            {"torch", "lightning", "pytorch_lightning", "accelerate", "deepspeed", "transformers", "trl"}
        ),
        joins_group=frozenset(
            {"init_process_group", "init_device_mesh", "Accelerator", "Trainer", "SFTTrainer", "Fabric"}
            | {"init_distributed", "initialize"}
        ),
        command=("torchrun",),
        launcher=("torchrun", "--no-python"),
        rank="$RANK",
        module="torch.distributed.run",
    )
    log = TorchrunLog()
    probe = DoctorProbe(
        "torch",
        details="', CUDA ' + m.version.cuda if m.version.cuda else ', CPU only'",
        gpu="bool(m.cuda.is_available())",
        gpu_cure="install the build for your GPUs: https://pytorch.org/get-started/locally",
    )
    reserved_env = frozenset(
        {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "NODE_RANK", "NNODES", "NPROC_PER_NODE", "LOCAL_RANK"}
        | {
            "LOCAL_WORLD_SIZE",
            "PET_NNODES",
            "PET_NPROC_PER_NODE",
            "PET_NODE_RANK",
            "PET_MASTER_ADDR",
            "PET_MASTER_PORT",
        }
        | {"PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_ID"}
    )

    launcher_env = (
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_NAME",
        "ROLE_WORLD_SIZE",
        "PET_",
        "TORCHELASTIC_",
    )

    def wire(self, context: AttemptContext) -> Wire:
        options: PyTorchOptions = context.options
        ranked = context.ranked()
        first = ranked[0]
        address, port = context.address(first, options.port)
        defaults = {
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_FR_BUFFER_SIZE": "2000",
            # Else torchrun kills workers 30 s after SIGTERM, whatever the pod's grace period. 5 s remain to report.
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, context.grace_seconds - 5)),
        }
        if options.backend != "Auto":
            defaults["ALLRANKS_BACKEND"] = options.backend.lower()  # as init_process_group spells it
        common = {"MASTER_ADDR": address, "MASTER_PORT": str(port), "NNODES": str(len(ranked))}
        common |= {f"PET_{name}": value for name, value in common.items()}

        counts = {role: self.processes(context, role) for role in context.gpus}
        one_each = all(counts[replica.role] == 1 for replica in context.replicas)

        def wiring(replica: Replica) -> Wiring:
            rank = str(replica.node_rank)
            node = {"NODE_RANK": rank, "NPROC_PER_NODE": str(counts[replica.role])}
            env = common | node | {f"PET_{name}": value for name, value in node.items()}
            if one_each:
                # With several processes per pod only torchrun can assign ranks.
                env |= {"WORLD_SIZE": str(len(ranked)), "RANK": rank, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            ports = {"rendezvous": options.port} if replica == first else {}
            return Wiring(env=env, defaults=defaults, ports=ports)

        return wiring

    def processes(self, context: AttemptContext, role: str) -> int:
        processes: int | str = context.options.processes_per_node
        return max(1, context.gpus[role]) if isinstance(processes, str) else processes

    def success_target(self, replicas: Mapping[str, int], elastic: bool = False) -> tuple[str, int | None]:
        return ("master", 0) if replicas.get("master") else ("worker", None)

    def notes(self, arguments: Sequence[str], role: str, own_command: bool) -> list[Note]:
        return torchrun_notes(arguments)


_FLAGS = frozenset({"standalone", "m", "module", "no-python", "run-path", "h", "help"})
"""Options of torchrun without a value."""
RENDEZVOUS_OPTIONS = frozenset(
    {"nnodes", "node-rank", "master-addr", "master-port", "rdzv-backend", "rdzv-endpoint", "rdzv-id"}
)
_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch"})


def torchrun_notes(arguments: Sequence[str]) -> list[Note]:
    """Note options by which a user connects nodes by hand. A value that refers to a variable may come from allranks."""
    notes = []
    for index, name, value in torchrun_options(arguments):
        written = arguments[index].partition("=")[0]
        if name == "standalone":
            notes.append((index, f"each pod would train alone; allranks connects the ranks: remove {written}"))
        elif name in RENDEZVOUS_OPTIONS and "$" not in value:
            notes.append((index, f"allranks sets it for each rank, and this value replaces it: remove {written}"))
    return notes


def torchrun_options(arguments: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Yield (index, name without dashes, value) of torchrun's own options, which end at the script. Underscores in
    names become dashes, as torchrun accepts both."""
    index = _after_torchrun(arguments)
    while index < len(arguments) and arguments[index].startswith("-") and arguments[index] != "--":
        name, equals, value = arguments[index].partition("=")
        plain = name.lstrip("-").replace("_", "-")
        separate = not equals and plain not in _FLAGS and index + 1 < len(arguments)
        yield index, plain, arguments[index + 1] if separate else value
        index += 2 if separate else 1


def _after_torchrun(arguments: Sequence[str]) -> int:
    """Return the index of the first argument of torchrun; the number of arguments if the command does not start it."""
    program = arguments[0].rpartition("/")[2] if arguments else ""
    if program == "torchrun":
        return 1
    if re.fullmatch(r"python[0-9.]*", program):
        for index, argument in enumerate(arguments[1:], 1):
            if argument == "-m" and index + 1 < len(arguments) and arguments[index + 1] in _MODULES:
                return index + 2
            if argument == "-m" or not argument.startswith("-"):
                break
    return len(arguments)
