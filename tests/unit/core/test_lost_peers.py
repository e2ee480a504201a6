"""What libraries print in a rank that lost others: the text of each row as it appears in an output."""

from __future__ import annotations

import re

from allranks.core.diagnosis.patterns import LOST_PEERS, is_lost_peer
from support.builders import table

# Library, text. Recorded from real ranks where a comment says so, else from the source that the row of the table names.
# ruff: noqa: E501 (lines of real outputs)
TEXTS = [
    # recorded: torch 2.15, rank 1 of 2 raised
    (
        "gloo",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:6864. This is typically caused by a remote worker crashing.",
    ),
    (
        "gloo",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error [127.0.0.1]:40103: Connection reset by peer. This is typically caused by a remote worker hanging",
    ),
    (
        "gloo",
        "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 1800000ms for recv operation to complete",
    ),
    ("gloo", "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:112] Application timeout caused pair closure"),
    ("gloo", "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error"),
    ("gloo", "RuntimeError: [/tmp/gloo/gloo/transport/tcp/buffer.cc:72] connection timeout"),
    (
        "NCCL",
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/NCCLUtils.cpp:268, remote process exited or there was a network error, NCCL version 2.21.5",
    ),
    ("NCCL", "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."),
    ("NCCL", "socketStartConnect: Connect to 10.0.0.3<40123> failed : Connection refused"),
    ("NCCL", "Net : Connection closed by remote peer 10.0.0.3<36803>"),
    ("NCCL", "RuntimeError: NCCL communicator was aborted on rank 3. Original reason for failure was: ..."),
    ("NCCL", "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE)"),
    ("NCCL", "Received a dump signal of timeout from peer rank 1"),
    (
        "torch",
        "torch.distributed.DistNetworkError: Connection was likely closed. Did the remote server shutdown or crash?",
    ),
    ("torch", "[c10d] recvValue failed on SocketImpl(fd=4): Connection reset by peer"),
    ("torch", "RuntimeError: failed to recv, got 0 bytes"),
    # recorded: rank 0 of 2 at init_process_group
    ("torch", "torch.distributed.DistStoreError: Timed out after 9 seconds waiting for clients. 1/2 clients joined."),
    ("torch", "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0"),
    ("torch", "torch.distributed.DistStoreError: Socket Timeout"),
    ("torch", "3/4 clients joined"),
    ("torch", "RuntimeError: wait timeout after 300000ms, keys: store_based_barrier_key"),
    ("torch", "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"),
    (
        "torch",
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 4330, for key: store_based_barrier_key:522 (world_size=2048, worker_count=1792, timeout=0:30:00)",
    ),
    # recorded: torch 2.15, rank 2 of 3 did not come to a monitored barrier
    ("torch", "RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 8000 ms"),
    ("torch", "RuntimeError: [Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 2000000 ms"),
    (
        "torch",
        "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.",
    ),
    ("torch", "RuntimeError: Rank 1 timed out in monitoredBarrier after 8000 ms."),
    (
        "torch",
        "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Timeout waiting for key: default_pg/0/0",
    ),
    # recorded: torchrun got SIGTERM
    ("torch", "torch.distributed.elastic.multiprocessing.api.SignalException: Process 618 got signal: 15"),
    ("torch", "RuntimeError: DataLoader worker (pid 77) is killed by signal: Terminated."),
    ("torch.rpc", "RuntimeError: eof (this error originated at tensorpipe/transport/uv/connection_impl.cc:132)"),
    ("TensorFlow", "tensorflow.python.framework.errors_impl.UnavailableError: Graph execution error"),
    ("TensorFlow", "Collective ops is aborted by: Connection reset"),
    (
        "TensorFlow",
        "tensorflow.python.framework.errors_impl.AbortedError: Graph handle is not found: 01. Possibly, this worker just restarted.",
    ),
    ("TensorFlow", "/job:worker/replica:0/task:1 is unreachable"),
    ("gRPC", "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:2222"),
    ("sockets", "recv failed: Connection reset by peer"),
    ("XLA", "The following tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/replica:0/task:1"),
    ("XLA", "task 1 failed heartbeat"),
    ("XLA", "DEADLINE_EXCEEDED: Barrier timed out. Id: [init]. # of tasks that reached the barrier: 1/2."),
    ("XLA", "Terminating process because the JAX distributed service detected fatal errors."),
    ("XLA", "jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: connection to task 1 was lost"),
    ("XLA", "DEADLINE_EXCEEDED: Deadline Exceeded while waiting for RPC"),
    (
        "Horovod",
        "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to enqueue a tensor after one of the ranks finished execution.",
    ),
    ("Horovod", "horovod.common.exceptions.HorovodInternalError: HorovodAllreduce.noname.3"),
    ("MPI", "mpi4py.MPI.Exception: MPIX_ERR_PROC_FAILED: Process Failure"),
    ("MPI", "PRTE has lost communication with a remote daemon."),
    ("MPI", "MPIDI_CH3I_Progress: Communication error with rank 1"),
    ("Ray", "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task."),
    ("Ray", "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"),
]


@table(*((f"{library}: {text[:50]}", library, text) for library, text in TEXTS))
def test_a_lost_peer_is_recognised(case):
    library, text = case
    assert is_lost_peer(text)
    assert any(row.library == library and re.search(row.pattern, text) for row in LOST_PEERS)


def test_each_row_of_the_table_has_a_text():
    untested = [row for row in LOST_PEERS if not any(re.search(row.pattern, text) for _, text in TEXTS)]
    assert untested == []


@table(
    ("an error of a program", "ValueError: sample 4711 is broken"),
    (
        "a download",
        "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
    ),
    (
        "a bucket",
        "google.api_core.exceptions.ServiceUnavailable: 503 failed to connect to all addresses; last error: ...",
    ),
    (
        "ranks of TensorFlow that ask for different things",
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: Collective ops is aborted by: Shape mismatch in the collective instance 106. Op at device /job:worker/replica:0/task:1/device:CPU:0 expected shape [49]",
    ),
    (
        "ranks of Horovod that ask for different things",
        "horovod.common.exceptions.HorovodInternalError: Mismatched allreduce tensor shapes: One rank sent a tensor of shape [3]",
    ),
    ("an actor that the program ended", "The actor is dead because it was killed by `ray.kill`."),
    ("a missing file", "FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'"),
    ("memory of a GPU", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."),
    ("an assertion of a kernel", "RuntimeError: CUDA error: device-side assert triggered"),
)
def test_other_errors_are_none(case):
    [text] = case
    assert not is_lost_peer(text)
