"""Decodes jobs from JSON, and encodes their status.

Strict, for the operator: a job that does not decode was stored under an older or newer schema; the operator marks it
and continues with the others. Only unknown fields of status are left out, as the API server does with an older CRD.
Lenient, for the command line: shows what it can of a job of a newer version.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from allranks import fields
from allranks.api import validation
from allranks.api.job import Job, Metadata, Spec
from allranks.api.status import FINISHED, ReplicaRestarts, RestartCounts, RestartedIndexes, Status
from allranks.api.validation import drop
from allranks.core.facts import naming, topology
from allranks.core.facts.model import Manifest, Pod
from allranks.core.facts.naming import NO_RANKS, controller_of, replica_key
from allranks.core.facts.restarts import MAX_DETAILED
from allranks.errors import InvalidManifest

T = TypeVar("T")
_MESSAGE = 4096


class DecodeError(Exception):
    """`str()` is a sentence with the paths of the fields."""


def job(manifest: Manifest) -> Job:
    """Decode a job. Raises DecodeError."""
    if wrong := [": ".join(problem) for problem in validation.unbounded(manifest.get("spec"))]:
        raise DecodeError("; ".join(wrong))
    try:
        return _job(manifest)
    except ValidationError as error:
        raise DecodeError(_sentence(manifest, error)) from error


def status(manifest: Manifest) -> Status:
    """Decode the status. Unknown fields are left out, so that an older operator can replace a newer one. Raises
    DecodeError."""
    try:
        return unfold_restarts(without_unknown_fields(_status, manifest.get("status") or {}))
    except ValidationError as error:
        raise DecodeError(_paths("status", error)) from error
    except ValueError as error:
        raise DecodeError(f"status.restartedIndexes: {error}") from error


def without_unknown_fields(validate: Callable[[Any], T], raw: Any) -> T:
    """Validate a status, without its unknown fields if it has some. Raises ValidationError."""
    try:
        return validate(raw)
    except ValidationError as error:
        unknown = [d["loc"] for d in error.errors(include_url=False) if d["type"] == "unexpected_keyword_argument"]
        if not unknown:
            raise
    stripped = copy.deepcopy(raw)
    for path in unknown:
        drop(stripped, path)
    return validate(stripped)


def encode(status: Status) -> Manifest:
    out = fields.encode(fold_restarts(status))
    return {**out, _SUMMARY: restart_summary(status.restarts)}


_SUMMARY = "restartSummary"
"""Derived from the counts, so it is written and never read."""


def restart_summary(restarts: RestartCounts) -> str:
    """Return all restarts, and the number that disruptions caused: `3 (1 disrupted)`."""
    disrupted = f" ({restarts.disruptions} disrupted)" if restarts.disruptions else ""
    return f"{restarts.counted + restarts.disruptions}{disrupted}"


def _job(manifest: Manifest) -> Job:
    metadata = Metadata.model_validate(manifest["metadata"], by_alias=True, by_name=False)
    return Job(metadata=metadata, spec=Spec.model_validate(manifest.get("spec"), by_alias=True, by_name=False))


def _status(stored: Any) -> Status:
    if isinstance(stored, dict) and _SUMMARY in stored:
        stored = {name: value for name, value in stored.items() if name != _SUMMARY}
    return fields.decode(Status, stored)


def invalid_spec_patch(manifest: Manifest, message: str, now: datetime, reason: str = "InvalidSpec") -> Manifest | None:
    """Return the merge patch of the status of a job that cannot be decoded or evaluated; None if nothing changes.

    A job that has not started fails, unless the reason is another than InvalidSpec. One that runs continues. Both get a
    condition with the reason.
    """
    before = manifest.get("status")
    before = before if isinstance(before, dict) else {}
    if str(before.get("phase")) in FINISHED:
        return None
    fails = reason == "InvalidSpec" and not before.get("startTime")
    kind = "Failed" if fails else "Running"
    old: Manifest = next((c for c in _conditions(before) if c.get("type") == kind), {})
    state = "True" if fails else old.get("status", "Unknown")
    at = now.isoformat().replace("+00:00", "Z")
    condition = {
        "type": kind,
        "status": state,
        "reason": reason,
        "message": shortened(message),
        "lastTransitionTime": old.get("lastTransitionTime", at) if old.get("status") == state else at,
        "observedGeneration": manifest["metadata"].get("generation", 0),
    }
    if old == condition:
        return None
    change: dict[str, Any] = {"conditions": [*(c for c in _conditions(before) if c.get("type") != kind), condition]}
    if fails:
        change |= {"phase": "Failed", "startTime": at, "completionTime": at}
    return change


def marks(manifest: Manifest) -> list[tuple[Any, Any]]:
    """Return reason and message of each condition of the job."""
    status = manifest.get("status")
    return [(c.get("reason"), c.get("message")) for c in _conditions(status if isinstance(status, dict) else {})]


def shortened(message: str) -> str:
    """Return a message that fits into a condition, without control sequences."""
    return fields.printable(message)[:_MESSAGE]


def _conditions(status: Manifest) -> list[Manifest]:
    conditions = status.get("conditions")
    return [c for c in conditions if isinstance(c, dict)] if isinstance(conditions, list) else []


def _sentence(manifest: Manifest, error: ValidationError) -> str:
    metadata = {"name": manifest["metadata"]["name"]}
    try:
        validation.parse({**manifest, "metadata": metadata, "spec": manifest.get("spec")}, stored=True)
    except InvalidManifest as invalid:
        return "; ".join(str(invalid).splitlines())
    except Exception:  # validation may fail in other ways on an unexpected shape
        return _paths("", error)
    return _paths("", error)


def _paths(root: str, error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in (root, *detail['loc']) if part != '')}: {detail['msg']}"
        for detail in error.errors(include_url=False)[:8]
    )


# --- compact restarts ------------------------------------------------------------------------------------------------
# In memory, all restarted replicas are in `replica_restarts`. The stored status has a compact form of them, so that the
# status of the largest job fits into etcd.


def fold_restarts(status: Status) -> Status:
    """Return the status to store. Nothing is lost: replicas with a recorded failure, and those that restarted in their
    pods, keep their own entries, and so do all replicas if they are few."""
    if len(status.replica_restarts) <= MAX_DETAILED:
        return status
    entries: dict[str, ReplicaRestarts] = {}
    by_role: dict[str, list[tuple[int, ReplicaRestarts]]] = defaultdict(list)
    for key, entry in status.replica_restarts.items():
        if entry.failure or entry.counted or entry.in_pod:
            entries[key] = entry
        else:
            role, _, index = key.rpartition("-")
            by_role[role].append((int(index), entry))
    compact = {
        role: _fold_role(sorted(replicas, key=lambda replica: replica[0])) for role, replicas in sorted(by_role.items())
    }
    return replace(status, replica_restarts=entries, restarted_indexes=compact)


def _fold_role(entries: list[tuple[int, ReplicaRestarts]]) -> RestartedIndexes:
    counts, times = defaultdict[int, list[int]](list), defaultdict[datetime, list[int]](list)
    idle = defaultdict[int, list[int]](list)
    for index, entry in entries:
        counts[entry.count].append(index)
        if entry.restart_time:
            times[entry.restart_time].append(index)
        if entry.without_progress:
            idle[entry.without_progress].append(index)
    return RestartedIndexes(
        counts={str(count): naming.encode_indices(counts[count]) for count in sorted(counts)},
        unlaunched=naming.encode_indices(index for index, entry in entries if not entry.launched),
        without_progress={str(count): naming.encode_indices(idle[count]) for count in sorted(idle)},
        restart_times={
            time.isoformat().replace("+00:00", "Z"): naming.encode_indices(times[time]) for time in sorted(times)
        },
    )


def unfold_restarts(status: Status) -> Status:
    """Return the stored status with an entry for each restarted replica. Raises ValueError."""
    if not status.restarted_indexes:
        return status
    entries = {
        naming.replica_key(role, index): entry
        for role, compact in status.restarted_indexes.items()
        for index, entry in _unfold_role(compact)
    }
    restarts = entries | status.replica_restarts
    return replace(status, replica_restarts=restarts, restarted_indexes=None)


def _unfold_role(compact: RestartedIndexes) -> Iterator[tuple[int, ReplicaRestarts]]:
    unlaunched = naming.decode_indices(compact.unlaunched)
    times = {
        index: datetime.fromisoformat(time)
        for time, indexes in compact.restart_times.items()
        for index in naming.decode_indices(indexes)
    }
    idle = {
        index: int(count)
        for count, indexes in compact.without_progress.items()
        for index in naming.decode_indices(indexes)
    }
    for count, indexes in compact.counts.items():
        for index in sorted(naming.decode_indices(indexes)):
            launched = index not in unlaunched
            restarts = ReplicaRestarts(
                count=int(count),
                launched=launched,
                restart_time=times.get(index),
                without_progress=idle.get(index),
            )
            yield index, fields.validated(restarts)


# --- lenient ---------------------------------------------------------------------------------------------------------


def status_of(job: Manifest) -> Status:
    """Decode the status without the parts that this version cannot decode, such as fields of a newer operator."""
    raw = job.get("status") or {}
    for _ in range(20):
        try:
            return unfold_restarts(_status(raw))
        except ValidationError as error:
            # From the end, because list items shift.
            wrong: list[tuple[int | str, ...]] = [detail["loc"] for detail in reversed(error.errors(include_url=False))]
        except ValueError:
            wrong = [("restartedIndexes",)]
        raw = copy.deepcopy(raw)  # only now: most callers decode at once, and the UI decodes a hundred statuses
        for path in wrong:
            drop(raw, path)
    return Status()


def job_of(job: Manifest) -> Job | None:
    """Decode a job. Return None if this version cannot decode its spec."""
    try:
        return _job(job)
    except ValidationError:
        return None


def pods_of(job: Manifest, pods: Iterable[Manifest]) -> list[Pod]:
    """Return the pods that the job owns, by attempt, then rank. Without placeholders and transfers."""
    import msgspec  # not installed everywhere: `allranks run` does without

    from allranks.kube.pod_codec import pod
    from allranks.kube.raw_pod import Raw

    uid = job["metadata"]["uid"]
    decoded = (pod(msgspec.convert(manifest, Raw)) for manifest in pods if controller_of(manifest).get("uid") == uid)
    return by_rank(job, decoded)


def by_rank(job: Manifest, pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods of ranks, by attempt, then rank. Without placeholders and transfers.

    Pods of an earlier attempt in which the current one runs have the current number.
    """
    places = {key: place for place, key in enumerate(ranks_of(job))}
    state = job.get("status") or {}
    kept, current = state.get("podsOfAttempt"), state.get("attempt", 0)
    ranks = (
        replace(candidate, attempt=current) if candidate.attempt == kept else candidate
        for candidate in pods
        if candidate.role not in NO_RANKS
    )
    return sorted(
        ranks,
        key=lambda pod: (pod.attempt, places.get(replica_key(pod.role, pod.index), 1 << 30), pod.name),
    )


def ranks_of(job: Manifest) -> dict[str, int | None]:
    """Return the (node) rank of each replica, by rank; None for a replica without one, such as a parameter server."""
    parsed = job_of(job)
    if parsed is None:
        return {}
    return {replica_key(r.role, r.index): r.node_rank for r in topology.replicas(parsed, status_of(job))}
