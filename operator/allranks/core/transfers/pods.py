"""Inputs and outputs on a cluster: the pods that transfer them, their results, and the transfers that a job waits for.

A pod that transfers is created again until it has a result, which the status has before anything follows from it. Pods
have computed names, and a transfer that is done ends at once, so nothing is transferred twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from pydantic import ValidationError

from allranks.api.data import MESSAGE_LENGTH, OBJECT_STORES, InputStatus, Output, OutputStatus
from allranks.api.job import Job
from allranks.api.status import FINISHED, Status
from allranks.core.diagnosis import elasticity
from allranks.core.facts.data_store import evictable
from allranks.core.facts.model import FETCH_RETRYING, FETCHING, Event, Manifest, Observed, Plan, Pod, PodRef
from allranks.core.facts.uploads import Upload, checkpoint_of, result_in
from allranks.core.snapshot import Snapshot
from allranks.core.transfers import input_cache, manifests
from allranks.fields import validated

CHECKING, CHECK_RETRYING = "CheckingOutputs", "CheckRetrying"
"""Reasons of the condition Running."""
RETRY = timedelta(seconds=10)
"""After this time a pod that was evicted, or that its node rejected, is replaced."""


def with_transfers(o: Observed) -> Observed:
    """Move the pods of transfers out of the pods of ranks, and add the uploads that they report."""
    if o.platform.local or not (o.job.spec.sources or o.job.spec.outputs):
        return o
    if o.platform.data:
        store = replace(o.platform.data, evictable=evictable(o.cache_use, o.now))
        o = replace(o, platform=replace(o.platform, data=store))
    names = manifests.names(o.job)
    transfers = {pod.name: pod for pod in o.pods if pod.owned and pod.name in names}
    o = replace(o, pods=tuple(pod for pod in o.pods if pod.name not in transfers), transfers=transfers)
    return replace(o, uploads=dict(_uploads(o)))


def unready(o: Observed) -> bool:
    """Return whether the job waits for inputs, or for the check of a destination."""
    waits = any(item.state != "Ready" for item in o.current.inputs) or bool(_unchecked(o))
    return not o.platform.local and waits


def blocked(o: Observed) -> tuple[str, str] | None:
    """Return (reason, message) of a job whose inputs are not there yet, or whose destinations are not checked."""
    if not unready(o):
        return None
    waiting = [item for item in o.job.spec.sources if _is_unfetched(o, item.name)]
    for item in waiting:
        if problem := _problem(o, manifests.fetch_name(o.job, item.name)):
            return FETCH_RETRYING, f"{o.job.spec.field_of(item.name)}: {problem}"
    for number, output in (checks := _unchecked(o)):
        if problem := _problem(o, manifests.check_name(o.job, output.name)):
            return CHECK_RETRYING, f"spec.outputs[{number}]: {problem}"
    if not waiting:
        return CHECKING, "destinations are checked: " + ", ".join(f"{item.name} at {item.to}" for _, item in checks)
    return FETCHING, "inputs are fetched: " + ", ".join(f"{item.name} from {item.source}" for item in waiting)


def upload_problem(o: Observed) -> str:
    """Return the reason why uploads do not proceed; empty if they do."""
    uploading = _uploading(o.job, o.current)
    for number, output in enumerate(o.job.spec.outputs or ()):
        if output.name in uploading and (problem := _problem(o, manifests.upload_name(o.job, output.name))):
            return f"spec.outputs[{number}]: {problem}"
    return ""


def _problem(o: Observed, name: str) -> str:
    """Return the reason why a transfer has no result; empty if nothing keeps it."""
    pod = o.transfers.get(name)
    if pod is None:
        rejected = next(
            (rejection for rejection in o.refused if (rejection.kind, rejection.name) == ("Pod", name)), None
        )
        return f"pod {name} cannot be created: {rejected.message}" if rejected else ""
    if pod.ended:
        return "" if _result(pod) else f"pod {name} was lost ({_end(pod)}); it is created again"
    if pod.last_exit:
        return f"{_error(pod.last_exit.message) or _end(pod)}; try {pod.container_restarts + 1} follows"
    if pod.start_error or pod.waiting_reason == "Unschedulable":
        return f"pod {name} cannot start: {pod.waiting_text}"
    return ""


def _end(pod: Pod) -> str:
    end = pod.exit or pod.last_exit
    if pod.disruption:
        return pod.disruption.message or pod.disruption.reason
    return f"exit code {end.code}, {end.reason}" if end else pod.waiting_text or "its node rejected it"


def _error(message: str) -> str:
    """Return the error in a termination message, or the last line of other text."""
    result = result_in(message)
    if isinstance(result, dict):
        return str(result.get("error") or "")
    return next((line.strip() for line in reversed(message.splitlines()) if line.strip()), "")


def _result(pod: Pod) -> dict[str, Any] | None:
    """Return the result in the termination message; None if the pod has not ended by itself."""
    if pod.exit is None or pod.exit.code:
        return None
    result = result_in(pod.exit.message)
    if isinstance(result, dict) and result.keys() & {"fetched", "checked", "uploaded", "error"}:
        return result
    return {"error": f"pod {pod.name} ended without a result: its image must have allranks with the extra data"}


def received(o: Observed) -> tuple[list[InputStatus], list[str]]:
    """Return (`status.inputs` with what pods fetched, errors of inputs that cannot be fetched)."""
    inputs, errors = list(o.current.inputs), []
    for place, item in enumerate(inputs):
        pod = o.transfers.get(manifests.fetch_name(o.job, item.name)) if item.state != "Ready" else None
        if pod is None or pod.deleted_at or (result := _result(pod)) is None:
            continue  # one that is being deleted has fetched for an earlier attempt
        try:
            ready = validated(
                InputStatus(name=item.name, state="Ready", **{**result["fetched"], **_location(o, item, result)})
            )
        except (KeyError, TypeError, ValidationError):
            reason = result.get("error") or f"pod {pod.name} has a result that this version cannot read"
            errors.append(f"{o.job.spec.field_of(item.name)}: {reason}")
            ready = replace(item, state="Failed")
        inputs[place] = ready
    return inputs, errors or [*_too_large(o, inputs)]


def _location(o: Observed, item: InputStatus, result: dict[str, Any]) -> dict[str, Any]:
    """Return the location of an input that is copied. A pod that only looked up the revision does not say `cached`."""
    place = input_cache.place(o.job, o.platform)
    if place is None or any(spec.name == item.name and spec.streamed for spec in o.job.spec.sources):
        return {}
    if "cached" in result["fetched"]:
        return {"location": "Claim"}
    return {"location": "Pod" if place.location == "Claim" else place.location}


def _too_large(o: Observed, inputs: list[InputStatus]) -> Iterator[str]:
    """Yield the first input that does not fit into the emptyDir, so that no pod finds it out."""
    place = input_cache.place(o.job, o.platform)
    total = 0
    for item in inputs:
        if item.location != "Pod" or place is None:
            continue
        total += item.bytes or 0
        if total > place.limit:
            yield (
                f"{o.job.spec.field_of(item.name)}: {total} bytes do not fit into the emptyDir of a pod, which may "
                f"hold {place.limit}: an administrator can change spec.inputCache of the TrainingPool, or the "
                "operator's setting `data_cache_size`"
            )
            return


def _uploads(o: Observed) -> Iterator[tuple[str, Upload]]:
    claim = f" of claim {o.platform.data.claim}" if o.platform.data and o.platform.data.claim else ""
    for output in o.job.spec.outputs or ():
        name = manifests.upload_name(o.job, output.name)
        pod, where = o.transfers.get(name), f"outputs/{o.job.metadata.uid}/{output.name}{claim}"
        if output.when == "Checkpoint":
            where = ""  # the checkpoint stays on its own volume
        if pod is None or (result := _result(pod)) is None:
            yield output.name, Upload("Uploading", message=_problem(o, name), where=where)
            continue
        checkpoint = _checkpoint(o, output.name, result)
        if isinstance(done := result.get("uploaded"), dict):
            size, files = _count(done.get("bytes")), _count(done.get("files"))
            yield output.name, Upload("Uploaded", bytes=size, files=files, checkpoint=checkpoint)
        else:
            message = str(result.get("error") or "there is no result")
            yield (
                output.name,
                Upload("Failed", message=message, where=where, checkpoint=checkpoint, final=bool(pod.restart)),
            )


def _checkpoint(o: Observed, name: str, result: dict[str, Any]) -> tuple[int, int] | None:
    """Return the checkpoint of a result. A broken image names none; its result counts for the current checkpoint."""
    step, mark = _count(result.get("step")), _count(result.get("mark"))
    if step is None or mark is None:
        return next((checkpoint_of(output) for output in o.current.outputs if output.name == name), None)
    return step, mark


def _outdated(o: Observed, name: str) -> bool:
    """Return whether another pod follows this one.

    It has uploaded a checkpoint that is not the newest any more, or it failed to upload the last one and began before
    the program had ended.
    """
    for output in o.current.outputs:
        if manifests.upload_name(o.job, output.name) == name and (result := _result(pod := o.transfers[name])):
            earlier = output.start_time is not None and not pod.restart and "uploaded" not in result
            return earlier or _checkpoint(o, output.name, result) != checkpoint_of(output)
    return False


def _unrecorded(o: Observed, persisted: Status) -> set[str]:
    """Return the names of pods whose upload has ended, if the persisted status does not say so yet."""
    before = {output.name: output for output in persisted.outputs}
    return {
        manifests.upload_name(o.job, output.name)
        for output in o.current.outputs
        if (old := before.get(output.name))
        and (
            output.uploaded_step != old.uploaded_step
            or (old.state == "Uploading" and output.state in ("Uploaded", "Failed"))
        )
    }


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 2**53 else None


def with_transfer_pods(snapshot: Snapshot, plan: Plan) -> Plan:
    """Add the pods that transfers need to the plan, and delete those that they do not need any more.

    An upload of a checkpoint is in the persisted status from before its pod is created until its pod may be deleted:
    otherwise the next operator would delete a pod that it does not expect, or repeat an upload.
    """
    o, persisted = snapshot.observed, snapshot.persisted
    if plan.decided or o.platform.local or not (o.job.spec.sources or o.job.spec.outputs):
        return plan
    needed = {**dict(_before_ranks(o)), **dict(_uploaders(o, persisted))}
    unrecorded = _unrecorded(o, persisted)
    delete, times = [], [plan.wake_at] if plan.wake_at else []
    for name, pod in sorted(o.transfers.items()):
        again = elasticity.ended_at(pod, o.now) + RETRY if pod.ended and _result(pod) is None else None
        if again and again > o.now and name in needed:
            times.append(again)
        elif (again or name not in needed or _outdated(o, name)) and pod.deleted_at is None and name not in unrecorded:
            delete.append(PodRef(pod.name, pod.uid))
    create = [make() for name, make in needed.items() if make and name not in o.transfers]
    events = list(plan.events)
    before = o.current.condition("Running")
    reason = blocked(o)
    if reason and reason[0] in (FETCH_RETRYING, CHECK_RETRYING) and not (before and before.reason == reason[0]):
        events.append(Event(reason[0], reason[1], warning=True))
    status, base = plan.next, plan.next or o.current
    inputs = _observed_inputs(o, base.inputs)
    if inputs != base.inputs:
        status = replace(base, inputs=inputs)
    return replace(
        plan,
        next=status,
        create=(*plan.create, *create),
        delete=(*plan.delete, *delete),
        events=tuple(events),
        wake_at=min(times, default=None),
    )


def _before_ranks(o: Observed) -> Iterator[tuple[str, Callable[[], Manifest] | None]]:
    """Yield (name, manifest) of the pods that fetch inputs and check destinations."""
    store = o.platform.data
    if o.current.phase in FINISHED or o.current.phase == "Suspended" or not o.current.start_time or store is None:
        return
    for item in o.job.spec.sources:
        if _is_unfetched(o, item.name):
            make = partial(manifests.fetch_pod, o.job, item, o.platform, store, o.cache_use, o.now)
            yield manifests.fetch_name(o.job, item.name), make
    for _, output in _unchecked(o):
        yield manifests.check_name(o.job, output.name), partial(manifests.check_pod, o.job, output, o.platform, store)


def with_checks(o: Observed, status: Status) -> Status:
    """Return the first status of a job, whose ranks wait until a pod has checked the object stores of its outputs."""
    stores = {output.name for output in o.job.spec.outputs or () if output.scheme in OBJECT_STORES}
    if o.platform.local or not stores or status.phase in FINISHED:
        return status
    outputs = [replace(output, state="Checking") if output.name in stores else output for output in status.outputs]
    return replace(status, outputs=outputs)


def checked(o: Observed) -> tuple[list[OutputStatus], list[str], list[str]]:
    """Return (`status.outputs` with the results of the checks, errors, notes about what is not certain)."""
    outputs, errors, notes = list(o.current.outputs), [], []
    waiting = {output.name: number for number, output in _unchecked(o)}
    for place, output in enumerate(outputs):
        pod = o.transfers.get(manifests.check_name(o.job, output.name)) if output.name in waiting else None
        if pod is None or (result := _result(pod) or _crashed(pod)) is None:
            continue
        field, note = f"spec.outputs[{waiting[output.name]}]", result.get("checked")
        if isinstance(note, str):
            outputs[place] = replace(output, state="Pending")
            notes += [f"{field}: it is not certain that files can be uploaded: {note}"] if note else []
        else:
            reason = str(result.get("error") or "there is no result")
            errors.append(f"{field}: {reason}")
            outputs[place] = replace(output, state="Failed", message=reason[:MESSAGE_LENGTH])
    return outputs, errors, notes


def _crashed(pod: Pod) -> dict[str, Any] | None:
    """Return a crash of the check pod as an uncertain result: images of earlier versions have no check.

    A job must not wait for it.
    """
    if pod.last_exit is None or isinstance(result_in(pod.last_exit.message), dict):
        return None
    said = _error(pod.last_exit.message)
    return {"checked": f"pod {pod.name} has crashed ({_end(pod)})" + (f": {said}" if said else "")}


def _unchecked(o: Observed) -> list[tuple[int, Output]]:
    """Return (place in spec.outputs, output) of outputs whose destination is still to be checked."""
    waiting = {output.name for output in o.current.outputs if output.state == "Checking"}
    return [(number, output) for number, output in enumerate(o.job.spec.outputs or ()) if output.name in waiting]


def _uploaders(o: Observed, persisted: Status) -> Iterator[tuple[str, Callable[[], Manifest] | None]]:
    """Yield (name, manifest) of the pods that upload.

    There is no manifest while a rank may still write, or before the persisted status says that there is something to
    upload. Uploads of checkpoints do not wait for ranks.
    """
    store, over = o.platform.data, all(pod.ended for pod in o.pods if pod.owned)
    for output in o.job.spec.outputs or ():
        if store and output.name in _uploading(o.job, o.current):
            due = output.name in _uploading(o.job, persisted) and (over or output.when == "Checkpoint")
            make = partial(manifests.upload_pod, o.job, output, o.current, o.platform, store, o.pods)
            yield manifests.upload_name(o.job, output.name), make if due else None


def _is_unfetched(o: Observed, name: str) -> bool:
    """Return whether this input is still to be fetched."""
    return any(item.name == name and item.state != "Ready" for item in o.current.inputs)


def _uploading(job: Job, status: Status) -> set[str]:
    """Return the names of outputs that are uploaded. A checkpoint is uploaded when there is one."""
    unknown = {output.name for output in job.spec.outputs or () if output.when == "Checkpoint"}
    uploading = (output for output in status.outputs if output.state == "Uploading")
    return {output.name for output in uploading if checkpoint_of(output) or output.name not in unknown}


def _observed_inputs(o: Observed, inputs: list[InputStatus]) -> list[InputStatus]:
    """Return `status.inputs`, with the state of inputs that are not ready."""
    return [
        replace(item, state="Fetching" if manifests.fetch_name(o.job, item.name) in o.transfers else "Pending")
        if item.state in ("Pending", "Fetching")
        else item
        for item in inputs
    ]
