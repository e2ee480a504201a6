"""How pods, attempts and jobs ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from allranks.api.job import API_VERSION, KIND
from allranks.api.status import Failure, PastAttempt, Status
from allranks.authoring.yaml_text import without_empty
from allranks.control_sequences import clean
from allranks.core.diagnosis.reasons import cause_line, describe_exit_code, signal_name
from allranks.core.diagnosis.verdict import MEANINGS
from allranks.core.facts.attempt_pods import IN_PLACE
from allranks.core.facts.naming import name_in_attempt, replica_key
from allranks.core.facts.status_summary import remarks
from allranks.fields import encode
from allranks.views.format.duration import elapsed


def resource(name: str, namespace: str, status: Status) -> dict[str, Any]:
    """Return the job with its status, as the API server returns it."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "status": without_empty(encode(status)),
    }


def summary(name: str, status: Status, created: datetime | None, seconds: float, how: str) -> str:
    """Say in one line how a job ended. `seconds` is the duration of a job that has not finished.

    A finished job took the time since its creation, with fetches, the queue, and uploads.
    """
    if created and status.completion_time:
        seconds = (status.completion_time - created).total_seconds()
    took = elapsed(seconds)
    if how == "stopped":
        return f"{name} was interrupted after {took}: all its processes have ended"
    if how == "not started":
        return f"{name} was interrupted after {took}, before its ranks started"
    if how == "suspended":
        return f"{name} is suspended (spec.suspend: true): add --set suspend=false to run it"
    if how == "settled":
        return f"{name} is stuck in {status.phase}: no pod left to run"
    counted, disruptions = status.restarts.counted, status.restarts.disruptions
    ranks = sum(role.desired for role in status.roles.values())
    parts = [f"{ranks} pod{'s' * (ranks != 1)}", f"{counted or 'no'} restart{'s' * (counted != 1)}"]
    if disruptions:
        parts.append(f"{disruptions} disruption{'s' * (disruptions != 1)}")
    failed = status.condition("Failed")
    reason = f": {failed.reason}" if failed and failed.status == "True" else ""
    when = "in" if status.phase == "Succeeded" else "after"
    remark = clean(remarks(status.progress).encode(), colour=False) if status.phase == "Succeeded" else ""
    return f"{name} {status.phase} {when} {took}{reason} ({', '.join(parts)}){f': {remark}' if remark else ''}"


def failure_block(status: Status, logs: Path | None = None) -> Iterator[str]:
    """Yield the reason of the failure, the first rank that failed and its last lines; with `logs` also its log file."""
    failed = status.condition("Failed")
    if failed and failed.status == "True" and failed.message:
        yield clean(failed.message.encode(), colour=False)
    failure = status.last_failure
    if failure is None:
        return
    yield f"First failure: {describe(failure)}"
    yield from (f"  | {clean(line.encode(), colour=False)}" for line in failure.message.splitlines())
    if whose := verdict(failure):
        yield f"Verdict: {whose}"
    if hint := hint_for(failure):
        yield f"Hint: {hint}"
    if logs is not None and (log := _log_of(logs, failure)).exists():
        yield f"Full log: {log}"


def _log_of(logs: Path, failure: Failure) -> Path:
    """Return the log of the attempt that failed: pods in which attempts restarted have a log for each."""
    name = name_in_attempt(failure.pod, failure.role, failure.index, failure.attempt)
    log = logs / f"{name}.log"
    return log if log.exists() else logs / f"{failure.pod}.log"


def verdict(failure: Failure) -> str:
    """Say whose fault it is: `Node (the node of the pod, or one of its devices)`; empty if the status does not."""
    return f"{failure.verdict} ({MEANINGS[failure.verdict]})" if failure.verdict else ""


def next_begin(past: PastAttempt) -> str:
    """Say how the attempt after this one began: `same pods`, or `new pods: worker-1 has no pod`; empty if the status
    does not."""
    if past.how is None:
        return ""
    reason = f": {past.why_new_pods}" if past.why_new_pods else ""
    return "same pods" if past.how == IN_PLACE else f"new pods{reason}"


def last_begin(status: Status) -> str:
    """Return the end of a sentence about the last restart: `, the last one: same pods`; empty if it is not recorded."""
    begin = next_begin(status.history[-1]) if status.history else ""
    return f", the last one: {begin}" if begin else ""


def hint_for(failure: Failure) -> str:
    """Say what to change, if the line that ended the program is a frequent mistake; otherwise empty."""
    line = cause_line(failure)
    return next((hint for pattern, hint in _HINTS if pattern.search(line)), "")


_HINTS = (
    (
        re.compile(r"^EOFError: EOF when reading a line$"),
        "the standard input of a rank is always empty; pass values as arguments or environment variables instead of "
        "input()",
    ),
    (
        re.compile(r"^bdb\.BdbQuit$"),
        "ranks have no terminal, so breakpoint() ends them; allranks debug opens a shell beside a rank",
    ),
    (
        re.compile(r"Unable to find (?:address|interface) for: |[Nn]o socket interface found"),
        "the pod has no such network interface with an address; GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME of the job or "
        "of its pool chooses it",
    ),
)
"""(pattern of the line that ended a program, what to change)."""


def describe(failure: Failure) -> str:
    """Write replica, rank, attempt, duration and reason in one line."""
    rank = "" if failure.rank is None else f" (rank {failure.rank})"
    how = ended_how(failure.exit_code, failure.signal, failure.reason)
    ran = "" if failure.ran_seconds is None else f", after {elapsed(failure.ran_seconds)}"
    who = f"{replica_key(failure.role, failure.index)}{rank}" if failure.role else "no rank is named:"
    return f"{who} in attempt {failure.attempt}{ran}: {how}"


def failure_line(failure: Failure) -> str:
    """Write replica, attempt, reason and the last line of its log in one line."""
    reason = ended_how(failure.exit_code, failure.signal, failure.reason)
    who = replica_key(failure.role, failure.index) if failure.role else "no rank is named:"
    line = f"{who} in attempt {failure.attempt}: {reason}"
    if failure.signal is not None:
        return line  # the last line of the log does not explain a signal
    last = cause_line(failure)
    return line + (f": {clean(last.encode(), colour=False)}" if last else "")


def ended_how(exit_code: int | None, signal: int | None, reason: str) -> str:
    """Write `exit code 1`, `exit code 139, the code of SIGSEGV`, `signal 9 (SIGKILL)`, `OOMKilled`."""
    if exit_code is None and signal is None:
        return reason
    if signal is not None:
        name = signal_name(signal)
        text = f"signal {signal} ({name})" if name.startswith("SIG") else name
    else:
        assert exit_code is not None
        text = describe_exit_code(exit_code)
    return text if reason in ("Error", "") else f"{reason}, {text}"
