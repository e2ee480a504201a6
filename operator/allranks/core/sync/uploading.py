"""A job whose program has completed and whose outputs are uploaded."""

from __future__ import annotations

from allranks.api.status import Status
from allranks.core.facts import topology
from allranks.core.facts.model import Plan, Pod
from allranks.core.facts.status_summary import with_phase
from allranks.core.facts.status_update import changed
from allranks.core.facts.topology import CLEANUP_GRACE
from allranks.core.snapshot import Snapshot
from allranks.core.sync.plans import plan_objects
from allranks.core.transfers import outputs
from allranks.core.transfers import pods as transfers


def wait_for_uploads(snapshot: Snapshot) -> Plan:
    """Ends the pods that still run, as after success: they could still write. Records the progress of the upload."""
    o = snapshot.observed
    since = min((output.start_time for output in o.current.outputs if output.start_time), default=o.now)
    end = since + CLEANUP_GRACE
    alive = [pod for pod in snapshot.pods.values() if not pod.ended]
    services = topology.framework_of(o.job).long_running_roles(topology.sizes(o.job, o.current))
    delete: list[Pod] = [pod for pod in alive if o.now >= end or pod.role in services]
    status = changed(snapshot.summarised_at_end, outputs=outputs.observed(o))
    status = _with_reason(snapshot, status)
    wake_at = end if alive and o.now < end else None
    return plan_objects(snapshot, status, delete=[*delete, *snapshot.outdated], wake_at=wake_at)


def _with_reason(snapshot: Snapshot, status: Status) -> Status:
    """Says what keeps an upload from going on."""
    trouble, running = transfers.upload_trouble(snapshot.observed), status.condition("Running")
    if trouble:
        return with_phase(status, "Running", snapshot.observed.now, outputs.UPLOAD_RETRYING, trouble)
    if running and running.reason == outputs.UPLOAD_RETRYING:
        return with_phase(status, "Running", snapshot.observed.now, outputs.UPLOADING, "the outputs are uploaded")
    return status
