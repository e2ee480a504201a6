"""PyTorch: a master and workers that meet at MASTER_ADDR:MASTER_PORT, under torchrun or as plain programs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from allranks.fields import Model, Port
from allranks.frameworks.base import (
    AttemptContext,
    Framework,
    Replica,
    RoleKind,
    Wire,
    Wiring,
)
from allranks.frameworks.command_line import Edits, Launch, Note, Option, Start, Word, edited, line_to_write, starts
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
        launchers=frozenset({"torchrun", "accelerate", "deepspeed"}),
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

    command_starts_ranks = True
    ranks_keep_numbers = True
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

    def copies(self, context: AttemptContext) -> int:
        nodes = len(context.ranked())  # a launcher in the pod starts its processes
        return max(nodes, context.elastic.max_workers) if context.elastic else nodes

    def launch(self, context: AttemptContext, role: str) -> Launch:
        command = context.commands.get(role, ())
        edits: dict[Word, str] = {}
        notes: list[Note] = []
        problem: Note | None = None
        for start in starts(command):
            if start.sure and start.kind in _CONNECT:
                more, sentence = _CONNECT[start.kind](command, start, len(context.ranked()), self.copies(context))
                edits |= more
                notes += _left_out(start, more)
                problem = problem or ((start.head[0].argument, sentence) if sentence else None)
        if edits or problem:
            return Launch(tuple(edited(command, edits)), tuple(notes), (), problem)
        return self.refuse_launchers(command, self.copies(context))

    def advice(self, context: AttemptContext) -> list[tuple[str, str]]:
        roles = {replica.role for replica in context.ranked()}
        if context.options.backend != "NCCL" or not context.gpus_determined or any(map(context.gpus.get, roles)):
            return []
        return [("spec.pytorch.backend", "NCCL needs GPUs, and the ranks of this job have none: use Gloo or Auto")]


# --- launchers --------------------------------------------------------------------------------------------------------

_STATIC = frozenset({"nnodes", "node-rank", "master-addr", "master-port"})
_DYNAMIC = frozenset({"rdzv-backend", "rdzv-endpoint", "rdzv-id"})
RENDEZVOUS_OPTIONS = _STATIC | _DYNAMIC
"""Options by which torchrun connects nodes."""


_Connection = tuple[Edits, str]
"""(edits that leave the connection of the nodes to allranks, the reason why the launcher cannot start this job)"""


def _torchrun(command: Sequence[str], start: Start, nodes: int, most: int) -> _Connection:
    """Return what to change in a torchrun. `nodes`: pods with ranks; `most`: their number at the largest size of an
    elastic job.

    An option whose value is a variable may have the value of allranks, or belong to a rendezvous of the user's own.
    """
    endpoint = start.option("rdzv-endpoint")
    names = _STATIC if endpoint and endpoint.variable else RENDEZVOUS_OPTIONS
    edits = _without(option for option in start.options if option.name in names and not option.variable)
    if alone := start.option("standalone"):
        if most == 1:
            return {}, ""
        edits |= _without([alone])
        return edits, f"{alone} trains each of the {most} pods alone: {line_to_write(command, start, edits)}"
    count = start.option("nnodes")
    if count and not count.variable:
        bounds = re.fullmatch(r"(\d+)(?::(\d+))?", count.value)
        if not (bounds and int(bounds[1]) <= nodes <= int(bounds[2] or bounds[1])):
            problem = f"{count} is not the number of pods with ranks of this job, which is {nodes}"
            return edits, f"{problem}: {line_to_write(command, start, edits)}"
    return edits, ""


_ADDRESSES = {
    "machine-rank": "$(NODE_RANK)",
    "main-process-ip": "$(MASTER_ADDR)",
    "main-process-port": "$(MASTER_PORT)",
}


def _accelerate(command: Sequence[str], start: Start, nodes: int, most: int) -> _Connection:
    """Return what to change in an `accelerate launch`. Without a number of machines it runs torchrun or the program,
    with the variables of allranks."""
    machines = start.option("num-machines")
    if machines is None or machines.variable or machines.value == "1":
        return {}, ""
    edits: dict[Word, str] = {}
    for option in start.options:
        if option.name in _ADDRESSES and not option.variable:
            edits |= _with_value(option, _ADDRESSES[option.name])
    if machines.value != str(nodes) or most != nodes:
        line = line_to_write(command, start, edits | _with_value(machines, str(nodes)))
        return edits, f"{machines} is not the number of pods with ranks of this job, which is {nodes}: {line}"
    deepspeed = start.option("use-deepspeed")
    if deepspeed and not start.option("deepspeed-multinode-launcher"):
        standard = {deepspeed.words[0]: "--use_deepspeed --deepspeed_multinode_launcher standard"}
        line = line_to_write(command, start, edits | standard)
        return edits, f"DeepSpeed's launcher would look for the other pods in a hostfile, which does not exist: {line}"
    return edits, ""


def _deepspeed(command: Sequence[str], start: Start, nodes: int, most: int) -> _Connection:
    """Return the problem of DeepSpeed's launcher in several pods: it starts the ranks of one pod, unless it gets
    addresses."""
    if most == 1 or start.option("no-ssh"):
        return {}, ""
    option = start.option("num-gpus")
    processes = f" --nproc-per-node={option.value}" if option and not option.variable else ""
    module = " -m" if start.option("module") else ""
    line = line_to_write(command, start, start.edits(f"torchrun{processes}{module}"))
    return {}, f"deepspeed starts ranks over ssh, or in each of the {most} pods a training of its own: {line}"


_CONNECT: Mapping[str, Callable[[Sequence[str], Start, int, int], _Connection]] = {
    "torchrun": _torchrun,
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
}


def _without(options: Iterable[Option]) -> dict[Word, str]:
    return {word: "" for option in options for word in option.words}


def _with_value(option: Option, value: str) -> dict[Word, str]:
    name, equals, _ = option.words[0].text.partition("=")
    return {option.words[-1]: f"{name}={value}" if equals else value}


def _left_out(start: Start, edits: Edits) -> list[Note]:
    """Return the note on options that are left out or have another value."""
    options = [option for option in start.options if any(word in edits for word in option.words)]
    if not options:
        return []
    listed = ", ".join(map(str, options))
    return [(options[0].words[0].argument, f"allranks connects the ranks, so this is not used: {listed}")]
