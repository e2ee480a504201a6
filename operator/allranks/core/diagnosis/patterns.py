"""What libraries print when other ranks are gone or do not come, when a device, a file or the network fails, and when a
checkpoint cannot be read. Each pattern names its source.

The tests with the real texts: tests/unit/core/test_lost_peers.py and test_evidence.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# --- what ended the program -------------------------------------------------------------------------------------------

_DEVICE = re.compile(
    # CUDA, cudaGetErrorString and cuGetErrorString: https://docs.nvidia.com/cuda/cuda-runtime-api (cudaError).
    r"uncorrectable (?:NVLink error|ECC error)|ECC_UNCORRECTABLE|hardware stack error|cudaErrorHardwareStackError"
    r"|CUDA-capable device(?:\(s\) is/are|s are) busy or unavailable"
    # NVSwitch without its fabric manager
    r"|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady"
    r"|(?:[Ee]rror \(?802\)? ?|CUDA error): system not yet initialized"
    r"|CUDA driver initialization failed|the GPU is lost|GPU is lost|[Ff]allen off the bus"
    r"|Unable to determine the device handle for (?:GPU|gpu)|NVML: Unknown Error"
    r"|Driver/library version mismatch|\bXid\b.{0,40}\b(?:48|62|63|64|74|79|94|95|119|120|140)\b"
    # ROCm, hipGetErrorString: https://rocm.docs.amd.com (hipError_t).
    r"|hipErrorECCNotCorrectable|HSA_STATUS_ERROR_OUT_OF_RESOURCES|GPU reset"
    # Habana, Neuron, TPU.
    r"|Device acquire failed|synStatus\b.*(?:synFail|synDeviceReset)|NRT_(?:EXEC_HW_ERR\w*|UNINITIALIZED)"
    r"|TPU initialization failed|The TPU is already in use"
    # RDMA and disks of the node.
    r"|IBV_WC_\w+_ERR|ibv_\w+ failed|\[Errno 5\] Input/output error"
)
_NO_DEVICE = re.compile(
    r"no CUDA-capable device is detected|cudaErrorNoDevice|Failed to initialize NVML|nvmlInit|hipErrorNoDevice"
    # torch/cuda/__init__.py and c10/cuda; xla, gpu_helpers.cc; lightning, accelerator_connector.py
    r"|No (?:CUDA|HIP) GPUs are available|Found no NVIDIA driver on your system"
    r"|No visible GPU devices|No supported gpu backend found"
)
_DRIVER = re.compile(
    # cudaGetErrorString, and torch/cuda/__init__.py
    r"system has unsupported display driver / cuda driver combination"
    r"|forward compatibility was attempted on non supported HW"
    r"|CUDA driver version is insufficient for CUDA runtime version|The NVIDIA driver on your system is too old"
)
_NETWORK = re.compile(
    # gai_strerror of glibc, musl and macOS, and what curl, urllib3, Java and gRPC make of it
    r"Temporary failure in name resolution|Name or service not \w+|Name does not resolve|nodename nor servname"
    r"|No address associated with hostname|NameResolutionError|Could not resolve host|UnknownHostException"
    r"|DNS resolution failed"
    # strerror
    r"|No route to host|Network is unreachable|Network is down|Host is down"
    # The interface that a variable such as GLOO_SOCKET_IFNAME names: gloo/transport/tcp/device.cc; NCCL, bootstrap.cc
    r"|Unable to find (?:address|interface) for: |[Nn]o socket interface found"
)
_NOT_WRITTEN = re.compile(
    r"No space left on device|Disk quota exceeded|Read-only file system|\[Errno (?:27|28|30|122)\]"
    # torch.save: caffe2/serialize/inline_container.cc
    r"|PytorchStreamWriter failed writing file|inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+"
)


def kind_of_error(text: str) -> Literal["DeviceError", "WriteFailed", "NetworkError"] | None:
    """Return the evidence in the line that ended a program; None if it names no device, file or network."""
    if _DEVICE.search(text) or is_without_device(text):
        return "DeviceError"
    if _NOT_WRITTEN.search(text):
        return "WriteFailed"
    return "NetworkError" if _NETWORK.search(text) else None


def is_without_device(text: str) -> bool:
    """Return whether the text says that there is no GPU. In a pod that requests none, that is no fault of its node."""
    return _NO_DEVICE.search(text) is not None


def is_driver_mismatch(text: str) -> bool:
    """Return whether the text says that the driver of the node and the CUDA libraries of the image do not fit."""
    return _DRIVER.search(text) is not None


_UNREADABLE = re.compile(
    # pickle, numpy, zip files, and gzip, bz2 and lzma
    r"EOFError: (?:Ran out of input|Compressed file ended before)"
    r"|UnpicklingError|pickle data was truncated|BadZipFile|BadGzipFile|zlib\.error"
    r"|Failed to interpret file .* as a pickle|cannot reshape array of size|No data left in file"
    # torch.load: caffe2/serialize/inline_container.cc and torch/serialization.py
    r"|PytorchStreamReader failed|failed finding central directory|unexpected EOF, expected|invalid load key"
    r"|The file might be corrupted|Couldn't read .*\.metadata"
    # safetensors, HDF5 (Keras), TensorFlow, orbax and tensorstore
    r"|SafetensorError|MetadataIncompleteBuffer|HeaderTooLarge|InvalidHeader"
    r"|Unable to (?:synchronously )?open (?:file|object) .*(?:truncated|signature)|truncated file: eof"
    r"|DataLossError|Checksum does not match|not an sstable|Unable to open table file"
    r"|Error reading .*zarr|DATA_LOSS|checkpoint .*(?:corrupt|incomplete)",
    re.IGNORECASE,
)


def is_unreadable_data(text: str) -> bool:
    """Return whether the text says that a file is torn or damaged, as a checkpoint whose writer was killed."""
    return _UNREADABLE.search(text) is not None


# --- other ranks that were gone ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LostPeer:
    """One way in which a library says that it lost other ranks."""

    library: str
    pattern: str
    source: str
    """Where the text comes from."""


LOST_PEERS: tuple[LostPeer, ...] = (
    LostPeer("gloo", r"Connection closed by peer \[", "gloo/transport/tcp/pair.cc"),
    LostPeer("gloo", r"(?:Read|Write) error \[.*\]\S*: (?:Connection reset by peer|Broken pipe)", "gloo, tcp/pair.cc"),
    LostPeer("gloo", r"Application timeout caused pair closure", "gloo/transport/tcp/unbound_buffer.cc"),
    LostPeer("gloo", r"Timed out waiting \d+ms for (?:recv|send) operation", "gloo/transport/tcp/unbound_buffer.cc"),
    LostPeer("gloo", r"Gloo connectFullMesh failed", "torch, ProcessGroupGloo.cpp: a peer left at the rendezvous"),
    LostPeer("gloo", r"\[.*gloo/\S+\.(?:cc|h):\d+\] .*(?:[Cc]onnection|timeout)", "gloo, gloo/common/error.h"),
    LostPeer("NCCL", r"ncclRemoteError", "torch, NCCLUtils.hpp"),
    LostPeer("NCCL", r"remote process exited or there was a network error", "NCCL, ncclGetErrorString"),
    LostPeer("NCCL", r"NCCL communicator was aborted on rank", "torch, NCCLUtils.hpp"),
    LostPeer(
        "NCCL",
        r"socket\w+: .*(?:Connection (?:refused|timed out|reset)|Broken pipe)|Connection closed by remote peer",
        "NCCL, socket.cc",
    ),
    LostPeer("NCCL", r"Watchdog caught collective operation timeout", "torch, ProcessGroupNCCL.cpp"),
    LostPeer("NCCL", r"signal of (?:exception|timeout) from (?:another|peer) rank", "torch, ProcessGroupNCCL.cpp"),
    LostPeer(
        "torch", r"DistNetworkError: (?:failed to recv|Connection was likely closed|The client socket)", "TCPStore"
    ),
    LostPeer("torch", r"failed to recv, got 0 bytes", "torch, c10d/Utils.hpp"),
    LostPeer("torch", r"recvValue failed on|sendBytes failed on", "torch, TCPStore.cpp"),
    LostPeer("torch", r"DistStoreError: (?:Timed out after|wait timeout after)", "torch, TCPStore.cpp"),
    LostPeer("torch", r"DistStoreError: Socket Timeout|Socket Timeout\s*$", "torch, TCPStore.cpp"),
    LostPeer("torch", r"\d+/\d+ clients joined", "torch, TCPStore.cpp"),
    LostPeer("torch", r"wait timeout after \d+ms, keys:", "torch, TCPStore.cpp"),
    LostPeer("torch", r"Timed out initializing process group in store based barrier", "torch, distributed_c10d.py"),
    LostPeer("torch", r"Ranks? \d[\d, ]* failed to pass monitoredBarrier", "torch, ProcessGroupGloo.cpp: in rank 0"),
    LostPeer("torch", r"successfully reached monitoredBarrier, but received errors", "torch, ProcessGroupGloo.cpp"),
    LostPeer("torch", r"timed out in monitoredBarrier after", "torch, ProcessGroupGloo.cpp"),
    LostPeer("torch", r"is setting up NCCL communicator and retr\w+ ncclUniqueId from", "torch, ProcessGroupNCCL.cpp"),
    LostPeer("torch", r"Rendezvous(?:Timeout|Connection|Closed)Error", "torch/distributed/elastic/rendezvous/api.py"),
    LostPeer("torch", r"elastic\S*\.SignalException: |SignalException: Process \d+ got signal", "torchrun"),
    LostPeer("torch", r"DataLoader worker \(pid[^)]*\) is killed by signal: Terminated", "torch, the pod is deleted"),
    LostPeer(
        "torch.rpc", r"(?:RPCErr:1|eof \(this error originated at|connection reset by peer \(this error)", "tensorpipe"
    ),
    LostPeer("TensorFlow", r"\bUnavailableError\b", "tensorflow/python/framework/errors_impl.py"),
    LostPeer("TensorFlow", r"Possibly,? this worker .*just restarted", "tf, graph_mgr.cc, worker_session.cc"),
    # If members ask for different things, the error names the difference: tf, collective_param_resolver_distributed.cc
    LostPeer(
        "TensorFlow",
        r"Collective ops is aborted by: (?!(?:\[_Derived_\])?(?:Shape|Device) mismatch|Inconsistent|Group)",
        "tf, base_collective_executor.cc",
    ),
    LostPeer("gRPC", r"Socket closed|failed to connect to all addresses", "grpc, chttp2_transport.cc"),
    # Python's own ConnectionResetError, of a download for example, has "[Errno 104]" before it.
    LostPeer("sockets", r"(?<!\] )Connection reset by peer", "strerror, as native code prints it"),
    LostPeer(
        "TensorFlow", r"/job:\w+/(?:replica:\d+/)?task:\d+ .*(?:is unreachable|has (?:already )?(?:died|exited))", "XLA"
    ),
    LostPeer("XLA", r"tasks are unhealthy \(stopped sending heartbeats\)", "xla, coordination_service.cc"),
    LostPeer("XLA", r"failed heartbeat|heartbeat timeout|missed heartbeat", "xla, coordination_service.cc"),
    LostPeer("XLA", r"Barrier (?:timed out|failed)", "xla, coordination_service.cc"),
    LostPeer("XLA", r"(?:JAX|JAX distributed) service detected fatal errors", "jax, xla/pjrt/distributed/client.h"),
    LostPeer("XLA", r"(?:UNAVAILABLE|CANCELLED|ABORTED): .*(?:task|peer|coordination|agent|connect)", "xla, status"),
    LostPeer("XLA", r"DEADLINE_EXCEEDED: .*(?:task|barrier|Barrier|coordination|connect|RPC)", "xla, status codes"),
    LostPeer("Horovod", r"Horovod has been shut down", "horovod, common.h: SHUT_DOWN_ERROR"),
    # If ranks ask for different things, the error names it: horovod/common/controller.cc, ConstructResponse.
    LostPeer("Horovod", r"\bHorovodInternalError\b(?!: Mismatched )", "horovod/common/exceptions.py"),
    LostPeer("MPI", r"MPI_ERR_(?:PROC_FAILED|REVOKED)|MPIX_ERR_PROC_FAILED", "ULFM"),
    LostPeer("MPI", r"(?:ORTE|PRTE|PMIx).*(?:lost communication|lost connection)", "Open MPI, help-errmgr"),
    LostPeer("MPI", r"Communication error with rank", "MPICH, errnames.txt"),
    LostPeer("Ray", r"\b(?:ActorUnavailableError|WorkerCrashedError|NodeDiedError)\b", "ray/exceptions.py"),
    LostPeer("Ray", r"because its (?:worker process|node|owner) has died", "ray/exceptions.py"),
)

_ANY = re.compile("|".join(f"(?:{row.pattern})" for row in LOST_PEERS), re.MULTILINE)


def is_lost_peer(text: str) -> bool:
    """Return whether the text says that a program ended because another rank, or the store in the first rank, was gone
    or did not answer. Such a failure is a consequence.

    `text`: an exception with the lines of its message, or a fatal line of native code.
    """
    return _ANY.search(text) is not None and not is_of_client(text)


_OF_CLIENTS = re.compile(
    r"(?:requests|urllib3|httpx|httpcore|aiohttp|huggingface_hub|botocore|s3transfer|google(?!\.protobuf)|azure|fsspec"
    r"|gcsfs|s3fs|mlflow|wandb|comet_ml|neptune|clearml|pymongo|redis|kubernetes)\."
)


def is_of_client(text: str) -> bool:
    """Return whether an exception is one of a client of a service: a store of data or models, a tracker, a database."""
    return _OF_CLIENTS.match(text) is not None


# --- other ranks that did not come ------------------------------------------------------------------------------------

_JOINED = re.compile(
    r"\b(?P<joined>\d+)/(?P<size>\d+) clients joined"  # torch, TCPStore.cpp
    # torch, distributed_c10d.py: _store_based_barrier
    r"|store based barrier on .*\(world_size=(?P<world>\d+), (?:worker_count|num_workers_joined)=(?P<counted>\d+)"
    # xla, coordination_service.cc: the barrier at which tasks register
    r"|Barrier timed out\. (?:Id: \[Init\]|Barrier_id: PjRT_Client_Connect)[^#]*"
    r"# of tasks that reached the barrier: (?P<reached>\d+)/(?P<tasks>\d+)"
)


def joined(text: str) -> tuple[int, int] | None:
    """Return (processes that joined the group, processes that it waits for), as a rendezvous prints them."""
    matches = [*_JOINED.finditer(text)]
    if not matches:
        return None
    last = matches[-1]
    present, size = last["joined"] or last["counted"] or last["reached"], last["size"] or last["world"] or last["tasks"]
    return int(present), int(size)


# xla, coordination_service.cc
_REGISTERING = re.compile(r"DEADLINE_EXCEEDED: Deadline Exceeded\s+RPC: /\S*CoordinationService/RegisterTask")


def was_joining(text: str) -> bool:
    """Return whether the process waited for others without success while it joined the group."""
    return joined(text) is not None or _REGISTERING.search(text) is not None


_TIMED_OUT = re.compile(
    r"Timed out waiting \d+ms for (?:recv|send) operation"  # gloo/transport/tcp/unbound_buffer.cc
    r"|Watchdog caught collective operation timeout"  # torch, ProcessGroupNCCL.cpp
)


def timed_out(text: str) -> bool:
    """Return whether the process waited in a collective until its own timeout, and no connection was lost before."""
    return _TIMED_OUT.search(text) is not None


_ABSENT = re.compile(
    # torch, ProcessGroupGloo.cpp: monitoredBarrier
    r"Ranks? (?P<barrier>\d+(?:, \d+)*) failed to pass monitoredBarrier"
    # xla, coordination_service.cc: names of tasks, or their numbers, one a line
    r"|[Tt]imed out task names:\s*(?P<tasks>(?:\n(?:/job:\w+/replica:\d+/task:)?\d+[ \t]*(?=\n|$))+)"
    # torch, ProcessGroupNCCL.cpp: the key of the group of all ranks; and TraceUtils.h
    r"|retr\w+ ncclUniqueId from \[(?P<first>\d+)\] via .* got error: .*[Tt]imeout.*default_pg/0/(?:/cuda//)?0\b"
    r"|\[(?P<behind>\d+(?:, ?\d+)*)\] finished collective #\d+, but didn't join collective"
    r"|\[(?P<never>\d+(?:, ?\d+)*)\] are the lagging ranks that caused this timeout"
    # horovod, stall_inspector.cc
    r"|Missing ranks:(?P<stalled>(?:\n\d+!?: \[.*)+)|\[missing ranks:(?P<missing> ?\d+(?:, ?\d+)*)"
)
_NUMBER = {
    "tasks": re.compile(r"\d+[ \t]*$", re.MULTILINE),
    "stalled": re.compile(r"^\d+(?=!?: \[)", re.MULTILINE),
}
_ANY_NUMBER = re.compile(r"\d+")
_SUBGROUP = re.compile(r"\[PG (?:ID )?[1-9]")
"""torch, ProcessGroupNCCL.cpp: a group that numbers its ranks itself."""


def absent(text: str) -> list[int]:
    """Return the ranks for which the rank that printed the text waited without success, as it names them."""
    matches = [*_ABSENT.finditer(text)]
    if not matches:
        return []
    group = matches[-1].lastgroup or ""
    if group in ("behind", "never") and _SUBGROUP.search(text):
        return []
    return sorted({int(number) for number in _NUMBER.get(group, _ANY_NUMBER).findall(matches[-1][group])})
