"""What allranks says about jobs that fail or hang, with real ranks: one row for each kind of report.

A row: what happened, the framework, the program, fields of the job, and what is right: fields of `lastFailure`, and
words of its message.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.builders import manifest, table

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]

BROKEN = "ValueError: sample 4711 is broken"
RAISES = """
import atexit, sys, time
import torch, torch.distributed as dist
from allranks.report import report

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    atexit.register(time.sleep, {seconds})  # a tracker that uploads
try:
    for step in range(1, 100):
        if step == 30 and dist.get_rank() == 1:
            raise ValueError("sample 4711 is broken")
        dist.all_reduce(torch.ones(2))
        report(step=step, total_steps=99)
finally:
    {finally_}
"""
SLOW_EXIT = RAISES.format(seconds=8, finally_="dist.destroy_process_group()")
TIDY_EXIT = RAISES.format(seconds=0, finally_="dist.destroy_process_group()")
WAITS_IN_FINALLY = RAISES.format(seconds=0, finally_="dist.barrier()")
HOROVOD = """
import atexit, time
import torch, horovod.torch as hvd

hvd.init()
if hvd.rank() == 1:
    atexit.register(time.sleep, 8)
try:
    for step in range(1, 100):
        if step == 30 and hvd.rank() == 1:
            raise ValueError("sample 4711 is broken")
        hvd.allreduce(torch.ones(2), name="x")
finally:
    hvd.shutdown()
"""
JAX = """
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize()
for step in range(1, 20):
    if step == 5 and jax.process_index() == 1:
        raise ValueError("sample 4711 is broken")
    multihost_utils.process_allgather(jnp.ones(2))
"""
OTHER_COLLECTIVE = """
import torch, torch.distributed as dist
from allranks.report import report

dist.init_process_group("gloo")
value = torch.ones(4)
for step in range(1, 30):
    if step == 15 and dist.get_rank() == 1:
        dist.all_gather([torch.zeros(4) for _ in range(3)], value)
    dist.all_reduce(value)
    report(step=step, total_steps=30)
"""
ENDS_EARLY = """
import torch, torch.distributed as dist
from allranks.report import report

dist.init_process_group("gloo")
for step in range(1, 11 if dist.get_rank() == 1 else 21):
    dist.all_reduce(torch.ones(4))
    report(step=step, total_steps=20)
"""
JOINS_LATE = """
import os, time
from datetime import timedelta
import torch.distributed as dist

if os.environ["RANK"] == "1":
    time.sleep(60)
dist.init_process_group("gloo", timeout=timedelta(seconds=5))
"""
TORN = """
import glob, os, pickle, signal, time
from allranks.report import report

folder, rank = os.environ["ALLRANKS_CHECKPOINT_DIR"], int(os.environ["RANK"])
files = sorted(glob.glob(f"{folder}/step-*.pkl"))
step = pickle.load(open(files[-1], "rb")) if files else 0
print("resumed at", step)
while step < 12:
    time.sleep(0.3)
    step += 1
    report(step=step, total_steps=12)
    if rank == 0 and step % 4 == 0:
        with open(f"{folder}/step-{step:04}.pkl", "wb") as file:
            if step == 8 and os.environ["ALLRANKS_ATTEMPT"] == "0":
                file.write(pickle.dumps(step)[:2])
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            pickle.dump(step, file)
        report(checkpoint=True)
"""
TORN_DATA = """
import os, time, zipfile
from pathlib import Path
from allranks.report import report

folder, rank = Path(os.environ["ALLRANKS_CHECKPOINT_DIR"]), os.environ["RANK"]
first = max((int(path.stem[5:]) for path in folder.glob("step-*.pt")), default=0)
data = Path(f"data-{rank}.zip")
with zipfile.ZipFile(data, "w") as archive:
    archive.writestr("sample", bytes(10_000))
if os.environ["ALLRANKS_ATTEMPT"] != "0" and rank == "1":
    os.truncate(data, 5_000)  # a download that was cut off
zipfile.ZipFile(data).read("sample")
for step in range(first + 1, 100):
    time.sleep(0.1)
    report(step=step, total_steps=99)
    if rank == "0" and step % 10 == 0:
        (folder / f"step-{step}.pt").write_bytes(bytes(100))
        report(checkpoint=True)
    if rank == "1" and step == 40:
        os._exit(3)
"""
SAME_STEP = """
import os, time
from allranks.report import report

for step in range(1, 100):
    time.sleep(0.02)
    if step == 35 and os.environ["RANK"] == "0":
        raise ValueError("sample 4711 is broken")
    report(step=step, total_steps=100)
"""
FOOTER = """
import atexit, os, time
from allranks.report import report

atexit.register(lambda: [os.write(1, b"tracker: metric %d %s\\n" % (n, b"." * 80)) for n in range(40)])
report(step=1, total_steps=10)
time.sleep(0.5)
if os.environ["RANK"] == "1":
    raise ValueError("sample 4711 is broken")
time.sleep(30)
"""
LATE_AT_A_BARRIER = """
import time
from datetime import timedelta
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    time.sleep(120)
dist.monitored_barrier(timeout=timedelta(seconds=8))
"""
LATE_AT_A_BARRIER_OF_JAX = """
import time
import jax
from jax._src import distributed

jax.distributed.initialize()
if jax.process_index() == 1:
    time.sleep(120)
distributed.global_state.client.wait_at_barrier("load", timeout_in_ms=8000)
"""
ANOTHER_CHECKPOINT = """
import os
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp

dist.init_process_group("gloo")
folder = os.environ["ALLRANKS_CHECKPOINT_DIR"]
dcp.save({"w": torch.ones(4)}, checkpoint_id=folder)
names = ("w", "v") if dist.get_rank() == 1 else ("w",)
dcp.load({name: torch.ones(4) for name in names}, checkpoint_id=folder)
"""
FULL_DISK = """
import os
import torch
from allranks.report import report

for step in range(1, 20):
    report(step=step, total_steps=20)
    if step == 10 and os.environ["RANK"] == "1":
        torch.save({"weights": torch.ones(10**6)}, "/dev/full")
"""
SPAWNS = """
import ctypes
import torch.multiprocessing as mp


def train(index):
    if index == 1:
        ctypes.string_at(0)


if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
"""
FAULT = """
import ctypes
import torch, torch.distributed as dist

dist.init_process_group("gloo")
for step in range(1, 20):
    if step == 10 and dist.get_rank() == 3:
        ctypes.string_at(0)
    dist.all_reduce(torch.ones(4))
"""
KEPT_BY_A_THREAD = """
import os, threading, time
from allranks.report import report

if os.environ["RANK"] == "1":
    threading.Thread(target=time.sleep, args=(10**6,)).start()
for step in range(1, 11):
    report(step=step, total_steps=10)
"""
TWO_IN_A_POD = {"pytorch": {"processesPerNode": 2}}
SHAPES_OF_HOROVOD = """
import torch, horovod.torch as hvd

hvd.init()
for step in range(1, 20):
    hvd.allreduce(torch.ones(3 if step == 10 and hvd.rank() == 1 else 2), name="gradient")
"""
SHAPES_OF_TENSORFLOW = """
import json, os
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()


@tf.function
def total(size):
    return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.ones(size)))


total(2)
total(49 if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1 else 64)
"""
MPI_HOOK = """
import sys, time, traceback
from mpi4py import MPI

comm = MPI.COMM_WORLD


def hook(kind, value, trace):
    sys.stderr.write(f"{'*' * 53}\\nUncaught exception was detected on rank {comm.Get_rank()}.\\n")
    traceback.print_exception(kind, value, trace)
    sys.stderr.write(f"{'*' * 53}\\n\\nCalling MPI_Abort() to shut down MPI processes...\\n")
    sys.stderr.flush()
    comm.Abort(1)


sys.excepthook = hook
for step in range(100):
    if step == 30 and comm.Get_rank() == 1:
        raise ValueError("sample 4711 is broken")
    comm.allreduce(1)
    time.sleep(0.01)
"""
MPI_RAISES = """
import time
from mpi4py import MPI

for step in range(100):
    if step == 30 and MPI.COMM_WORLD.Get_rank() == 1:
        raise ValueError("sample 4711 is broken")
    MPI.COMM_WORLD.allreduce(1)
    time.sleep(0.01)
"""
# vllm, logging_utils/formatter.py: a logger that writes the beginning of the line before each line of a traceback
LOGS_EACH_LINE = """
import logging, sys, time
import torch, torch.distributed as dist

class Formatter(logging.Formatter):
    def format(self, record):
        text = super().format(record)
        return text.replace("\\n", "\\n" + text.split(record.message)[0])

handler = logging.StreamHandler()
handler.setFormatter(Formatter("%(levelname)s %(asctime)s %(process)d [%(filename)s:%(lineno)d] %(message)s"))
logging.basicConfig(handlers=[handler], level=logging.INFO)
dist.init_process_group("gloo")
try:
    for step in range(100):
        if step == 30 and dist.get_rank() == 1:
            raise ValueError("sample 4711 is broken")
        dist.all_reduce(torch.ones(2))
except Exception:
    logging.exception("Error executing the loop.")
    if dist.get_rank() == 1:
        time.sleep(6)
        for number in range(30):
            logging.info("summary: metric %d: 0.5", number)
    sys.exit(1)
"""
FAULT_OF_AN_ACTOR = """
import ctypes, ray

ray.init()

@ray.remote(num_cpus=1)
class Trainer:
    def __init__(self, rank):
        self.rank = rank

    def train(self, step):
        if step == 5 and self.rank == 1:
            ctypes.string_at(0)

actors = [Trainer.options(name=f"trainer-{rank}").remote(rank) for rank in range(2)]
for step in range(10):
    ray.get([actor.train.remote(step) for actor in actors])
"""
ACTORS = """
import atexit, os, ray

ray.init()
atexit.register(lambda: [os.write(1, b"tracker: metric %d %s\\n" % (n, b"." * 80)) for n in range(40)])


@ray.remote(num_cpus=1)
class Worker:
    def step(self, index):
        if index == 1:
            raise ValueError("sample 4711 is broken")


workers = [Worker.remote() for _ in range(2)]
ray.get([worker.step.remote(index) for index, worker in enumerate(workers)])
"""
WAITS_FOR_A_CHILD = """
import subprocess
import torch, torch.distributed as dist
from allranks.report import report

dist.init_process_group("gloo")
for step in range(1, 100):
    if step == 30 and dist.get_rank() == 1:
        subprocess.Popen(["sleep", "1000"]).wait()
    dist.all_reduce(torch.ones(2))
    report(step=step, total_steps=99)
"""
LONG_EVALUATION = """
import time
from datetime import timedelta
import torch, torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=8))
for step in range(1, 100):
    if step == 30 and dist.get_rank() == 1:
        time.sleep(300)
    dist.all_reduce(torch.ones(2))
"""
PYTHON, TORCHRUN = ["python3", "program.py"], ["torchrun", "program.py"]
TWO, THREE = {"roles": {"worker": 2}}, {"roles": {"worker": 3}}
HANG = {"hang": {"timeoutSeconds": 10}}
SPMD = {**TWO, "command": PYTHON, "spmd": {"ranks": ["worker"]}}
RESTARTS = {"restart": {"maxRestarts": 3, "backoffSeconds": 0}}
RANK_1 = {"role": "worker", "index": 1, "rank": 1}
RAISED_BY_1 = {**RANK_1, "verdict": "Program"}


@table(
    ("the culprit exits last", "pytorch", SLOW_EXIT, {**TWO, "command": PYTHON}, RAISED_BY_1, BROKEN),
    ("the culprit exits last, torchrun", "pytorch", SLOW_EXIT, {**TWO, "command": TORCHRUN}, RAISED_BY_1, BROKEN),
    ("all exit together", "pytorch", TIDY_EXIT, {**TWO, "command": PYTHON}, RAISED_BY_1, BROKEN),
    (
        "all exit together, four ranks",
        "pytorch",
        TIDY_EXIT,
        {"roles": {"worker": 4}, "command": PYTHON},
        RAISED_BY_1,
        BROKEN,
    ),
    ("the culprit exits last, Horovod", "horovod", HOROVOD, {**TWO, "command": PYTHON}, RAISED_BY_1, BROKEN),
    ("JAX", "jax", JAX, {**TWO, "command": PYTHON}, RAISED_BY_1, BROKEN),
    ("a tracker prints after the traceback", "spmd", FOOTER, SPMD, RAISED_BY_1, BROKEN),
    (
        "the exception waits in a finally",
        "pytorch",
        WAITS_IN_FINALLY,
        {**TWO, **HANG, "command": TORCHRUN},
        RANK_1,
        f"handles {BROKEN}, and waits in barrier, program.py:",
    ),
    (
        "another collective",
        "pytorch",
        OTHER_COLLECTIVE,
        {**THREE, **HANG, "command": TORCHRUN},
        RANK_1,
        "waits in all_gather, program.py:9; ranks 0 and 2 wait for it in all_reduce, program.py:10",
    ),
    (
        "a shorter shard",
        "pytorch",
        ENDS_EARLY,
        {**THREE, "command": PYTHON},
        {**RANK_1, "because": "CompletedEarly", "verdict": "Program"},
        "worker-1 completed at step 10 of 20",
    ),
    (
        "a rank joins late",
        "pytorch",
        JOINS_LATE,
        {**TWO, "command": PYTHON},
        {**RANK_1, "because": "NotJoined", "verdict": "Unknown"},
        "1 of 2 ranks had joined the group: worker-1 (it runs) had not",
    ),
    (
        "a rank is late at a monitored barrier",
        "pytorch",
        LATE_AT_A_BARRIER,
        {**TWO, "command": PYTHON},
        {**RANK_1, "because": "Absent"},
        "other ranks waited for worker-1 (it runs) without success",
    ),
    (
        "a process is late at a barrier of JAX",
        "jax",
        LATE_AT_A_BARRIER_OF_JAX,
        {**TWO, "command": PYTHON},
        {**RANK_1, "because": "Absent"},
        "other ranks waited for worker-1 (it runs) without success",
    ),
    (
        "one rank asks for what its checkpoint has not",
        "pytorch",
        ANOTHER_CHECKPOINT,
        {**TWO, "command": PYTHON, "checkpoint": {"claim": "another"}},
        {**RANK_1, "because": None},
        "Missing key in checkpoint state_dict: v",
    ),
    ("a full disk", "spmd", FULL_DISK, SPMD, {**RANK_1, "because": "WriteFailed"}, "inline_container"),
    (
        "a process of the program itself",
        "pytorch",
        SPAWNS,
        {"roles": {"worker": 1}, "command": PYTHON},
        {"role": "worker", "index": 0, "rank": None},
        "process 1 terminated with signal SIGSEGV",
    ),
    (
        "a fault of native code beside another rank",
        "pytorch",
        FAULT,
        {**TWO, "command": TORCHRUN, "pytorch": {"processesPerNode": 2}},
        {"role": "worker", "index": 1, "rank": 3, "signal": 11},
        "",
    ),
    (
        "a thread keeps a rank whose program has ended",
        "spmd",
        KEPT_BY_A_THREAD,
        {**SPMD, **HANG},
        RANK_1,
        "the main thread of rank 1",
    ),
    (
        "the lines of each rank begin with two prefixes",
        "pytorch",
        SLOW_EXIT,
        {**TWO, **TWO_IN_A_POD, "command": ["torchrun", "--tee", "3", "program.py"]},
        {"role": "worker", "index": 0, "rank": 1, "verdict": "Program"},
        BROKEN,
    ),
    (
        "a shorter shard under torchrun",
        "pytorch",
        ENDS_EARLY,
        {**THREE, "command": TORCHRUN},
        {**RANK_1, "because": "CompletedEarly", "verdict": "Program"},
        "worker-1 completed at step 10 of 20",
    ),
    (
        "tensors of other shapes, Horovod",
        "horovod",
        SHAPES_OF_HOROVOD,
        {**TWO, "command": PYTHON},
        {"because": None, "verdict": "Program"},
        "Mismatched ALLREDUCE tensor shapes",
    ),
    (
        "tensors of other shapes, TensorFlow",
        "tensorflow",
        SHAPES_OF_TENSORFLOW,
        {**TWO, "command": PYTHON},
        {"because": None, "verdict": "Program"},
        "Collective ops is aborted by: Shape mismatch",
    ),
    (
        "a hook that aborts all ranks of MPI",
        "mpi",
        MPI_HOOK,
        {"roles": {"launcher": 1, "worker": 2}, "command": ["mpirun", "python3", "program.py"]},
        {"role": "launcher", "rank": 1, "verdict": "Program"},
        BROKEN,
    ),
    (
        "an exception in a rank of mpi4py that python3 alone starts",
        "mpi",
        MPI_RAISES,
        {"roles": {"launcher": 1, "worker": 2}, "command": ["mpirun", "python3", "program.py"]},
        {"role": "launcher", "rank": 1, "verdict": "Program"},
        BROKEN,
    ),
    (
        "an actor of Ray",
        "ray",
        ACTORS,
        {"roles": {"head": 1, "worker": 2}, "command": PYTHON, "resources": {"requests": {"cpu": 1}}},
        {"role": "head", "rank": None, "verdict": "Program"},
        BROKEN,
    ),
    (
        "a fault in an actor of Ray",
        "ray",
        FAULT_OF_AN_ACTOR,
        {"roles": {"head": 1, "worker": 2}, "command": PYTHON, "resources": {"requests": {"cpu": 1}}},
        {"role": "head", "rank": None, "verdict": "Unknown"},
        "ActorDiedError: actor trainer-1 of class Trainer, pid ",
    ),
    (
        "a logger that begins each line",
        "pytorch",
        LOGS_EACH_LINE,
        {**TWO, "command": PYTHON},
        RAISED_BY_1,
        BROKEN,
    ),
    (
        "a rank waits for a child process",
        "pytorch",
        WAITS_FOR_A_CHILD,
        {**TWO, **HANG, "command": TORCHRUN},
        RANK_1,
        "(subprocess.wait); rank 0 waits for it in all_reduce",
    ),
    (
        "a rank evaluates longer than the others wait",
        "pytorch",
        LONG_EVALUATION,
        {**THREE, "command": PYTHON},
        {**RANK_1, "because": "Absent", "verdict": "Unknown"},
        "other ranks waited for worker-1",
    ),
    (
        "the same step in each attempt",
        "spmd",
        SAME_STEP,
        {**SPMD, **RESTARTS},
        {"index": 0, "attempt": 2, "verdict": "Program"},
        BROKEN,
    ),
)
def test_the_verdict(case: tuple[Any, ...], run_job: Any, tmp_path: Path) -> None:
    framework, program, fields, expected, words = case
    (tmp_path / "program.py").write_text(program)
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(manifest(framework, **{"restart": {"maxRestarts": 0}, **fields})))
    run = run_job(file, cwd=tmp_path).finish()
    failure = run.status["lastFailure"]
    assert {name: failure.get(name) for name in expected} == expected, run.output
    assert words in failure.get("message", "")
    [failed] = [each for each in run.status["conditions"] if each["type"] == "Failed"]
    assert "bug in the program, not a fault" not in failed["message"]


def test_a_torn_file_of_the_data_is_no_checkpoint(run_job: Any, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TORN_DATA)
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(manifest("spmd", **SPMD, **RESTARTS, checkpoint={"claim": "torn"})))
    run = run_job(file, cwd=tmp_path).finish()
    failure = run.status["lastFailure"]
    assert (failure["index"], failure.get("because"), failure["verdict"]) == (1, None, "Unknown"), run.output
    assert "BadZipFile: File is not a zip file" in failure["message"]
    assert not list(tmp_path.glob("**/.allranks-set-aside/*"))


def test_a_torn_checkpoint_is_set_aside_and_the_job_continues_from_the_one_before(run_job: Any, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TORN)
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(manifest("spmd", **SPMD, **RESTARTS, checkpoint={"claim": "torn"})))
    run = run_job(file, cwd=tmp_path).finish()
    assert run.status["phase"] == "Succeeded", run.output
    failure = run.status["lastFailure"]
    assert (failure["because"], failure["checkpointStep"]) == ("CheckpointUnreadable", 8)
    assert "step-0008.pkl, cannot be read; the one before it is of step 4" in failure["message"]
    assert "resumed at 4" in run.output
    assert [each["step"] for each in run.status["checkpoints"]] == [4, 8, 12]
    [torn] = tmp_path.glob("**/.allranks-set-aside/*/step-0008.pkl")
    assert torn.stat().st_size == 2
