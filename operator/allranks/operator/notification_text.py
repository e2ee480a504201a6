"""The notification of an entry of an outbox: its words, and its forms for Slack and as a CloudEvent."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from allranks.api.job import PLURAL as JOBS
from allranks.api.job import Metadata
from allranks.api.status import Status
from allranks.api.sweep import PLURAL as SWEEPS
from allranks.core.diagnosis.reasons import describe_failure
from allranks.core.facts.model import Observed
from allranks.core.sweeps.model import SweepObserved
from allranks.fields import Model, printable
from allranks.masking import mask_log, secrets_in

_PLURALS = {"job": JOBS, "sweep": SWEEPS}
_VERBS = {
    "Succeeded": "succeeded",
    "Failed": "failed",
    "Hung": "hangs",
    "Preempted": "was preempted",
    "Straggling": "has slow ranks",
    "LowUtilization": "trains too little",
}
_LAST_LINES = 1500


@dataclass(frozen=True, slots=True)
class Note:
    """One notification. `id` is the same in every delivery of it."""

    id: str
    occasion: str
    namespace: str
    name: str
    attempt: int | None
    """None for a sweep."""
    time: str
    title: str
    details: str
    """The first failure or the slow ranks, with the last lines of the log, in which secrets are masked."""
    link: str
    cost: str = ""
    kind: Literal["job", "sweep"] = "job"


def job_note(observed: Observed, entry: str, link: str) -> Note:
    """Return the notification of an entry of a job's outbox."""
    job, status = observed.job, observed.persisted
    occasion, _, number = entry.split(" ")[0].partition("/")
    attempt = int(number or 0)
    details = mask_log(_details(occasion, attempt, status), _secrets(job.spec))
    cost = status.cost.summary if status.cost else ""
    return _note("job", job.metadata, entry, observed.now, link, details, attempt=attempt, cost=cost)


def sweep_note(observed: SweepObserved, entry: str, link: str) -> Note:
    """Return the notification of the end of a sweep: the best trial, or the reason of the failure."""
    sweep, status = observed.sweep, observed.status
    condition = status.condition("Complete" if entry.startswith("Succeeded") else "Failed")
    counts = ", ".join(f"{count} {phase}" for phase, count in asdict(status.counts).items() if count)
    best = status.best.parameters if status.best else {}
    lines = [
        condition.message if condition else "",
        f"Best parameters: {', '.join(f'{key}={value}' for key, value in best.items())}" if best else "",
        f"Trials: {status.summary} ended, {counts}" if counts else "",
    ]
    details = mask_log(_joined(lines), _secrets(sweep.spec))
    return _note("sweep", sweep.metadata, entry, observed.now, link, details)


def _note(
    kind: Literal["job", "sweep"], metadata: Metadata, entry: str, now: datetime, link: str, details: str, **more: Any
) -> Note:
    occasion = entry.split(" ")[0].partition("/")[0]
    namespace, name = metadata.namespace, metadata.name
    return Note(
        id=f"{metadata.uid}/{entry.replace(' ', '/')}",
        occasion=occasion,
        namespace=namespace,
        name=name,
        time=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        title=f"{'sweep ' if kind == 'sweep' else ''}{namespace}/{name} {_VERBS[occasion]}",
        details=printable(details),
        link=link.replace("{namespace}", namespace).replace("{name}", name),
        kind=kind,
        **{"attempt": None, **more},
    )


def _secrets(spec: Model) -> Any:
    return secrets_in(spec.model_dump(mode="json", by_alias=True, exclude_none=True))


def _joined(lines: list[str]) -> str:
    return "\n".join(line for line in lines if line)


def _details(occasion: str, attempt: int, status: Status) -> str:
    if occasion in ("Failed", "Hung"):
        condition, failure = status.condition("Failed"), status.last_failure
        reason = condition.message if condition and occasion == "Failed" else ""
        if failure is None:
            return reason
        node = f" on {failure.node}" if failure.node else ""
        return _joined([reason, f"First failure: {describe_failure(failure)}{node}", failure.message[-_LAST_LINES:]])
    if occasion == "Preempted":
        reasons = [past.reason for past in status.history if past.attempt == attempt]
        return f"Attempt {attempt} ended: {reasons[0]}" if reasons else ""
    if occasion == "Straggling" and status.progress:
        slow = status.progress.stragglers[:8]
        return "\n".join(f"{rank.replica} on {rank.node or '?'}: {rank.slowdown:.2g}x" for rank in slow)
    condition = status.condition("LowUtilization" if occasion == "LowUtilization" else "Complete")
    return condition.message if condition else ""


def slack(note: Note) -> bytes:
    """Return the body of a request to an incoming webhook. Slack's control characters are escaped."""

    def escaped(text: str) -> str:
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    lines = [f"*{escaped(note.title)}*", escaped(note.details).replace("```", "'''")]
    lines += [escaped(note.cost), f"<{note.link}|open>" if note.link else ""]
    return json.dumps({"text": _joined(lines)}).encode()


def cloud_event(note: Note) -> bytes:
    """Return a CloudEvent 1.0 in structured mode."""
    data: dict[str, Any] = {
        "namespace": note.namespace,
        "name": note.name,
        "attempt": note.attempt,
        "occasion": note.occasion,
        "message": note.title,
        "details": note.details,
        "cost": note.cost,
        "link": note.link,
    }
    event = {
        "specversion": "1.0",
        "id": note.id,
        "source": f"/apis/allranks.dev/namespaces/{note.namespace}/{_PLURALS[note.kind]}/{note.name}",
        "type": f"dev.allranks.{note.kind}.{note.occasion.lower()}",
        "subject": f"{note.namespace}/{note.name}",
        "time": note.time,
        "datacontenttype": "application/json",
        "data": {key: value for key, value in data.items() if value not in ("", None)},
    }
    return json.dumps(event).encode()
