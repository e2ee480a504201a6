"""Reads what the ranks of a finished run returned or raised, as inpod/call_function.py stored it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from allranks.errors import RankFailed, ResultError


def value_of(results: Path, attempt: int, rank: int = 0) -> Any:
    """What the function returned in this rank. Raises ResultError if it cannot be had."""
    described = _described(results, attempt, rank)
    if described is None:
        raise ResultError(f"the job succeeded, but rank {rank} stored no result")
    kind = described.get("type", "value")
    if problem := described.get("unpicklable"):
        raise ResultError(
            f"the job succeeded, but rank {rank} returned a {kind} that cannot be pickled ({problem}): return numbers, "
            "strings, arrays, or the path of a file"
        )
    try:
        return pickle.loads((_folder(results, attempt) / f"rank-{rank}.pickle").read_bytes())
    except Exception as error:  # unpickling runs code of the objects, which raises anything
        raise ResultError(
            f"the job succeeded, but the {kind} that rank {rank} returned cannot be loaded here: "
            f"{type(error).__name__}: {error}"
        ) from error


def failure_of(results: Path, job: dict[str, Any]) -> RankFailed:
    """The error of the rank that failed first, according to the job's status."""
    status = job.get("status", {})
    failure = status.get("lastFailure") or {}
    attempt, rank = failure.get("attempt", status.get("attempt", 0)), failure.get("rank")
    described = _described(results, attempt, rank) if rank is not None else None
    raised = described if described and described.get("outcome") == "raised" else None
    error = RankFailed(
        _message(job, failure, raised),
        job=job.get("metadata", {}).get("name", ""),
        rank=rank,
        pod=failure.get("pod"),
        node=failure.get("node"),
        exit_code=failure.get("exitCode"),
        signal=failure.get("signal"),
        reason=failure.get("reason") or _condition(status).get("reason", ""),
        traceback=raised["traceback"] if raised else "",
    )
    if raised:
        error.__cause__ = _exception(_folder(results, attempt) / f"rank-{rank}.pickle")
    return error


def _message(job: dict[str, Any], failure: dict[str, Any], raised: dict[str, Any] | None) -> str:
    name = job.get("metadata", {}).get("name", "")
    if not failure:
        condition = _condition(job.get("status", {}))
        return f"{name} failed: {condition.get('message') or condition.get('reason') or 'no reason was recorded'}"
    who = f"rank {failure['rank']}" if failure.get("rank") is not None else failure.get("pod", "a pod")
    if raised:
        return f"{who} of {name} failed first:\n\n{raised['traceback'].rstrip()}"
    how = f"signal {failure['signal']}" if failure.get("signal") else f"exit code {failure.get('exitCode')}"
    reason = failure.get("reason", "Error")
    if reason != "Error":
        how = f"{reason}, {how}"
    lines = str(failure.get("message", "")).rstrip()
    return f"{who} of {name} failed first ({how})" + (f":\n\n{lines}" if lines else "")


def _condition(status: dict[str, Any]) -> dict[str, Any]:
    conditions = status.get("conditions") or []
    return next((item for item in conditions if item.get("type") == "Failed" and item.get("status") == "True"), {})


def _exception(file: Path) -> BaseException | None:
    """The rank's own exception; None if it cannot be loaded here: its traceback is in the message anyway."""
    try:
        loaded = pickle.loads(file.read_bytes())
    except Exception:
        return None
    return loaded if isinstance(loaded, BaseException) else None


def _folder(results: Path, attempt: int) -> Path:
    return results / f"attempt-{attempt}"


def _described(results: Path, attempt: int, rank: int) -> dict[str, Any] | None:
    try:
        read = json.loads((_folder(results, attempt) / f"rank-{rank}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return read if isinstance(read, dict) else None
