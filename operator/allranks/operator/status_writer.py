"""Classifies status changes: decisions are written immediately, observations are debounced."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from allranks.api.status import FINISHED, Status
from allranks.core.facts.model import Manifest, Observed, Plan
from allranks.kube import job_codec
from allranks.kube.errors import ApiError
from allranks.kube.merge_patch import diff
from allranks.operator.apply import Executor, unwritten_field
from allranks.operator.cache import JobCache, JobKey
from allranks.operator.job_state import WriteState
from allranks.operator.timing import Clock, Timing


class FieldDropped(ApiError):
    """The API server did not store a field. `stored` says whether it stored the rest just now."""

    def __init__(self, path: str, stored: bool) -> None:
        super().__init__(f"{path} was dropped: the CustomResourceDefinitions are older than the operator")
        self.stored = stored


class StatusWriter:
    """Writes statuses with optimistic concurrency and keeps `jobs` up to date with the responses."""

    def __init__(self, executor: Executor, jobs: JobCache, timing: Timing, clock: Clock) -> None:
        self._executor, self._jobs, self._timing, self._clock = executor, jobs, timing, clock

    def postpone(self, state: WriteState, observed: Observed, plan: Plan) -> bool:
        """Set `state.due` and return True if the status can wait for further changes of its kind."""
        assert plan.next is not None
        now, timing = self._clock.monotonic(), self._timing
        due = state.written_at + timing.status_min_interval
        if plan.write_ahead:
            if not is_deferrable(observed, plan):
                return False
            due = self._counts_due(state, now)
        elif without_progress(observed.persisted) == without_progress(plan.next):
            due = state.written_at + timing.progress_min_interval
        elif significant_fields(observed.persisted) == significant_fields(plan.next):
            due = self._counts_due(state, now)
        if due <= now:
            return False
        state.due = due
        return True

    def _counts_due(self, state: WriteState, now: float) -> float:
        state.counts_since = now if state.counts_since is None else state.counts_since
        timing = self._timing
        return max(state.written_at + timing.counts_min_interval, state.counts_since + timing.counts_debounce)

    async def write(self, key: JobKey, raw: Manifest, state: WriteState, status: Status) -> bool:
        """Return False if the job changed in the meantime or is gone. Raises FieldDropped and other ApiErrors."""
        planned = job_codec.encode(status)
        last, state.last = state.last, None
        if last and last[0] != raw["metadata"]["resourceVersion"] and last[1] != _hash(raw):
            state.foreign += 1
        written = await self._executor.status(raw, planned)
        if written is None:
            written = await self.read_again(key, raw)
            if written is None or diff(written.get("status") or {}, planned):
                return False
            # Our own write succeeded and only its response was lost.
        elif field := unwritten_field(diff(written.get("status") or {}, planned)):
            stored = written["metadata"]["resourceVersion"] != raw["metadata"]["resourceVersion"]
            self._jobs.upsert(written)
            raise FieldDropped(f"status.{field}", stored)
        state.written_at, state.counts_since = self._clock.monotonic(), None
        state.last = written["metadata"]["resourceVersion"], _hash(written)
        self._jobs.upsert(written)
        return True

    async def read_again(self, key: JobKey, raw: Manifest) -> Manifest | None:
        """Read the job after a conflict. Return None if this one no longer exists."""
        current = await self._executor.read(*key)
        if current is None:
            self._jobs.forget(key)
            return None
        self._jobs.upsert(current)
        return current if current["metadata"]["uid"] == raw["metadata"]["uid"] else None


def _hash(raw: Manifest) -> int:
    return hash(json.dumps(raw.get("status"), sort_keys=True))


def is_deferrable(observed: Observed, plan: Plan) -> bool:
    """Return whether a decision may wait. Ranks end at about the same time: success waits for those that still run, and
    so do later pod counts, since the result is already persisted. Every other decision is written immediately."""
    if observed.persisted.phase in FINISHED:
        return True
    assert plan.next is not None
    current = observed.persisted.pod_attempt
    return plan.next.phase == "Succeeded" and any(
        pod.phase == "Running" and not pod.ended and pod.attempt == current and not pod.termination_requested_at
        for pod in observed.pods
    )


def significant_fields(status: Status) -> Any:
    """Return the status without pod counts and `launched`, for comparison."""
    conditions = [(c.type, c.status, "" if c.reason in _STARTING else c.reason) for c in status.conditions]
    counted = replace(status, roles={}, ready="", launched=False, selector="", conditions=[], done={})
    return conditions, _strip_progress(counted)


def without_progress(status: Status) -> Any:
    """Return the status without progress and without durations that can be derived, for comparison."""
    return status.times and status.times.category, _strip_progress(status)


def _strip_progress(status: Status) -> Status:
    return replace(status, progress=None, times=None, goodput=None, cost=None)


_STARTING = frozenset({"Created", "Resumed", "Admitted", "PodsPending"})
"""Reasons that only say that not all pods run yet."""
