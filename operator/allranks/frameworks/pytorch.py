"""PyTorch: a master and workers that meet at MASTER_ADDR:MASTER_PORT, under torchrun or as plain programs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from allranks.exit_warnings import without_exit_warnings
from allranks.fields import Model, Port
from allranks.frameworks.base import (
    AttemptContext,
    Framework,
    Note,
    Package,
    Replica,
    RoleKind,
    RootCause,
    Wire,
    Wiring,
)


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
    package = Package(
        "torch",
        details="', CUDA ' + m.version.cuda if m.version.cuda else ', CPU only'",
        gpu="bool(m.cuda.is_available())",
    )
    options = PyTorchOptions
    roles: ClassVar[Mapping[str, RoleKind]] = {
        "master": RoleKind("The pod of rank 0, at most one. Without it, worker 0 has rank 0.", max_replicas=1),
        "worker": RoleKind("The ranks. Worker 0 is rank 0, unless the job has a master or chief."),
    }
    # torchrun's own elasticity restarts all processes as well, and first waits for half a minute.
    elastic = "restarts"
    launcher = "torchrun"
    script_command = ("torchrun",)
    script_module = "torch.distributed.run"
    script_imports = frozenset(
        {"torch", "lightning", "pytorch_lightning", "accelerate", "deepspeed", "transformers", "trl"}
    )
    joins_group = frozenset(
        {"init_process_group", "init_device_mesh", "Accelerator", "Trainer", "SFTTrainer", "Fabric"}
        | {"init_distributed", "initialize"}
    )
    peer_variables = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK"})
    join_call = "torch.distributed.init_process_group()"
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

    def root_cause(self, message: str) -> RootCause | None:
        return read_torchrun_report(message)

    def begins_shutdown_noise(self, line: str) -> bool:
        return _SHUTDOWN.match(line) is not None

    def shutdown_noise(self, lines: Sequence[str]) -> frozenset[int]:
        """torchrun waits at its end for the other nodes at a store in the first node, which may be gone already
        (https://github.com/pytorch/pytorch/issues/69520)."""
        found: set[int] = set()
        place, inside = 0, False
        while place < len(lines):
            end = place + 1
            if _SHUTDOWN.match(lines[place]):
                inside = True
            elif inside and lines[place] == _TRACEBACK:
                # One without an end may still turn out to be of the shutdown.
                end = _end_of_traceback(lines, place)
                inside = (
                    end == place + 1
                    or lines[end - 1].startswith(" ")
                    or _SHUTDOWN_ERROR.match(lines[end - 1]) is not None
                )
            else:
                inside = inside and _SHUTDOWN_DETAIL.match(lines[place]) is not None
            if inside:
                found.update(range(place, end))
            place = end
        return frozenset(found)


_FLAGS = frozenset({"standalone", "m", "module", "no-python", "run-path", "h", "help"})
"""Options of torchrun without a value."""
RENDEZVOUS_OPTIONS = frozenset(
    {"nnodes", "node-rank", "master-addr", "master-port", "rdzv-backend", "rdzv-endpoint", "rdzv-id"}
)
_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch"})


def torchrun_notes(arguments: Sequence[str]) -> list[Note]:
    """Options by which a user connects nodes by hand. A value that refers to a variable may be that of allranks."""
    notes = []
    for index, name, value in torchrun_options(arguments):
        written = arguments[index].partition("=")[0]
        if name == "standalone":
            notes.append((index, f"each pod would train alone; allranks connects the ranks: remove {written}"))
        elif name in RENDEZVOUS_OPTIONS and "$" not in value:
            notes.append((index, f"allranks sets it for each rank, and this value replaces it: remove {written}"))
    return notes


def torchrun_options(arguments: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """(index, name without dashes, value) of torchrun's own options, which end at the script. Underscores in names
    become dashes, as torchrun accepts both."""
    index = _after_torchrun(arguments)
    while index < len(arguments) and arguments[index].startswith("-") and arguments[index] != "--":
        name, equals, value = arguments[index].partition("=")
        plain = name.lstrip("-").replace("_", "-")
        separate = not equals and plain not in _FLAGS and index + 1 < len(arguments)
        yield index, plain, arguments[index + 1] if separate else value
        index += 2 if separate else 1


def _after_torchrun(arguments: Sequence[str]) -> int:
    """Index of the first argument of torchrun; the number of arguments if the command does not start it."""
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


_REPORT = re.compile(
    r"Root Cause \(first observed failure\):\s*\n\[\d+\]:\s*\n"
    r"\s*time\s*:\s*(?P<time>\S+)\s*\n"
    r"\s*host\s*:\s*\S*\s*\n"
    r"\s*rank\s*:\s*(?P<rank>\d+) \(local_rank: \d+\)\s*\n"
    r"\s*exitcode\s*:\s*(?P<exitcode>-?\d+)(?: \(pid: (?P<pid>\d+)\))?[^\n]*\n"
    r"\s*error_file\s*:[^\n]*\n"
    r"\s*traceback\s*:\s*(?P<traceback>.*?)\n=+\s*$",
    re.DOTALL | re.MULTILINE,
)
_FAILED_LINE = re.compile(
    # torchrun's log: level, month and day, time, its own process; then the process that failed first.
    r"^E(?P<time>\d{4} \d\d:\d\d:\d\d)\.(?P<microsecond>\d{6}) \d+ torch/distributed/\S+\] "
    r"failed \(exitcode: -?\d+\) local_rank: \d+ \(pid: (?P<pid>\d+)\) of ",
    re.MULTILINE,
)
_FRAME = re.compile(r"^=+\n.*? FAILED\s*\n-+\nFailures:", re.MULTILINE)
_LOG_LINE = re.compile(
    r"torch/distributed/\S+:\d+\]|Sending process \d+ closing signal|failed \(exitcode: |^closing signal SIG\w+$"
)
_SHUTDOWN = re.compile(
    # The C++ log. At the end of a program it complains about the store or the process group of ranks that have ended.
    r"(?:\[rank\d+\]:)?\[[WE]\d{4} \S+ (?:TCPStore|socket|ProcessGroup\w+)\.[ch]pp:\d+\] .*"
    r"(?:(?:recv|send)\w* failed on |Failed to check the \"should dump\" flag|destroy_process_group\(\) was not called)"
    # torchrun's own log while it ends.
    r"|[WE]\d{4} \S+ \d+ torch/distributed/elastic/(?:agent/server|multiprocessing)/\w+\.py:\d+\] "
)
_SHUTDOWN_DETAIL = re.compile(r"Exception raised from |frame #\d+: |<omitting python frames>$|\s*$")
_SHUTDOWN_ERROR = re.compile(
    r"torch\.distributed\.(?:Dist(?:Network|Store|Backend)Error|elastic\.multiprocessing\.api\.SignalException)\b"
)
_TRACEBACK = "Traceback (most recent call last):"
_TRUNCATED_BYTES = 2045
"""A termination message of this length or more was truncated: it has at most 2,048 bytes, less part of a character."""
_CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"


def read_torchrun_report(message: str) -> RootCause | None:
    """Parses the failure report that torchrun prints last; None if there is none.

    torchrun turns every worker's exit code into 1. Its report has the rank that failed first, and its exit code, which
    is negative for a signal. The worker's own output is before and between torchrun's log lines and traceback.
    """
    found = _REPORT.search(message)
    if not found:
        return None
    rank, code = int(found["rank"]), int(found["exitcode"])
    ended = f"rank {rank} was ended by signal {-code}" if code < 0 else f"rank {rank} exited with code {code}"
    reported = textwrap.dedent("  " + found["traceback"]).strip()
    if not reported.startswith("Traceback"):
        reported = ""
    time = _local_time(found["time"])
    return RootCause(
        rank=rank,
        exit_code=128 - code if code < 0 else code,
        signal=-code if code < 0 else None,
        message=_own_lines(message) or reported or ended,
        time=time,
        microsecond=_microsecond(message[: found.start()], found["pid"], time) if time else None,
    )


def _microsecond(log: str, pid: str | None, time: datetime) -> int | None:
    """When torchrun saw within that second that the process `pid` had ended; None if `log` has no such line. A report
    may have an earlier second: that of an exception that the process recorded."""
    second = time.strftime("%m%d %H:%M:%S")
    lines = [line for line in _FAILED_LINE.finditer(log) if (line["pid"], line["time"]) == (pid, second)]
    return int(lines[-1]["microsecond"]) if lines else None


def _own_lines(message: str) -> str:
    """`message` without torchrun's traceback, report and log lines. Its beginning may be truncated anywhere."""
    frame = _FRAME.search(message)
    if not frame:
        return ""
    lines = message[: frame.start()].splitlines()
    if len(message.encode()) >= _TRUNCATED_BYTES:
        lines = lines[1:]  # truncated
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].startswith(_CHILD_FAILED):
            first = number
            while first > 0 and (lines[first - 1].startswith((" ", "\t")) or not lines[first - 1]):
                first -= 1
            if first > 0 and lines[first - 1].startswith("Traceback (most recent call last)"):
                first -= 1
            elif first == 1:
                first = 0  # truncated inside torchrun's traceback
            del lines[first:]
            break
    own = "\n".join(line for line in lines if not _LOG_LINE.search(line))
    return without_exit_warnings(own).strip()


def _end_of_traceback(lines: Sequence[str], begin: int) -> int:
    """The index after the line with the exception, or the number of lines if there is none."""
    for place in range(begin + 1, len(lines)):
        if not lines[place].startswith(" "):
            return place + 1
    return len(lines)


def _local_time(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y-%m-%d_%H:%M:%S")
    except ValueError:
        return None
