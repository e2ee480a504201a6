"""What a rank prints when it ends because another rank, or the store in the first rank, is gone or does not answer.

Such a failure is a consequence: the rank that prints it did not cause the end of the group. Patterns are searched in an
exception with the lines of its message, or in a fatal line of native code. Each row names its source. The test with
real output: tests/unit/core/test_lost_peers.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


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
    LostPeer("torch", r"Rendezvous(?:Timeout|Connection|Closed)Error", "torch/distributed/elastic/rendezvous/api.py"),
    LostPeer("torch", r"elastic\S*\.SignalException: |SignalException: Process \d+ got signal", "torchrun"),
    LostPeer("torch", r"DataLoader worker \(pid[^)]*\) is killed by signal: Terminated", "torch, the pod is deleted"),
    LostPeer(
        "torch.rpc", r"(?:RPCErr:1|eof \(this error originated at|connection reset by peer \(this error)", "tensorpipe"
    ),
    LostPeer("TensorFlow", r"\bUnavailableError\b", "tensorflow/python/framework/errors_impl.py"),
    LostPeer("TensorFlow", r"Collective ops is aborted by", "tf, base_collective_executor.cc"),
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
    LostPeer("Horovod", r"\bHorovodInternalError\b", "horovod/common/exceptions.py"),
    LostPeer("MPI", r"MPI_ERR_(?:PROC_FAILED|REVOKED)|MPIX_ERR_PROC_FAILED", "ULFM"),
    LostPeer("MPI", r"(?:ORTE|PRTE|PMIx).*(?:lost communication|lost connection)", "Open MPI, help-errmgr"),
    LostPeer("MPI", r"Communication error with rank", "MPICH, errnames.txt"),
    LostPeer(
        "Ray", r"\b(?:ActorDiedError|ActorUnavailableError|WorkerCrashedError|NodeDiedError)\b", "ray/exceptions.py"
    ),
    LostPeer("Ray", r"The actor died unexpectedly|The actor is dead because", "ray/exceptions.py"),
)

_ANY = re.compile("|".join(f"(?:{row.pattern})" for row in LOST_PEERS), re.MULTILINE)


def is_lost_peer(text: str) -> bool:
    """Return whether the text of an exception or of a fatal line says that other ranks were lost."""
    return _ANY.search(text) is not None
