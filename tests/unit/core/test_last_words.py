"""What ended a program, in the end of its output."""

from __future__ import annotations

# ruff: noqa: E501 (lines of real outputs)
from allranks.core.diagnosis.last_words import cause_line, excerpt, last_words, lost_peer
from support.builders import table

RAISED = """Traceback (most recent call last):
  File "/app/train.py", line 10, in <module>
    raise ValueError("sample 4711 is broken")
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: sample 4711 is broken
"""
GLOO = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] "
    "Connection closed by peer [127.0.0.1]:6864"
)
LOST = f'Traceback (most recent call last):\n  File "/app/train.py", line 9, in <module>\n    all_reduce()\n{GLOO}\n'
CHAIN = "\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
FOOTER = "".join(f"tracker:   metric_{n:02} {n / 7:.4f}  (last value of the run)\n" for n in range(40))
TWO_RANKS = f"""[rank0]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank1]:   File "/app/train.py", line 10, in <module>
[rank0]:   File "/app/train.py", line 9, in <module>
[rank1]: ValueError: sample 4711 is broken
[rank0]: {GLOO}
"""
ENGINE = "".join(f"(EngineCore_DP0 pid=77) {line}\n" for line in ("Process EngineCore_DP0:", *RAISED.splitlines()))
SEE_ABOVE = RAISED.replace(
    "ValueError: sample 4711 is broken", "RuntimeError: Engine core initialization failed. See root cause above."
)
# Python 3.13 with FORCE_COLOR
COLORED = """Traceback (most recent call last):
  File \x1b[35m"/app/train.py"\x1b[0m, line \x1b[35m10\x1b[0m, in \x1b[35m<module>\x1b[0m
    \x1b[31mwork\x1b[0m\x1b[1;31m()\x1b[0m
    \x1b[31m~~~~\x1b[0m\x1b[1;31m^^\x1b[0m
\x1b[1;35mValueError\x1b[0m: \x1b[35msample 4711 is broken\x1b[0m
"""
IPYTHON = """---------------------------------------------------------------------------
ValueError                                Traceback (most recent call last)
File /app/train.py:12
      9 if __name__ == "__main__":
---> 12     main()

Cell In[32], line 7, in main()
      5 for step in range(9):
----> 7     raise ValueError("sample 4711 is broken")

ValueError: sample 4711 is broken
"""
# vllm, logging_utils/formatter.py
LOGGED = "".join(
    f"ERROR 08-22 13:50:25 200507 [worker_base.py:148] {line}\n" for line in ("Failed.", *RAISED.splitlines())
)
TORCHRUN = """Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.api.SignalException: Process 618 got signal: 15
"""
LOADER = """Traceback (most recent call last):
  File "/app/train.py", line 8, in <module>
    for batch in loader:
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 358, in _worker_loop
    data = fetcher.fetch(index)
ValueError: sample 4711 is broken

"""
ABORT = """F0101 10:11:12.123456 7 client.h:80] Terminating process because the JAX distributed service detected fatal errors.
Fatal Python error: Aborted

Current thread 0x00007f (most recent call first):
  File "/env/lib/python3.11/site-packages/jax/_src/array.py", line 1 in f
Extension modules: numpy, jaxlib (total: 2)
"""
THROWN = """terminate called after throwing an instance of 'std::runtime_error'
  what():  sample 4711 is broken
Fatal Python error: Aborted
"""
IGNORED = """Exception ignored in atexit callback: <function _MultiProcessingDataLoaderIter._clean_up_worker at 0x7fc7fa34f7f0>
Traceback (most recent call last):
  File "/env/lib/python3.10/site-packages/torch/utils/data/dataloader.py", line 1475, in _clean_up_worker
    w.join(timeout=_utils.MP_STATUS_CHECK_INTERVAL)
RuntimeError: DataLoader worker (pid 56811) is killed by signal: Terminated.
"""
CHECKPOINT = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/app/train.py", line 9, in <module>
[rank0]:     dcp.load(state, checkpoint_id=folder)
[rank0]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])
[rank0]: Traceback (most recent call last): (RANK 2)
[rank0]:   File "/env/lib/python3.11/site-packages/torch/distributed/checkpoint/utils.py", line 192, in reduce_scatter
[rank0]:     local_data = map_fun()
[rank0]:   File "/env/lib/python3.11/site-packages/torch/distributed/checkpoint/default_planner.py", line 500, in f
[rank0]:     raise RuntimeError(f"Missing key in checkpoint state_dict: {fqn}.")
[rank0]: RuntimeError: Missing key in checkpoint state_dict: v.
"""
OUT_OF_MEMORY = """[rank2]: Traceback (most recent call last):
[rank2]:   File "/app/train.py", line 225, in <module>
[rank2]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 336.00 MiB. GPU 2 has 141.25 MiB free.
"""
WATCHDOG = """[rank5]:[E ProcessGroupNCCL.cpp:583] To avoid data inconsistency, we are taking the entire process down.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG 0 Rank 5] NCCL watchdog thread terminated with exception: [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15734, OpType=ALLREDUCE)
"""
SHARED_MEMORY = """Traceback (most recent call last):
  File "/app/train.py", line 9, in <module>
    dist.broadcast(tensor, 0)
torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1331, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:
Error while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888), error: No space left on device (28)
"""
# recorded: Open MPI 4.1, a rank that reads address 0
SIGNAL = """[node-1:01402] *** Process received signal ***
[node-1:01402] Signal: Segmentation fault (11)
[node-1:01402] Signal code: Address not mapped (1)
[node-1:01402] Failing at address: (nil)
""" + "".join(f"[node-1:01402] [{n:2}] /usr/lib/libpython3.11.so.1.0(+0x1117a)[0x7ff5152ed17a]\n" for n in range(25))
UCX = (
    "[node-1:132060:0:132730] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x11000078)"
)
NO_ADDRESS = "[W1130 15:13:21.198883138 socket.cpp:764] [c10d] The IPv6 network addresses of (job-worker-0.job, 29500) cannot be retrieved (gai error: -3 - Temporary failure in name resolution)."
NOT_REACHED = """Traceback (most recent call last):
  File "/app/train.py", line 6, in <module>
    dist.init_process_group("gloo")
torch.distributed.DistNetworkError: The client socket has timed out after 10000ms while trying to connect to (job-worker-0.job, 29500).
"""
RULE = "-" * 74
NO_HOST = "ssh: Could not resolve hostname job-worker-1-0.job: Temporary failure in name resolution"
NO_DAEMON = "ORTE was unable to reliably start one or more daemons."
BOX = f"""{RULE}
{NO_DAEMON}
This usually is caused by:

* not finding the required libraries and/or binaries on
  one or more nodes.
{RULE}
"""
# recorded: Python 3.11
THREAD = """Exception in thread Thread-1 (_pin_memory_loop):
Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner
    self.run()
ConnectionResetError: [Errno 104] Connection reset by peer
"""
CHILD = """Process Process-1:
Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/process.py", line 314, in _bootstrap
    self.run()
EOFError: the pipe is closed
"""
TASK = """Task exception was never retrieved
future: <Task finished name='Task-2' coro=<a() done, defined at /app/train.py:2> exception=OSError(5, 'background')>
Traceback (most recent call last):
  File "/app/train.py", line 2, in a
    async def a(): raise OSError(5, "background")
OSError: [Errno 5] background
"""
LOGGING = f"""--- Logging error ---
{RAISED}{CHAIN}Traceback (most recent call last):
  File "/usr/lib/python3.11/logging/__init__.py", line 1110, in emit
    msg = self.format(record)
TypeError: %d format: a real number is required, not str
Call stack:
  File "/app/train.py", line 10, in <module>
    main()
Message: 'cannot %d'
Arguments: ('x',)
"""
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/app/train.py", line 6, in <module>
  |     asyncio.run(main())
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/app/train.py", line 2, in a
    |     raise ValueError("sample 4711 is broken")
    | ValueError: sample 4711 is broken
    +------------------------------------
"""
# recorded: rich 13, as typer and others install it
RICH = """╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /app/train.py:7 in <module>                                                  │
│                                                                              │
│ ❱ 7 load(3)                                                                  │
╰──────────────────────────────────────────────────────────────────────────────╯
"""
# the layout of loguru 0.7: _better_exceptions.py
LOGURU = """2026-11-30 10:00:00.000 | ERROR    | __main__:<module>:9 - An error has been caught in function '<module>'
Traceback (most recent call last):

> File "/app/train.py", line 9, in <module>
    main()
    └ <function main at 0x7f3ad2b9c4a0>

  File "/app/train.py", line 6, in main
    raise ValueError("sample 4711 is broken")

ValueError: sample 4711 is broken
"""
RAY = """Traceback (most recent call last):
  File "/app/train.py", line 20, in <module>
    ray.get([worker.step.remote() for worker in workers])
ray.exceptions.RayTaskError(ValueError): ray::Worker.step() (pid=77, ip=127.0.0.1, actor_id=0c1, repr=<train.Worker>)
  File "/app/train.py", line 12, in step
    raise ValueError("sample 4711 is broken")
ValueError: sample 4711 is broken
"""
RAY_TASK = RAY[RAY.index("RayTaskError") :]
# recorded: TensorFlow 2.21
GRAPH = """Traceback (most recent call last):
  File "/app/train.py", line 11, in <module>
    print(step(2)[0]); print(step(n)[0])
tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "/app/train.py", line 11, in <module>

  File "/app/train.py", line 10, in step

Collective ops is aborted by: Shape mismatch in the collective instance 101. Op at device /job:worker/replica:0/task:1
The error could be from a previous operation. Restart your program to reset.
\t [[{{node CollectiveReduceV2}}]] [Op:__inference_step_66]
"""
TEED = "".join(f"[default1]:[rank1]: {line}\n" for line in RAISED.splitlines())
TEED_PEER = "".join(f"[default0]:[rank0]: {line}\n" for line in LOST.splitlines())
# recorded: lightning 2.6
FORCED = "[rank: 1] Child process with PID 7 terminated with code 1. Forcefully terminating all other processes to avoid zombies"
DEEP_LOADER = LOADER.replace("fetch(index)\n", "fetch(index)\n" + '  File "/app/data.py", line 3, in f\n    g()\n' * 20)


@table(
    ("an exception", RAISED, 1, "ValueError: sample 4711 is broken"),
    ("a tracker prints many lines after it", RAISED + FOOTER, 1, "ValueError: sample 4711 is broken"),
    ("the end of a torchrun that was stopped", RAISED + TORCHRUN, 143, "ValueError: sample 4711 is broken"),
    (
        "a chain whose last exception is the program's",
        f"{RAISED}{CHAIN}{RAISED.replace('Value', 'Key')}",
        1,
        "KeyError:",
    ),
    ("a chain that ends with a lost peer", f"{RAISED}{CHAIN}{LOST}", 1, "ValueError: sample 4711 is broken"),
    ("the exception of a worker process", LOADER, 1, "ValueError: sample 4711 is broken"),
    ("one with a long traceback", DEEP_LOADER + FOOTER, 1, "ValueError: sample 4711 is broken"),
    ("an error of a graph of TensorFlow", GRAPH, 1, "Collective ops is aborted by: Shape mismatch in the collective"),
    ("the same in colours", RAY.replace("ray::", "\x1b[36mray::") + FOOTER, 1, "ValueError: sample 4711 is broken"),
    ("the exception of a task of Ray", RAY + FOOTER, 1, "ValueError: sample 4711 is broken"),
    ("the same without the driver's frames", RAY_TASK + FOOTER, 1, "ValueError: sample 4711 is broken"),
    ("a thread fails after the program", RAISED + THREAD, 1, "ValueError: sample 4711 is broken"),
    ("only a thread fails", THREAD, 1, "ConnectionResetError: [Errno 104] Connection reset by peer"),
    ("a child process fails after the program", RAISED + CHILD, 1, "ValueError: sample 4711 is broken"),
    ("only a child process fails", CHILD, 1, "EOFError: the pipe is closed"),
    ("a task that is not awaited", RAISED + TASK, 1, "ValueError: sample 4711 is broken"),
    (
        "a handler of loguru fails",
        f"{RAISED}--- Logging error in Loguru Handler #1 ---\nRecord was: {{'level': 'INFO'}}\n{THREAD.split(chr(10), 1)[1]}",
        1,
        "ValueError: sample 4711 is broken",
    ),
    (
        "a launcher of accelerate, in a box",
        f"{RICH}ValueError: sample 4711 is broken\n{RICH}ChildFailedError: \n{RULE}\ntrain.py FAILED\n{RULE}\n",
        1,
        "ValueError: sample 4711 is broken",
    ),
    ("a handler of a log fails", RAISED + LOGGING, 1, "ValueError: sample 4711 is broken"),
    (
        "a function at exit, before Python 3.12",
        RAISED + IGNORED.replace("Exception ignored in atexit callback", "Error in atexit._run_exitfuncs"),
        1,
        "ValueError: sample 4711 is broken",
    ),
    ("a group of exceptions", GROUP + FOOTER, 1, "ValueError: sample 4711 is broken"),
    ("a traceback in a box", f"{RICH}ValueError: sample 4711 is broken\n{FOOTER}", 1, "ValueError: sample 4711"),
    ("loguru", LOGURU + FOOTER, 1, "ValueError: sample 4711 is broken"),
    ("torchrun --tee", TEED + TEED_PEER + FOOTER, 1, "ValueError: sample 4711 is broken"),
    ("a child process said why", f"{ENGINE}{SEE_ABOVE}", 1, "ValueError: sample 4711 is broken"),
    ("a child process did not say why", SEE_ABOVE, 1, "RuntimeError: Engine core initialization failed."),
    ("colors", COLORED + FOOTER, 1, "ValueError: sample 4711 is broken"),
    ("IPython", IPYTHON + FOOTER, 1, "ValueError: sample 4711 is broken"),
    ("a logger that begins each line", LOGGED + FOOTER, 1, "ValueError: sample 4711 is broken"),
    ("a time before the traceback", f"[2026-12-01 04:50] {RAISED}{FOOTER}", 1, "ValueError: sample 4711 is broken"),
    ("a text before the traceback", f"ERROR:root:Failed: {RAISED}{FOOTER}", 1, "ValueError: sample 4711 is broken"),
    ("the beginning was cut off", RAISED.split("\n", 1)[1], 1, "ValueError: sample 4711 is broken"),
    (
        "the beginning of the lines of a rank was cut off",
        "step 3\n" + TWO_RANKS.split("\n", 2)[2],
        1,
        "ValueError: sample 4711 is broken",
    ),
    ("two ranks whose lines are mixed", TWO_RANKS, 1, "ValueError: sample 4711 is broken"),
    ("a fatal line before the list of modules", ABORT, 134, "F0101 10:11:12.123456 7 client.h:80]"),
    ("an exception of C++", THROWN, 134, "what():  sample 4711 is broken"),
    (
        "an exception, then an abort while Python ends",
        RAISED + "terminate called without an active exception\n",
        134,
        "V",
    ),
    ("a program that handles its exception, and ends", RAISED + "summary: failed\n", 3, "ValueError: sample 4711"),
    ("an exit code of its own, long after an exception", RAISED + FOOTER + "error: no data\n", 3, "error: no data"),
    ("the code of `timeout`", RAISED + "error: no data\n", 124, "error: no data"),
    ("an exception that the program survived long ago, then a kill", RAISED + FOOTER + "step 9\n", 137, "step 9"),
    ("an exception that the program survived long ago, then a fault", RAISED + FOOTER + "step 9\n", 139, "step 9"),
    ("a program that kills itself, because its child raised", f"{RAISED}{FORCED}\n", 137, "ValueError: sample 4711"),
    ("no output", "", 1, ""),
    ("an exception that Python ignores at exit", RAISED + IGNORED, 1, "ValueError: sample 4711 is broken"),
    ("only an exception that Python ignores", IGNORED, 1, "RuntimeError: DataLoader worker"),
    (
        "one rank raised, which another one prints",
        CHECKPOINT,
        1,
        "RuntimeError: Missing key in checkpoint state_dict: v.",
    ),
    (
        "one rank raised, and others waited until they aborted",
        OUT_OF_MEMORY + WATCHDOG,
        1,
        "torch.cuda.OutOfMemoryError",
    ),
    ("a rank waited until it aborted", RAISED + WATCHDOG, 134, "what():  [PG 0 Rank 5] NCCL watchdog"),
    ("what NCCL says about its error", SHARED_MEMORY, 1, "Error while creating shared memory segment"),
    (
        "a signal that Open MPI catches",
        f"{SIGNAL}[node-1:01402] *** End of error message ***\n",
        139,
        "[node-1:01402] Signal: ",
    ),
    ("a signal that UCX catches", f"{UCX}\n==== backtrace (tid: 132732) ====\n 0  0x12990 f()\n", 139, UCX),
    (
        "what aborted, before Open MPI's frames",
        THROWN + SIGNAL.replace("11", "6"),
        134,
        "what():  sample 4711 is broken",
    ),
    ("a host without an address", f"{NO_ADDRESS}\n{NOT_REACHED}", 1, NO_ADDRESS),
    (
        "a host that does not answer",
        NOT_REACHED,
        1,
        "torch.distributed.DistNetworkError: The client socket has timed out",
    ),
    ("a message of mpirun in a box", BOX, 1, NO_DAEMON),
    ("ssh says more than mpirun", f"{NO_HOST}\n{BOX}", 1, NO_HOST),
    ("a rule alone", f"epoch 3\n{RULE}\n", 1, RULE),
)
def test_the_line_that_says_what_ended_a_program(case):
    output, code, line = case
    assert cause_line(output, code).startswith(line)
    assert bool(cause_line(output, code)) == bool(line)


@table(
    ("a lost connection", LOST, True),
    ("an exception of its own", RAISED, False),
    ("the program raised, and lost its peers while it handled that", f"{RAISED}{CHAIN}{LOST}", False),
    ("it lost its peers, and failed while it handled that", f"{LOST}{CAUSED}{RAISED}", True),
    ("a coordinator that is gone", ABORT, True),
    ("a download that was reset", "ConnectionResetError: [Errno 104] Connection reset by peer", False),
    ("one rank of the pod raised", TWO_RANKS, False),
    ("a rank that prints that, and ends with a code of its own", LOST + FOOTER[:600], True, 3),
    ("a single line", "torch.distributed.DistStoreError: Timed out after 9 seconds waiting for clients.", True),
    ("no output", "", False),
)
def test_whether_only_peers_were_lost(case):
    output, lost, *code = case
    assert lost_peer(output, last_words(output, *code)) is lost


def test_a_number_in_the_text_of_a_logger_is_no_rank():
    words = last_words(LOGGED.replace("ERROR", "ERROR [4711]"), 1)
    assert words is not None
    assert words.rank is None


@table(("torch", TWO_RANKS), ("torchrun --tee", TEED_PEER + TEED))
def test_the_rank_of_an_exception_is_the_one_that_its_lines_name(case):
    [output] = case
    words = last_words(output, 1)
    assert words is not None
    assert words.rank == 1


def test_the_rank_of_an_exception_that_another_rank_prints_is_the_one_that_raised_it():
    words = last_words(CHECKPOINT, 1)
    assert words is not None
    assert words.rank == 2


# recorded: torch 2.15, torch.multiprocessing.spawn
SPAWN = """Traceback (most recent call last):
  File "/app/train.py", line 14, in <module>
    mp.spawn(train, nprocs=2)
"""
CHILD_ENDED = f"{SPAWN}torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV\n"
CHILD_RAISED = f"""{SPAWN}torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 1 terminated with the following error:
{RAISED}"""


@table(
    ("a signal", CHILD_ENDED, "torch.multiprocessing.spawn.ProcessExitedException: process 1", True),
    ("an exception", CHILD_RAISED, "ValueError: sample 4711 is broken", True),
    ("an exception of the program itself", RAISED, "ValueError: sample 4711 is broken", False),
)
def test_a_process_that_the_program_started_itself_has_no_rank(case):
    output, line, of_child = case
    words = last_words(output, 1)
    assert words is not None
    assert words.line.startswith(line)
    assert words.of_child is of_child


def test_an_excerpt_has_the_exception_and_the_end_within_its_limits():
    text = excerpt(RAISED + FOOTER, 1, 20, 2048)
    assert "ValueError: sample 4711 is broken" in text
    assert text.endswith("metric_39 5.5714  (last value of the run)")
    assert len(text.splitlines()) <= 20
    assert len(text) <= 2048
    short = excerpt(RAISED + FOOTER, 1, 20, 300)
    assert "ValueError: sample 4711 is broken" in short
    assert len(short) <= 300


@table(
    ("a traceback", RAISED.replace("    raise", "    raise  # a long line\n" * 30 + "    raise")),
    ("the traceback of a task of Ray", RAY.replace("    raise", "    raise  # a long line\n" * 30 + "    raise")),
    ("a traceback in a box", RICH.replace("╰", "│ 8 │\n" * 30 + "╰") + "ValueError: sample 4711 is broken\n"),
)
def test_what_ended_a_program_is_also_in_an_excerpt(case):
    [output] = case
    text = excerpt(output + FOOTER, 1, 20, 600)
    words = last_words(text, 1)
    assert words is not None
    assert words.line == "ValueError: sample 4711 is broken"
    assert len(text) <= 600
    assert len(text.splitlines()) <= 20


def test_an_excerpt_has_the_warning_that_a_host_has_no_address():
    frames = "".join(f'  File "/env/lib/torch/f{n}.py", line {n}, in f\n    g()\n' for n in range(20))
    long = NOT_REACHED.replace("torch.distributed.Dist", f"{frames}torch.distributed.Dist", 1)
    for raised in (NOT_REACHED, long):
        text = excerpt(f"{NO_ADDRESS}\n{FOOTER}{raised}", 1, 20, 2048)
        assert cause_line(text) == NO_ADDRESS
        assert "torch.distributed.DistNetworkError: The client socket has timed out" in text


def test_an_excerpt_of_a_short_output_is_the_output():
    assert excerpt(f"epoch 3\n{RAISED}", 1, 20, 2048) == f"epoch 3\n{RAISED}".rstrip()


def test_a_large_or_strange_output_takes_little_time():
    """The work is linear: 40 times the output of a kubelet's limit, with a head of a traceback in each line."""
    for line in (
        "Traceback (most recent call last):\n",
        "[rank1]: Traceback (most recent call last):\n",
        '  File "\n',
        RULE + "\n",
    ):
        last_words(line * 2000, 1)
