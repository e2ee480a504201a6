"""Reasons of failures: which of them are outside of the program, what exit codes mean, and a failure in one line."""

from __future__ import annotations

from allranks.api.status import Because, Failure
from allranks.core.diagnosis import last_words
from allranks.core.facts import naming
from allranks.core.facts.model import FETCH_FAILED, UNKNOWN_END

DISRUPTIONS: dict[str, str] = {
    "PreemptionByScheduler": "Preempted",
    "DeletionByTaintManager": "NodeLost",
    "EvictionByEvictionAPI": "Evicted",
    "TerminationByKubelet": "Evicted",
    "DeletionByPodGC": "NodeLost",
}
"""Reason of the pod condition `DisruptionTarget` -> reason of the failure."""

CANNOT_START = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of container runtimes: the container was created, and its program was not executed. Its exit code, mostly
128, is the runtime's."""
REJECTIONS = frozenset(
    {"NodeShutdown", "UnexpectedAdmissionError", "NodeAffinity", "NodeName", "NodePorts", "TaintToleration"}
    | {"TopologyAffinityError", "SMTAlignmentError", "InvalidNodeInfo", "VolumeAttachmentLimitExceeded"}
)
"""`status.reason` of pods that the kubelet of their node rejects, besides OutOf... (OutOfcpu, OutOfnvidia.com/gpu)."""


def is_rejection(reason: str) -> bool:
    """Return whether the kubelet rejected the pod at admission."""
    return reason in REJECTIONS or reason.startswith("OutOf")


LOST_PEER: Because = "LostPeer"
_STARTING = "NotStarted", "had not started when another rank gave up"
_UNHEALTHY = "HardwareUnhealthy", "had unhealthy hardware when another rank lost it"
_PREFLIGHT = "PreflightFailed", "did not pass the preflight of its node"
OF_OTHERS: dict[Because, tuple[str, str]] = {
    "NeverWhole": _STARTING,
    "PodRefused": _STARTING,
    "NotJoined": ("NotJoined", "had not joined the group when another rank gave up"),
    "Absent": ("Absent", "had not come to a collective when another rank gave up"),
    "CompletedEarly": ("CompletedEarly", "completed before the other ranks"),
    "DeviceUnhealthy": _UNHEALTHY,
    "NodeUnhealthy": _UNHEALTHY,
    "PreflightFailed": _PREFLIGHT,
}
"""Evidence against a replica, mostly of other ranks that lost it -> the reason of its failure, and what it did, for a
sentence."""

UNCOUNTED = frozenset(
    {*DISRUPTIONS.values(), *REJECTIONS, "Deleted", "Disrupted", UNKNOWN_END, FETCH_FAILED}
    | {_STARTING[0], _UNHEALTHY[0], _PREFLIGHT[0]}
)
"""Reasons outside of the program: such restarts do not count against maxRestarts."""


def is_uncounted(reason: str) -> bool:
    return reason in UNCOUNTED or is_rejection(reason)


# --- exit codes -------------------------------------------------------------------------------------------------------

# Lists of words read better without quotes.
# ruff: noqa: SIM905
_NAMES = (
    "SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV SIGUSR2 SIGPIPE SIGALRM "
    "SIGTERM SIGSTKFLT SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGXCPU SIGXFSZ SIGVTALRM SIGPROF "
    "SIGWINCH SIGIO SIGPWR SIGSYS"
).split()
"""The signals of Linux on x86 and ARM, from number 1: ranks of a cluster run there, wherever this code runs."""
FAULTS = frozenset(_NAMES.index(name) + 1 for name in "SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGSEGV SIGSYS".split())
"""Signals that a process causes by what it does itself."""
SIGKILL = 9
SIGTERM = 15


def possible_signal(exit_code: int | None, signal: int | None) -> int | None:
    """Return the signal that ended the program (`signal`), or the signal for which its exit code may stand."""
    if signal is not None or exit_code is None:
        return signal
    return exit_code - 128 if 128 < exit_code <= 128 + 64 else None


def was_killed(failure: Failure) -> bool:
    """Return whether SIGKILL ended the program, as far as its exit code says."""
    return possible_signal(failure.exit_code, failure.signal) == SIGKILL


def signal_name(number: int) -> str:
    """Return `SIGKILL`, or `signal 40` for one without a name."""
    return _NAMES[number - 1] if 1 <= number <= len(_NAMES) else f"signal {number}"


def describe_exit_code(exit_code: int) -> str:
    """Return the exit code as text: `exit code 1`, `exit code 139, the code of SIGSEGV`.

    Other codes above 128 rarely stand for a signal: the first process of a container ignores most signals, and programs
    ask for a restart with 138.
    """
    number = possible_signal(exit_code, None)
    if number in {SIGKILL, *FAULTS} and number:
        return f"exit code {exit_code}, the code of {signal_name(number)}"
    if (child := 256 - exit_code) in {SIGKILL, *FAULTS}:
        often = ", often for memory" if child == SIGKILL else ""
        return f"exit code {exit_code}, -{child} of a launcher whose child was ended by {signal_name(child)}{often}"
    return f"exit code {exit_code}"


# --- a failure in one line --------------------------------------------------------------------------------------------


def cause_line(failure: Failure) -> str:
    """Return the line of the failure's output that says what ended the program; empty without output."""
    return last_words.cause_line(failure.message, failure.exit_code)


_SENTENCES = dict(OF_OTHERS.values())


def describe_failure(failure: Failure) -> str:
    """Return the failure in one line: `worker-1 failed with exit code 1 (Error)`."""
    if not failure.role and failure.reason in ("Hang", "NoFirstStep"):
        return f"the ranks made no progress ({failure.reason})"
    if not failure.role and failure.exit_code is None and failure.message:
        return f"{cause_line(failure)} ({failure.reason})"
    who = naming.replica_key(failure.role, failure.index) if failure.role else "a pod"
    if is_rejection(failure.reason):
        return f"{who} was rejected by its node ({failure.reason})"
    if failure.reason == FETCH_FAILED:
        return f"{who} could not fetch its inputs ({failure.reason})"
    if failure.reason in _SENTENCES:
        return f"{who} {_SENTENCES[failure.reason]} ({failure.reason})"
    if failure.reason in UNCOUNTED:
        return f"{who} was lost ({failure.reason})"
    if failure.reason in CANNOT_START:
        return f"{who} could not be started ({failure.reason})"
    if failure.signal is not None:
        return f"{who} was ended by signal {failure.signal} ({failure.reason})"
    if failure.exit_code is None:
        return f"{who} failed ({failure.reason})"
    return f"{who} failed with {describe_exit_code(failure.exit_code)} ({failure.reason})"
