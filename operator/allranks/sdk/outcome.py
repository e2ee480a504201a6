"""The outcome that a rank stored (inpod/call_function.py): the value of its function, or an error.

A value that is too large to be sent back is a file in an output of the job.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from allranks.errors import AllranksError, CannotRun, RankFailed, ResultError
from allranks.inpod import plain_value
from allranks.kube.cluster import Manifest

RESULTS = "results"
"""An output of this name holds the values of every size, so that it is never empty."""
Outputs = Mapping[str, str | Mapping[str, Any]]


class Stored(NamedTuple):
    """The record that a rank stored of its call."""

    described: dict[str, Any]
    data: bytes = b""
    """A pickle of the value or the exception, or the plain value (inpod/plain_value.py); empty if there is none."""
    content: bytes = b""
    """What a rank of a job on a cluster sent; empty for a file."""


def read_files(results: Path, attempt: int, rank: int) -> Stored | None:
    """Read the outcome of a rank from the directory of a local run; None if there is none."""
    folder = results / f"attempt-{attempt}"
    try:
        described = json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    file = folder / f"rank-{rank}.pickle"
    return Stored(described, file.read_bytes() if file.exists() else b"") if isinstance(described, dict) else None


def read_content(content: bytes) -> Stored | None:
    """Parse the content that a rank sent: a line of JSON, then the pickle. Return None if it is malformed."""
    line, _, data = content.partition(b"\n")
    try:
        described = json.loads(line)
    except ValueError:
        return None
    return Stored(described, data, content) if isinstance(described, dict) else None


def value_of(stored: Stored | None, rank: int = 0, claim: str = "", address: str = "", refusal: str = "") -> Any:
    """Return what the function returned in this rank. Raises ResultError if the value cannot be had.

    For messages: `claim` names the job's checkpoints, `address` the pickle in an output. `refusal`: why a pickle must
    not be loaded.
    """
    if stored is None:
        raise ResultError(f"the job succeeded, but rank {rank} stored no result")
    described = stored.described
    kind = described.get("type", "value")
    if problem := described.get("unpicklable"):
        raise ResultError(
            f"the job succeeded, but rank {rank} returned a {kind} that cannot be pickled ({problem}): return numbers, "
            "strings, arrays, or the path of a file"
        )
    if size := described.get("bytes"):
        raise ResultError(_too_large(described, rank, kind, size, claim, address))
    is_plain = described.get("format") == "plain"
    if refusal and not is_plain:
        raise ResultError(f"the job succeeded, but the {kind} that rank {rank} returned is not loaded: {refusal}")
    try:
        return plain_value.decoded(stored.data) if is_plain else pickle.loads(stored.data)
    except Exception as error:  # unpickling runs code of the objects, which raises anything
        raise ResultError(
            f"the job succeeded, but the {kind} that rank {rank} returned cannot be loaded here: "
            f"{type(error).__name__}: {error}"
        ) from error


def _too_large(described: dict[str, Any], rank: int, kind: str, size: int, claim: str, address: str) -> str:
    value = f"rank {rank} returned a {kind} of {size:,} bytes, and at most {described.get('most', 0):,} are sent back"
    if address:
        problem = described.get("notFetched")
        return f"{value}: it is the pickle {address}" + (f", which cannot be read here: {problem}" if problem else "")
    if file := described.get("file"):
        where = f" ({claim})" if claim else ""
        return f"{value}: it is the pickle {file} in the place of the job's checkpoints{where}"
    if problem := described.get("notWritten"):
        return f"{value}, and it could not be written to the place of the job's checkpoints or outputs: {problem}"
    cure = "save it in the function, and return its path; with checkpoint= or outputs= the job has a place for it"
    return f"{value}: {cure}"


def failure_of(job: dict[str, Any], stored: Stored | None, refusal: str = "") -> AllranksError:
    """Return the error of a failed job. `stored`: the outcome of the rank that `first_failure` names; `refusal`: why a
    pickle must not be loaded."""
    status = job.get("status") or {}
    failure = status.get("lastFailure") or {}
    described = stored.described if stored else {}
    if described.get("outcome") == "unusable":
        return CannotRun(str(described.get("message")))
    raised = described if described.get("outcome") == "raised" else None
    cause, lost = _exception(stored, refusal) if raised and stored else (None, "")
    error = RankFailed(
        _message(job, failure, raised) + (f"\n\n{lost}" if lost else ""),
        job=job.get("metadata", {}).get("name", ""),
        rank=failure.get("rank"),
        pod=failure.get("pod"),
        node=failure.get("node"),
        exit_code=failure.get("exitCode"),
        signal=failure.get("signal"),
        reason=failure.get("reason") or _condition(status).get("reason", ""),
        traceback=raised["traceback"] if raised else "",
    )
    error.__cause__ = cause
    return error


def first_failure(job: dict[str, Any]) -> tuple[int, int | None, str]:
    """Return (attempt, rank, pod) of the first failure of a failed job."""
    status = job.get("status") or {}
    failure = status.get("lastFailure") or {}
    return failure.get("attempt", status.get("attempt", 0)), failure.get("rank"), failure.get("pod", "")


def _message(job: dict[str, Any], failure: dict[str, Any], raised: dict[str, Any] | None) -> str:
    name = job.get("metadata", {}).get("name", "")
    if not failure:
        condition = _condition(job.get("status") or {})
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


def _exception(stored: Stored, refusal: str) -> tuple[BaseException | None, str]:
    """Return the exception of the rank, or None and a sentence that says why it is missing."""
    subject = f"the exception itself, {stored.described.get('type') or 'of the function'}, "
    if problem := stored.described.get("unpicklable"):
        return None, f"{subject}cannot be pickled ({problem})"
    if not stored.data:
        return None, f"{subject}is too large to be sent back"
    if refusal:
        return None, f"{subject}is not loaded: {refusal}"
    try:
        loaded = pickle.loads(stored.data)
    except Exception as error:  # unpickling runs code of the objects, which raises anything
        return None, f"{subject}cannot be loaded here ({type(error).__name__}: {error})"
    if isinstance(loaded, BaseException):
        return loaded, ""
    return None, f"{subject}was loaded as {type(loaded).__name__}"


# --- values in outputs ------------------------------------------------------------------------------------------------


def outputs(addresses: Outputs) -> list[dict[str, Any]]:
    """Return the value of `spec.outputs`. Raises ValueError."""
    return list(_entries(addresses))


def _entries(addresses: Outputs) -> Iterator[dict[str, Any]]:
    for name, entry in addresses.items():
        fields = {"to": entry} if isinstance(entry, str) else dict(entry)
        if not isinstance(fields.get("to"), str):
            raise ValueError(f"outputs[{name!r}]: must be an address such as s3://BUCKET/PREFIX, or fields with 'to'")
        yield {"name": name, "path": f"/outputs/{name}", **fields}


def arguments(addresses: Outputs) -> list[str]:
    """Return the options of the program that calls the function: where it writes values that are too large."""
    if not addresses:
        return []
    chosen = _for_values(outputs(addresses))
    return ["--output", chosen["path"], *(["--keep"] if chosen["name"] == RESULTS else [])]


def _for_values(entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next((entry for entry in entries if entry["name"] == RESULTS), entries[0])


def address_of(job: Manifest, stored: Stored) -> str:
    """Return the address of the value after the upload, if the rank wrote it to an output; otherwise empty."""
    name, entries = stored.described.get("inOutput"), (job.get("spec") or {}).get("outputs")
    return f"{str(_for_values(entries)['to']).rstrip('/')}/{name}" if name and entries else ""


def fetched(stored: Stored, address: str) -> Stored:
    """Read the pickle from an object store, and return the outcome with it.

    If this machine cannot read the pickle, or its checksum differs, the description says so: a pickle runs code when it
    is loaded.
    """
    from allranks.data.object_source import PACKAGES, filesystem

    scheme, _, path = address.partition("://")
    if scheme not in PACKAGES:
        return stored
    try:
        data = filesystem(address).cat_file(path)
    except Exception as error:  # of fsspec and the client of the store
        return not_fetched(stored, str(error) or type(error).__name__)
    if hashlib.sha256(data).hexdigest() != stored.described.get("sha256"):
        return not_fetched(stored, "it is not what the rank wrote")
    kept = {key: value for key, value in stored.described.items() if key != "bytes"}
    return Stored(kept, data)


def not_fetched(stored: Stored, reason: str) -> Stored:
    return Stored({**stored.described, "notFetched": reason}, stored.data)
