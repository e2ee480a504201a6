"""Inputs and outputs on a cluster: which pods transfer them, what these pods said, and what the job waits for.

A pod asks the object store of an output whether files can be written there, beside the pods that fetch and before the
ranks start: training for hours must not end with a wrong bucket. No GPU waits for it.

A pod that transfers is created again until it has a result, which the status has before anything follows from it: ranks
are created after the status says that all inputs are ready, and the job succeeds after it says that all outputs are
uploaded. Pods have computed names, and a transfer that is done ends at once, so nothing is transferred twice.
"""

from __future__ import annotations

import json
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
from allranks.core.facts.model import FETCH_RETRYING, FETCHING, Event, Manifest, Observed, Plan, Pod, PodRef
from allranks.core.facts.status_update import changed
from allranks.core.facts.uploads import Upload, checkpoint_of, evictable
from allranks.core.snapshot import Snapshot
from allranks.core.transfers import input_cache, manifests

CHECKING, CHECK_RETRYING = "CheckingOutputs", "CheckRetrying"
"""Reasons of the condition Running."""
RETRY = timedelta(seconds=10)
"""After this time a pod that was evicted, or that its node rejected, is replaced."""


def with_transfers(o: Observed) -> Observed:
    """The observation with the pods of transfers apart from those of ranks, and with the uploads that they report."""
    if o.platform.local or not (o.job.spec.inputs or o.job.spec.outputs):
        return o
    if o.platform.data:
        store = replace(o.platform.data, evictable=evictable(o.cache_use, o.now))
        o = replace(o, platform=replace(o.platform, data=store))
    names = manifests.names(o.job)
    found = {pod.name: pod for pod in o.pods if pod.owned and pod.name in names}
    o = replace(o, pods=tuple(pod for pod in o.pods if pod.name not in found), transfers=found)
    return replace(o, uploads=dict(_uploads(o)))


def unready(o: Observed) -> bool:
    """Whether the job waits for inputs, or for the check of a destination."""
    waits = any(each.state != "Ready" for each in o.current.inputs) or bool(_unchecked(o))
    return not o.platform.local and waits


def blocked(o: Observed) -> tuple[str, str] | None:
    """(reason, message) of a job whose inputs are not there yet, or whose destinations are not checked."""
    if not unready(o):
        return None
    waiting = [(number, each) for number, each in enumerate(o.job.spec.inputs or ()) if _wanted(o, each.name)]
    for number, each in waiting:
        name = manifests.fetch_name(o.job, each.name)
        if trouble := _trouble(o, name):
            return FETCH_RETRYING, f"spec.inputs[{number}]: {trouble}"
    for number, output in (checks := _unchecked(o)):
        if trouble := _trouble(o, manifests.check_name(o.job, output.name)):
            return CHECK_RETRYING, f"spec.outputs[{number}]: {trouble}"
    if not waiting:
        return CHECKING, "destinations are checked: " + ", ".join(f"{each.name} at {each.to}" for _, each in checks)
    return FETCHING, "inputs are fetched: " + ", ".join(f"{each.name} from {each.source}" for _, each in waiting)


def upload_trouble(o: Observed) -> str:
    """Why uploads do not proceed; empty if they do."""
    uploading = _uploading(o.job, o.current)
    for number, each in enumerate(o.job.spec.outputs or ()):
        if each.name in uploading and (trouble := _trouble(o, manifests.upload_name(o.job, each.name))):
            return f"spec.outputs[{number}]: {trouble}"
    return ""


def _trouble(o: Observed, name: str) -> str:
    """What keeps a transfer from its result."""
    pod = o.transfers.get(name)
    if pod is None:
        rejected = next((each for each in o.refused if (each.kind, each.name) == ("Pod", name)), None)
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
    """The error in a termination message; of other text the last line."""
    found = _json(message)
    if isinstance(found, dict):
        return str(found.get("error") or "")
    return next((line.strip() for line in reversed(message.splitlines()) if line.strip()), "")


def _json(text: str) -> Any:
    """The result in a termination message, or in the last line of a log that takes its place."""
    try:
        return json.loads((text.strip().splitlines() or [""])[-1])
    except ValueError:
        return None


def _result(pod: Pod) -> dict[str, Any] | None:
    """What a pod said at its end; None if it has not ended by itself."""
    if pod.exit is None or pod.exit.code:
        return None
    found = _json(pod.exit.message)
    if isinstance(found, dict) and found.keys() & {"fetched", "checked", "uploaded", "error"}:
        return found
    return {"error": f"pod {pod.name} ended without a result: its image must have allranks with the extra data"}


def received(o: Observed) -> tuple[list[InputStatus], list[str]]:
    """(`status.inputs` with what pods fetched, errors of inputs that cannot be fetched)"""
    inputs, errors = list(o.current.inputs), []
    places = {each.name: number for number, each in enumerate(o.job.spec.inputs or ())}
    for place, each in enumerate(inputs):
        pod = o.transfers.get(manifests.fetch_name(o.job, each.name)) if each.state != "Ready" else None
        if pod is None or (result := _result(pod)) is None:
            continue
        try:
            ready = InputStatus(name=each.name, state="Ready", **{**result["fetched"], **_location(o, each, result)})
        except (KeyError, TypeError, ValidationError):
            reason = result.get("error") or f"pod {pod.name} has a result that this version cannot read"
            errors.append(f"spec.inputs[{places.get(each.name, place)}]: {reason}")
            ready = changed(each, state="Failed")
        inputs[place] = ready
    return inputs, errors or [*_too_large(o, inputs)]


def _location(o: Observed, each: InputStatus, result: dict[str, Any]) -> dict[str, Any]:
    """The location of an input that is copied. A pod that only looked up the revision does not say `cached`."""
    here = input_cache.place(o.job, o.platform)
    if here is None or any(given.name == each.name and given.streamed for given in o.job.spec.inputs or ()):
        return {}
    if "cached" in result["fetched"]:
        return {"location": "Claim"}
    return {"location": "Pod" if here.location == "Claim" else here.location}


def _too_large(o: Observed, inputs: list[InputStatus]) -> Iterator[str]:
    """The first input that does not fit into the emptyDir, so that no pod finds it out."""
    here = input_cache.place(o.job, o.platform)
    total = 0
    for number, each in enumerate(inputs):
        if each.location != "Pod" or here is None:
            continue
        total += each.bytes or 0
        if total > here.limit:
            yield (
                f"spec.inputs[{number}]: {total} bytes do not fit into the emptyDir of a pod, which may hold "
                f"{here.limit}: an administrator can change spec.inputCache of the TrainingPool, or the operator's "
                "setting `data_cache_size`"
            )
            return


def _uploads(o: Observed) -> Iterator[tuple[str, Upload]]:
    claim = f" of claim {o.platform.data.claim}" if o.platform.data and o.platform.data.claim else ""
    for each in o.job.spec.outputs or ():
        name = manifests.upload_name(o.job, each.name)
        pod, where = o.transfers.get(name), f"outputs/{o.job.metadata.uid}/{each.name}{claim}"
        if each.when == "Checkpoint":
            where = ""  # the checkpoint stays on its own volume
        if pod is None or (result := _result(pod)) is None:
            yield each.name, Upload("Uploading", message=_trouble(o, name), where=where)
            continue
        found = _checkpoint(o, each.name, result)
        if isinstance(done := result.get("uploaded"), dict):
            size, files = _count(done.get("bytes")), _count(done.get("files"))
            yield each.name, Upload("Uploaded", bytes=size, files=files, checkpoint=found)
        else:
            message = str(result.get("error") or "there is no result")
            yield each.name, Upload("Failed", message=message, where=where, checkpoint=found, final=bool(pod.restart))


def _checkpoint(o: Observed, name: str, result: dict[str, Any]) -> tuple[int, int] | None:
    """The checkpoint of a result; a result of a broken image, which names none, is that of the current one."""
    step, mark = _count(result.get("step")), _count(result.get("mark"))
    if step is None or mark is None:
        return next((checkpoint_of(output) for output in o.current.outputs if output.name == name), None)
    return step, mark


def _outdated(o: Observed, name: str) -> bool:
    """Whether another pod follows this one: it has uploaded a checkpoint that is not the newest any more, or it failed
    to upload the last one, and began before the program had ended."""
    for output in o.current.outputs:
        if manifests.upload_name(o.job, output.name) == name and (result := _result(pod := o.transfers[name])):
            earlier = output.start_time is not None and not pod.restart and "uploaded" not in result
            return earlier or _checkpoint(o, output.name, result) != checkpoint_of(output)
    return False


def _unrecorded(o: Observed, persisted: Status) -> set[str]:
    """Names of pods whose upload has ended, which the persisted status does not say yet."""
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
    """The plan with the pods that transfers need, and without those that they do not need any more.

    An upload of a checkpoint is in the persisted status from before its pod is created until its pod may be deleted:
    otherwise the next operator would delete a pod that it does not know, or upload again what it does not find.
    """
    o, persisted = snapshot.observed, snapshot.persisted
    if plan.decided or o.platform.local or not (o.job.spec.inputs or o.job.spec.outputs):
        return plan
    needed = {**dict(_fetches(o)), **dict(_checkers(o)), **dict(_uploaders(o, persisted))}
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
    why = blocked(o)
    if why and why[0] in (FETCH_RETRYING, CHECK_RETRYING) and not (before and before.reason == why[0]):
        events.append(Event(why[0], why[1], warning=True))
    status, base = plan.next, plan.next or o.current
    inputs = _observed_inputs(o, base.inputs)
    if inputs != base.inputs:
        status = changed(base, inputs=inputs)
    return replace(
        plan,
        next=status,
        create=(*plan.create, *create),
        delete=(*plan.delete, *delete),
        events=tuple(events),
        wake_at=min(times, default=None),
    )


def _fetches(o: Observed) -> Iterator[tuple[str, Callable[[], Manifest] | None]]:
    """(name, manifest) of the pods that fetch."""
    store = o.platform.data
    if o.current.phase in FINISHED or o.current.phase == "Suspended" or not o.current.start_time or store is None:
        return
    for each in o.job.spec.inputs or ():
        if _wanted(o, each.name):
            make = partial(manifests.fetch_pod, o.job, each, o.current, o.platform, store, o.cache_use, o.now)
            yield manifests.fetch_name(o.job, each.name), make


def with_checks(o: Observed, status: Status) -> Status:
    """The first status of a job, whose ranks wait until a pod has asked the object stores of its outputs."""
    stores = {each.name for each in o.job.spec.outputs or () if each.scheme in OBJECT_STORES}
    if o.platform.local or not stores or status.phase in FINISHED:
        return status
    outputs = [changed(each, state="Checking") if each.name in stores else each for each in status.outputs]
    return changed(status, outputs=outputs)


def checked(o: Observed) -> tuple[list[OutputStatus], list[str], list[str]]:
    """(`status.outputs` with what the pods said, errors, what is not certain)"""
    outputs, errors, notes = list(o.current.outputs), [], []
    waiting = {each.name: number for number, each in _unchecked(o)}
    for place, each in enumerate(outputs):
        pod = o.transfers.get(manifests.check_name(o.job, each.name)) if each.name in waiting else None
        if pod is None or (result := _result(pod) or _crashed(pod)) is None:
            continue
        field, note = f"spec.outputs[{waiting[each.name]}]", result.get("checked")
        if isinstance(note, str):
            outputs[place] = changed(each, state="Pending")
            notes += [f"{field}: it is not certain that files can be uploaded: {note}"] if note else []
        else:
            reason = str(result.get("error") or "there is no result")
            errors.append(f"{field}: {reason}")
            outputs[place] = changed(each, state="Failed", message=reason[:MESSAGE_LENGTH])
    return outputs, errors, notes


def _crashed(pod: Pod) -> dict[str, Any] | None:
    """Not certain: the program that checks has crashed, as that of an image without this check does, of an earlier
    version. A job must not wait for it."""
    if pod.last_exit is None or isinstance(_json(pod.last_exit.message), dict):
        return None
    said = _error(pod.last_exit.message)
    return {"checked": f"pod {pod.name} has crashed ({_end(pod)})" + (f": {said}" if said else "")}


def _unchecked(o: Observed) -> list[tuple[int, Output]]:
    """(place in spec.outputs, output) of those whose destination is still to be checked."""
    waiting = {each.name for each in o.current.outputs if each.state == "Checking"}
    return [(number, each) for number, each in enumerate(o.job.spec.outputs or ()) if each.name in waiting]


def _checkers(o: Observed) -> Iterator[tuple[str, Callable[[], Manifest] | None]]:
    """(name, manifest) of the pods that check destinations."""
    store = o.platform.data
    if o.current.phase in FINISHED or o.current.phase == "Suspended" or not o.current.start_time or store is None:
        return
    for _, each in _unchecked(o):
        yield manifests.check_name(o.job, each.name), partial(manifests.check_pod, o.job, each, o.platform, store)


def _uploaders(o: Observed, persisted: Status) -> Iterator[tuple[str, Callable[[], Manifest] | None]]:
    """(name, manifest) of the pods that upload; without manifest as long as a rank may still write, or the persisted
    status does not say that there is something to upload. Those of checkpoints do not wait for ranks."""
    store, over = o.platform.data, all(pod.ended for pod in o.pods if pod.owned)
    for each in o.job.spec.outputs or ():
        if store and each.name in _uploading(o.job, o.current):
            due = each.name in _uploading(o.job, persisted) and (over or each.when == "Checkpoint")
            make = partial(manifests.upload_pod, o.job, each, o.current, o.platform, store, o.pods)
            yield manifests.upload_name(o.job, each.name), make if due else None


def _wanted(o: Observed, name: str) -> bool:
    """Whether this input is still to be fetched."""
    return any(each.name == name and each.state != "Ready" for each in o.current.inputs)


def _uploading(job: Job, status: Status) -> set[str]:
    """Names of outputs. A checkpoint is uploaded when there is one."""
    unknown = {each.name for each in job.spec.outputs or () if each.when == "Checkpoint"}
    found = (each for each in status.outputs if each.state == "Uploading")
    return {each.name for each in found if checkpoint_of(each) or each.name not in unknown}


def _observed_inputs(o: Observed, inputs: list[InputStatus]) -> list[InputStatus]:
    """`status.inputs`, with the state of inputs that are not ready."""
    return [
        changed(each, state="Fetching" if manifests.fetch_name(o.job, each.name) in o.transfers else "Pending")
        if each.state in ("Pending", "Fetching")
        else each
        for each in inputs
    ]
