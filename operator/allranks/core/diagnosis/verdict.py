"""Decides whose fault a failure is: one table from evidence to a verdict, read from top to bottom.

The evidence is in fields of the failure, never in sentences that allranks wrote. `tools/reference/verdicts.py` writes
the table for users.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from allranks.api.job import Job
from allranks.api.status import Because, Failure, Status, Verdict
from allranks.core.diagnosis import exec_failure, last_words, patterns
from allranks.core.diagnosis.comparison import SAME_STEP_ATTEMPTS, Comparison
from allranks.core.diagnosis.reasons import CANNOT_START, is_rejection, was_killed
from allranks.core.facts.model import CRASH_LOOP, FETCH_FAILED, INPUT_FAILED, LIMIT_EXCEEDED, UNKNOWN_END

MEANINGS: dict[Verdict, str] = {
    "Program": "the program, its arguments, or what it needs beyond its limits",
    "Checkpoint": "a checkpoint that cannot be read",
    "Input": "an input that cannot be fetched",
    "Node": "the node of the pod, or one of its devices",
    "Network": "the network, or a name that has no address",
    "Capacity": "too little room in the cluster",
    "Platform": "a decision of the cluster: a policy, a quota, an eviction",
    "User": "the manifest, or somebody who deleted a pod",
    "Unknown": "the evidence does not say",
}


_Condition = Callable[[Comparison], bool]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table."""

    verdict: Verdict
    evidence: str
    """For users, as Markdown."""
    holds: _Condition


def _because(*kinds: Because) -> _Condition:
    return lambda case: case.failure.because in kinds


def _reason(*reasons: str) -> _Condition:
    return lambda case: case.failure.because is None and case.failure.reason in reasons


_OF_MANIFEST = ("InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError")
_OF_NODE = ("NodeLost", UNKNOWN_END)
_OF_SYSTEM = re.compile(
    r"(?:[\w.]+\.)?(?:OSError|IOError|PermissionError|BlockingIOError|InterruptedError|BrokenPipeError"
    r"|\w*Connect\w*Error|\w*Timeout\w*|SSL\w*Error|\w*H(?:TTP|ttp)\w*Error|\w*ProtocolError|URLError|RemoteDisconnected"
    r"|MaxRetryError|\w*ServiceUnavailable\w*|TooManyRequests|ServerDisconnectedError|\w*RpcError|CommError"
    # PEP 249: errors of a database "not necessarily under the control of the programmer"
    r"|\w*OperationalError"
    # botocore: the code of the service is in the message
    r"|ClientError(?=: An error occurred \((?:5\d\d|SlowDown|Throttling|RequestTimeout|\w*Unavailable|InternalError"
    r"|ExpiredToken)))"
    r"(?![\w.])"
)
"""Exceptions that disks, other hosts and services cause as often as programs do."""
_OF_LIMITS = re.compile(
    r"Too many open files|can't start new thread|Resource temporarily unavailable|Cannot allocate memory"
)
"""What is said of limits of the operating system (strerror), by whatever exception."""
_OF_NCCL = re.compile(r"ncclSystemError|unhandled system error")
"""torch, NCCLUtils.cpp: a call of the operating system or of another library failed, or a device."""
_OF_REQUEST = re.compile(r"[\w.]*\.(?:ClientError|(?!Local)\w*NotFound\w*|\w*(?:Validation|Argument)\w*)(?![\w.])")
"""Exceptions of clients of services about what the program asked for."""
_OF_CHILD = re.compile(
    # torch/utils/data/_utils/signal_handling.py, dataloader.py, torch/multiprocessing/spawn.py
    r"DataLoader worker \(pid.{1,80}\) (?:is killed by signal|exited unexpectedly)|process \d+ terminated with signal"
    # concurrent/futures/process.py, joblib (loky), datasets (py_utils.py), subprocess.py
    r"|\bBrokenProcessPool\b|\bTerminatedWorkerError\b|subprocesses has abruptly died|died with <Signals\."
)
"""A process that the program started was ended, by a signal mostly: SIGKILL for memory, SIGBUS for /dev/shm."""

TABLE: tuple[Row, ...] = (
    Row("User", "`reason: Deleted`: a person or a controller deleted the pod", _reason("Deleted")),
    Row(
        "User",
        "`reason: InvalidImageName`, `ErrImageNeverPull` or `CreateContainerConfigError`: an image, a Secret, a "
        "ConfigMap or the user of the pod is not as the manifest says",
        _reason(*_OF_MANIFEST),
    ),
    Row(
        "User",
        "the command, or a file that it names, does not exist or cannot be executed, and the job never made progress",
        lambda case: not _executed(case),
    ),
    Row("Input", "`reason: FetchFailed` or `InputFailed`", _reason(FETCH_FAILED, INPUT_FAILED)),
    Row(
        "Checkpoint",
        "`because: CheckpointUnreadable`: before its first step, the program says that a file is torn or damaged, and "
        "the job has checkpoints or came further before; not if the file is elsewhere, as variables of the program say",
        _because("CheckpointUnreadable"),
    ),
    Row(
        "Node",
        "`because: DeviceError`: the error that ended the program names a device: a GPU, a network adapter, a disk",
        _because("DeviceError"),
    ),
    Row(
        "Node",
        "`because: DeviceUnhealthy` or `NodeUnhealthy`: the platform reports the device or the node as unhealthy",
        _because("DeviceUnhealthy", "NodeUnhealthy"),
    ),
    Row(
        "Node",
        "`because: PreflightFailed`: a GPU, the disk or the network of the node failed the test before the program",
        _because("PreflightFailed"),
    ),
    Row(
        "Node",
        "`because: InitContainerOfNode`: an init container of the template failed here, and the same one succeeded on "
        "another node",
        _because("InitContainerOfNode"),
    ),
    Row(
        "Node",
        "`reason: NodeLost` or `ContainerStatusUnknown`, or the kubelet rejected the pod",
        lambda case: _reason(*_OF_NODE)(case) or is_rejection(case.failure.reason),
    ),
    Row(
        "Capacity",
        "`because: NeverWhole` without a node: the attempt was never whole, because this pod found no place",
        lambda case: case.failure.because == "NeverWhole" and case.failure.node is None,
    ),
    Row("Capacity", "`reason: Preempted`: pods of a higher priority took its place", _reason("Preempted")),
    Row(
        "Platform",
        "`because: PodRefused`: the attempt was never whole, because the API server refused this pod",
        _because("PodRefused"),
    ),
    Row(
        "Platform",
        "`reason: Evicted` or `Disrupted`: the node is drained, shuts down or is short of a resource, for example",
        _reason("Evicted", "Disrupted"),
    ),
    Row(
        "Network",
        "`because: NetworkError`: the error that ended the program says that a name has no address, or that no network "
        "leads to a host",
        _because("NetworkError"),
    ),
    Row(
        "Program",
        "`because: CompletedEarly`: the rank completed while the others still needed it",
        _because("CompletedEarly"),
    ),
    Row(
        "Program",
        "`reason: OOMKilled` or `LimitExceeded`: it used more than a limit allows",
        _reason("OOMKilled", LIMIT_EXCEEDED),
    ),
    Row(
        "Unknown",
        "`because: LostPeer`, `NotJoined`, `Absent`, `InitContainer`, `WriteFailed`, or `NeverWhole` on a node: the "
        "cause is elsewhere, or has several explanations",
        lambda case: case.failure.because is not None,
    ),
    Row(
        "Unknown",
        "the exception is one of the operating system or of another service, such as `OSError` or `TimeoutError`, or "
        "one of a client of a service, or names a limit of the operating system; or the container runtime could not "
        "start the container",
        lambda case: _of_system(case) or case.failure.reason in CANNOT_START,
    ),
    Row(
        "Unknown",
        "the exception says that the driver of the node and the CUDA of the image do not fit, or that there is no GPU, "
        "as it did on another node",
        lambda case: patterns.is_driver_mismatch(_exception(case.failure)) or case.without_device_elsewhere,
    ),
    Row(
        "Unknown",
        "the exception says only that a process which the program started was ended, often by a signal",
        lambda case: _OF_CHILD.search(_exception(case.failure)) is not None,
    ),
    Row(
        "Unknown",
        "the exception says that a file is torn or damaged: its writer, the disk, or the program that reads it",
        lambda case: patterns.is_unreadable_data(_exception(case.failure)),
    ),
    Row(
        "Program",
        "the same failure twice in a row before any progress, or in the same step of three attempts",
        lambda case: _repeated(case),
    ),
    Row("Program", "any other uncaught exception of Python", lambda case: bool(_exception(case.failure))),
    Row("Unknown", "anything else: a signal, an exit code without an exception, a hang", lambda case: True),
)


def _executed(case: Comparison) -> bool:
    return case.has_trained or exec_failure.explain(case.job, case.failure, local=False) is None


def _repeated(case: Comparison) -> bool:
    in_one_step = not was_killed(case.failure) and case.same_step >= SAME_STEP_ATTEMPTS
    return in_one_step or case.twice_before_progress


def _exception(failure: Failure) -> str:
    """Return the line of the uncaught exception of the program; empty without one."""
    if failure.reason not in ("Error", CRASH_LOOP):
        return ""
    words = last_words.last_words(failure.message, failure.exit_code)
    return words.line if words and words.exception and not words.from_launcher else ""


def _of_system(case: Comparison) -> bool:
    line = _exception(case.failure) or (last_words.cause_line(case.failure.message) if _repeated(case) else "")
    if _exception(case.failure) and _OF_NCCL.search(case.failure.message):
        return True
    of_client = patterns.is_of_client(line) and not _OF_REQUEST.match(line)
    return of_client or (_OF_SYSTEM.match(line) or _OF_LIMITS.search(line)) is not None


def judged(job: Job, status: Status, failure: Failure) -> Failure:
    """Return the failure with the verdict of the first row of the table whose evidence it has.

    `status`: of the attempt that failed, before the failure is recorded. An empty one if the attempts before it are not
    to be compared.
    """
    if failure.verdict is not None:
        return failure
    case = Comparison(job, status, failure)
    return replace(failure, verdict=next(row.verdict for row in TABLE if row.holds(case)))
