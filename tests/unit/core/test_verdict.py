"""Checks whose fault a failure is. A row: what happened, the status, the failure, and the verdict."""

from __future__ import annotations

from dataclasses import replace

from allranks.api.status import Failure, PastAttempt, ProgressStatus, Status
from allranks.core.diagnosis import restart_policy, verdict
from allranks.core.diagnosis.comparison import Comparison
from allranks.core.facts.model import InitContainer
from support.builders import NOW, at, failed, failure, job, pending, pod, started, table


def traceback(line: str) -> str:
    return f'Traceback (most recent call last):\n  File "/app/train.py", line 12, in <module>\n    main()\n{line}\n'


JOB = job(roles={"worker": 2})
RUNNING = Status(attempt_time=at(0), running_time=at(1))
BROKEN = failure(message=traceback("ValueError: sample 4711 is broken"))
NO_TRACEBACK = failure(exit_code=3, message="giving up")
KILLED = failure(exit_code=137, signal=9, message="")
STEPS = ProgressStatus(step=9, first_step_time=at(2))


def after(*failures: Failure, step: int | None = None) -> Status:
    """The status of an attempt after others that ended with these failures, in the given step."""
    first = None if step is None else 1
    history = [
        PastAttempt(attempt=n, end_time=NOW, reason=each.reason, failure=each, first_step=first, last_step=step)
        for n, each in enumerate(failures)
    ]
    progress = STEPS if step is not None else None
    return replace(RUNNING, attempt=len(failures), history=history, progress=progress)


def lost(reason: str, **fields: object) -> Failure:
    return failure(reason=reason, message="", **({"exit_code": None} | fields))


def because(evidence: str, **fields: object) -> Failure:
    return failure(because=evidence, **fields)


VERDICTS = (
    ("an exception", RUNNING, BROKEN, "Program"),
    ("memory of a GPU", RUNNING, failure(message=traceback("torch.OutOfMemoryError: CUDA out of memory.")), "Program"),
    ("memory of the pod", RUNNING, failure(exit_code=137, reason="OOMKilled"), "Program"),
    ("more files than the pod may have", RUNNING, failure(exit_code=137, reason="LimitExceeded"), "Program"),
    ("a rank whose shard is shorter", RUNNING, because("CompletedEarly", exit_code=None), "Program"),
    ("an exit code, without an exception", RUNNING, NO_TRACEBACK, "Unknown"),
    ("the same exit code twice before any progress", after(NO_TRACEBACK), NO_TRACEBACK, "Program"),
    ("the same exit code in one step, twice", after(NO_TRACEBACK, step=9), NO_TRACEBACK, "Unknown"),
    ("in three attempts", after(NO_TRACEBACK, NO_TRACEBACK, step=9), NO_TRACEBACK, "Program"),
    ("a torn checkpoint", RUNNING, because("CheckpointUnreadable"), "Checkpoint"),
    ("an input that does not arrive", RUNNING, failure(exit_code=None, reason="FetchFailed"), "Input"),
    ("a bucket that does not exist", RUNNING, failure(exit_code=None, reason="InputFailed"), "Input"),
    ("a GPU with memory errors", RUNNING, because("DeviceError"), "Node"),
    ("a GPU that its plugin reports as unhealthy", RUNNING, because("DeviceUnhealthy"), "Node"),
    ("a matrix product that is wrong", RUNNING, because("PreflightFailed", exit_code=None), "Node"),
    ("an init container that fails on one node", RUNNING, because("InitContainerOfNode", exit_code=None), "Node"),
    ("an init container that fails", RUNNING, because("InitContainer", exit_code=None), "Unknown"),
    ("a node without power", RUNNING, lost("NodeLost"), "Node"),
    ("a reboot", RUNNING, lost("ContainerStatusUnknown"), "Node"),
    ("a pod that its node rejects", RUNNING, lost("OutOfnvidia.com/gpu"), "Node"),
    ("a name without an address", RUNNING, because("NetworkError"), "Network"),
    ("a pod without a node", RUNNING, because("NeverWhole", exit_code=None, reason="NotStarted"), "Capacity"),
    ("a pod whose image comes late", RUNNING, because("NeverWhole", node="node-2", reason="NotStarted"), "Unknown"),
    ("a preemption", RUNNING, lost("Preempted"), "Capacity"),
    ("a quota", RUNNING, because("PodRefused", exit_code=None, reason="NotStarted"), "Platform"),
    ("a drained node", RUNNING, lost("Evicted"), "Platform"),
    ("kubectl delete pod", RUNNING, lost("Deleted"), "User"),
    ("an invalid image name", RUNNING, lost("InvalidImageName"), "User"),
    ("an image that cannot be pulled", RUNNING, lost("ImagePullBackOff"), "Unknown"),
    ("a misspelled command", RUNNING, failure(exit_code=127, message="sh: 1: torchrn: not found"), "User"),
    ("a device that the runtime does not find", RUNNING, lost("StartError", exit_code=128), "Unknown"),
    ("lost peers", RUNNING, because("LostPeer"), "Unknown"),
    ("a rank that did not join", RUNNING, because("NotJoined", exit_code=None), "Unknown"),
    ("a rank for which others waited", RUNNING, because("Absent", exit_code=None), "Unknown"),
    ("a volume that is full", RUNNING, because("WriteFailed"), "Unknown"),
    ("killed in the same step of three attempts", after(KILLED, KILLED, step=9), KILLED, "Unknown"),
    ("kill -9", RUNNING, failure(exit_code=137, signal=9, message=""), "Unknown"),
    ("a hang", RUNNING, failure(exit_code=None, reason="Hang", message=traceback("ValueError: of a stack")), "Unknown"),
    ("a full disk", RUNNING, failure(message=traceback("OSError: [Errno 28] No space left on device")), "Unknown"),
    (
        "a service",
        RUNNING,
        failure(message=traceback("requests.exceptions.ReadTimeout: timed out")),
        "Unknown",
    ),
    *(
        (line.partition(":")[0], RUNNING, failure(message=traceback(line)), "Unknown")
        for line in (
            "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co",
            'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://s3.test/"',
            "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the GetObject operation",
            "httpx.ConnectError: [Errno 111] Connection refused",
            "google.api_core.exceptions.ServiceUnavailable: 503 Getting metadata failed",
            "aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host s3.test:443",
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='data.test', port=443)",
            "huggingface_hub.errors.LocalEntryNotFoundError: we cannot find the requested files in the local cache",
            "mlflow.exceptions.MlflowException: API request to http://mlflow:5000/api failed with 500 error responses",
            "sqlalchemy.exc.OperationalError: (sqlite3.OperationalError) database is locked",
            "sqlite3.OperationalError: database is locked",
            "botocore.exceptions.NoCredentialsError: Unable to locate credentials",
            "google.auth.exceptions.RefreshError: Failed to retrieve http://metadata.google.internal",
            "PermissionError: [Errno 13] Permission denied: '/.cache'",
            "OSError: [Errno 116] Stale file handle: 'cache.arrow'",
            "RuntimeError: Too many open files. Communication with the workers is no longer possible.",
            "RuntimeError: can't start new thread",
        )
    ),
    *(
        (line[:60], after(failure(message=traceback(line))), failure(message=traceback(line)), "Unknown")
        for line in (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted "
            "on non supported HW",
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        )
    ),
    (
        "a call of the system that NCCL made",
        RUNNING,
        failure(
            message=f"{traceback('torch.distributed.DistBackendError: NCCL error in: x.cpp:268')}\nncclSystemError: .."
        ),
        "Unknown",
    ),
    (
        "no GPU on two nodes",
        after(failure(node="node-2", message=traceback("RuntimeError: No CUDA GPUs are available"))),
        failure(node="node-3", message=traceback("RuntimeError: No CUDA GPUs are available")),
        "Unknown",
    ),
    (
        "a damaged file that is no checkpoint",
        after(failure(message=traceback("zipfile.BadZipFile: File is not a zip file"))),
        failure(message=traceback("zipfile.BadZipFile: File is not a zip file")),
        "Unknown",
    ),
    *(
        (line.partition(":")[0], RUNNING, failure(message=traceback(line)), "Program")
        for line in (
            "botocore.exceptions.ClientError: An error occurred (NoSuchKey) when calling the GetObject operation",
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name'",
            "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error",
            "google.protobuf.message.DecodeError: Error parsing message",
            "sqlalchemy.exc.ProgrammingError: (sqlite3.ProgrammingError) Cannot operate on a closed database.",
            "yaml.scanner.ScannerError: mapping values are not allowed here",
            "KeyError: 'http'",
        )
    ),
    *(
        (f"a child, {line[:40]}", RUNNING, failure(message=traceback(line)), "Unknown")
        for line in (
            "RuntimeError: DataLoader worker (pid 56811) is killed by signal: Killed. ",
            "RuntimeError: DataLoader worker (pid(s) 77, 78) exited unexpectedly",
            "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly",
            "RuntimeError: One of the subprocesses has abruptly died during map operation.",
        )
    ),
)


@table(*VERDICTS)
def test_the_verdict_of_a_failure(case):
    status, ended, expected = case
    assert verdict.judged(JOB, status, ended).verdict == expected


def test_each_line_of_the_table_decides_one_of_these_cases():
    cases = [Comparison(JOB, status, ended) for _, status, ended, _ in VERDICTS]
    deciding = [next(row for row in verdict.TABLE if row.holds(case)) for case in cases]
    assert [row.evidence for row in verdict.TABLE if row not in deciding] == []


@table(
    ("an exception of the program", BROKEN, ": a bug in the program, not a fault"),
    ("a full disk", failure(message=traceback("OSError: [Errno 28] No space left on device")), ""),
    ("a damaged file", failure(message=traceback("zipfile.BadZipFile: File is not a zip file")), ""),
)
def test_only_a_failure_of_the_program_is_called_a_bug(case):
    ended, words = case
    decision = restart_policy.decide_restart(JOB, after(ended), ended)
    assert (decision.action, decision.explanation) == ("Fail", f"failed the same way twice before any progress{words}")


def test_the_status_keeps_the_verdict_of_each_attempt():
    life = started(JOB)
    life.run(1)
    life.put(failed("worker", 1, message=traceback("socket.gaierror: [Errno -3] Temporary failure in name resolution")))
    life.settle(61)
    [past] = life.status.history
    assert life.status.last_failure is not None
    assert past.failure is not None
    evidence = [(each.because, each.verdict) for each in (life.status.last_failure, past.failure)]
    assert evidence == [("NetworkError", "Network")] * 2


@table(("elsewhere", "node-3", "Node"), ("on the same node only", "node-2", "Unknown"))
def test_an_init_container_that_succeeded_on_another_node_shows_that_the_node_is_bad(case):
    node, expected = case
    life = started(JOB)
    life.put(pod("worker", 0, node=node))
    preflight = InitContainer("preflight", 1, "GPU 3 failed the memory test")
    failing = pending("worker", 1, node="node-2", waiting_reason="InitContainerFailed", init=preflight)
    life.put(replace(failing, phase="Failed"))
    life.settle(61)
    assert life.status.last_failure is not None
    assert (life.status.last_failure.reason, life.status.last_failure.verdict) == ("InitContainerFailed", expected)
    assert life.status.avoided_nodes == ["node-2"]
