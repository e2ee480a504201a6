"""Changes the size of a job: on request, or because of the room in the cluster."""

from __future__ import annotations

from datetime import datetime

from allranks.core import checkpoints, transitions
from allranks.core.beginning import reject
from allranks.core.diagnosis import elasticity
from allranks.core.facts import topology
from allranks.core.facts.model import Event
from allranks.core.outcomes import Outcome, WaitUntil, write
from allranks.core.snapshot import Snapshot


def reject_resize(snapshot: Snapshot) -> Outcome:
    """Fail a job whose new size is not valid or not allowed, before a restart for another reason applies the size."""
    job, status = snapshot.observed.job, snapshot.current
    if elasticity.can_resize_in_place(job, status) or topology.wanted_sizes(job) == topology.sizes(job, status):
        return None
    return reject(job, snapshot.summarised, snapshot.observed.now, snapshot.observed.platform)


def resize_to_spec(snapshot: Snapshot) -> Outcome:
    """Apply a changed number of replicas: in place where the ranks can absorb it, else with a restart."""
    job, status, now = snapshot.observed.job, snapshot.current, snapshot.observed.now
    requested, present = topology.wanted_sizes(job), topology.sizes(job, status)
    if elasticity.can_resize_in_place(job, status):
        resized = elasticity.set_desired_workers(job, status, now)
        before, after = sum(present.values()), sum(requested.values())
        return write(resized, Event("Resized", f"from {before} to {after} pods")) if resized != status else None
    if requested == present:
        return None
    reason = "the size changed"
    if wait := checkpoints.ask_first(snapshot, "Resized", "the job restarts at another size"):
        return wait
    restarted = transitions.restart_on_request(job, status, "Resized", reason, now)
    return write(restarted, Event("Resized", f"{reason}: a new attempt begins{checkpoints.result(snapshot)}"))


def shrink_to_capacity(snapshot: Snapshot) -> Outcome:
    """Restart an elastic job with fewer workers when the others found no room until the deadline."""
    job, status, now = snapshot.observed.job, snapshot.current, snapshot.observed.now
    deadline = elasticity.shrink_deadline(job, status, snapshot.outdated, now)
    if deadline is None:
        return None
    if now < deadline:
        return WaitUntil(deadline)
    refused = {rejection.name for rejection in snapshot.observed.refused}
    unsettled = [r for r in snapshot.replicas if not snapshot.settled(r.role, r.index)]
    room = elasticity.shrink_target(job, status, unsettled, snapshot.pods, refused)
    return None if room is None else _resize_to_capacity(snapshot, room, "Shrunk")


def grow_to_capacity(snapshot: Snapshot) -> Outcome:
    """Restart an elastic job with more workers when placeholders found room for them."""
    target = elasticity.grow_target(snapshot.current, snapshot.placeholders.values(), snapshot.observed.now)
    if isinstance(target, datetime):
        return WaitUntil(target)
    if target is None:
        return None
    wait = checkpoints.ask_first(snapshot, "Grown", "the job restarts with more workers")
    return wait or _resize_to_capacity(snapshot, target, "Grown")


def _resize_to_capacity(snapshot: Snapshot, room: int, reason: str) -> Outcome:
    job, status, now = snapshot.observed.job, snapshot.current, snapshot.observed.now
    message = f"there is room for {room} of {topology.wanted_sizes(job)[topology.ELASTIC_ROLE]} workers"
    fitted = elasticity.fit_workers(job, status, room)
    restarted = transitions.restart_on_request(job, fitted, reason, message, now)
    return write(restarted, Event(reason, f"{message}: a new attempt begins{checkpoints.result(snapshot)}"))
