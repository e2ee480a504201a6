"""Notifications as text, Slack messages, CloudEvents and mails. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage
from typing import Any, Literal

from allranks.api.job import PLURAL as JOBS
from allranks.api.status import Status
from allranks.api.sweep import PLURAL as SWEEPS
from allranks.core.diagnosis.root_cause import describe_failure
from allranks.core.facts.model import Observed
from allranks.core.sweeps.model import SweepObserved
from allranks.masking import mask_log, secrets_in
from allranks.version import __version__

_TYPES = {
    "Succeeded": "succeeded",
    "Failed": "failed",
    "Hung": "hung",
    "Preempted": "preempted",
    "Straggling": "straggling",
    "LowUtilization": "lowutilization",
}
_PLURALS = {"job": JOBS, "sweep": SWEEPS}
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
    """What failed first, who is slow; with the last lines of the log, in which secrets are masked."""
    link: str
    cost: str = ""
    kind: Literal["job", "sweep"] = "job"


def note(observed: Observed, entry: str, link: str) -> Note:
    """The notification of an entry of the outbox."""
    occasion, _, attempt = entry.split(" ")[0].partition("/")
    job, status = observed.job, observed.persisted
    title = f"{job.namespace}/{job.name} {_WORDS[occasion]}"
    secrets = secrets_in(job.spec.model_dump(mode="json", by_alias=True, exclude_none=True))
    return Note(
        id=f"{job.metadata.uid}/{entry.replace(' ', '/')}",
        occasion=occasion,
        namespace=job.namespace,
        name=job.name,
        attempt=int(attempt or 0),
        time=_stamp(observed.now),
        title=title,
        details=mask_log(_details(occasion, int(attempt or 0), status), secrets),
        link=_filled(link, job.namespace, job.name),
        cost=status.cost.summary if status.cost else "",
    )


def sweep_note(observed: SweepObserved, entry: str, link: str) -> Note:
    """The notification of the end of a sweep: the best trial with its value and parameters, or why there is none."""
    occasion, sweep, status = entry.split(" ")[0], observed.sweep, observed.status
    namespace, name = sweep.metadata.namespace, sweep.metadata.name
    condition = status.condition("Complete" if occasion == "Succeeded" else "Failed")
    counts = ", ".join(f"{count} {phase}" for phase, count in status.counts.model_dump().items() if count)
    best = status.best.parameters if status.best else {}
    lines = [
        condition.message if condition else "",
        f"Best parameters: {', '.join(f'{key}={value}' for key, value in best.items())}" if best else "",
        f"Trials: {status.summary} ended, {counts}" if counts else "",
    ]
    secrets = secrets_in(sweep.spec.model_dump(mode="json", by_alias=True, exclude_none=True))
    return Note(
        id=f"{sweep.metadata.uid}/{entry.replace(' ', '/')}",
        occasion=occasion,
        namespace=namespace,
        name=name,
        attempt=None,
        time=_stamp(observed.now),
        title=f"sweep {namespace}/{name} {_WORDS[occasion]}",
        details=mask_log("\n".join(line for line in lines if line), secrets),
        link=_filled(link, namespace, name),
        kind="sweep",
    )


def _filled(link: str, namespace: str, name: str) -> str:
    return link.replace("{namespace}", namespace).replace("{name}", name)


def _stamp(now: datetime) -> str:
    return now.isoformat(timespec="seconds").replace("+00:00", "Z")


_WORDS = {
    "Succeeded": "succeeded",
    "Failed": "failed",
    "Hung": "hangs",
    "Preempted": "was preempted",
    "Straggling": "has slow ranks",
    "LowUtilization": "trains too little",
}


def _details(occasion: str, attempt: int, status: Status) -> str:
    if occasion in ("Failed", "Hung"):
        condition, failure = status.condition("Failed"), status.last_failure
        why = condition.message if condition and occasion == "Failed" else ""
        first = f"{describe_failure(failure)}{f' on {failure.node}' if failure.node else ''}" if failure else ""
        last = failure.message[-_LAST_LINES:] if failure else ""
        return "\n".join(part for part in (why, f"First failure: {first}" if first else "", last) if part)
    if occasion == "Preempted":
        past = next((past for past in status.history if past.attempt == attempt), None)
        return f"Attempt {attempt} ended: {past.reason}" if past else ""
    if occasion == "Straggling" and status.progress:
        slow = [f"{one.replica} on {one.node or '?'}: {one.slowdown:.2g}x" for one in status.progress.stragglers[:8]]
        return "\n".join(slow)
    condition = status.condition("LowUtilization" if occasion == "LowUtilization" else "Complete")
    return condition.message if condition else ""


def plain(one: Note) -> str:
    return "\n".join(part for part in (one.title, one.details, one.cost, one.link) if part)


def slack(one: Note) -> bytes:
    """The body of an incoming webhook. Slack's control characters are escaped."""

    def escaped(text: str) -> str:
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    parts = [f"*{escaped(one.title)}*", escaped(one.details).replace("```", "'''")]
    parts += [escaped(one.cost), f"<{one.link}|open>" if one.link else ""]
    return json.dumps({"text": "\n".join(part for part in parts if part)}).encode()


def cloud_event(one: Note) -> bytes:
    """A CloudEvent 1.0 in structured mode."""
    data: dict[str, Any] = {
        "namespace": one.namespace,
        "name": one.name,
        "attempt": one.attempt,
        "occasion": one.occasion,
        "message": one.title,
        "details": one.details,
        "cost": one.cost,
        "link": one.link,
    }
    event = {
        "specversion": "1.0",
        "id": one.id,
        "source": f"/apis/allranks.dev/namespaces/{one.namespace}/{_PLURALS[one.kind]}/{one.name}",
        "type": f"dev.allranks.{one.kind}.{_TYPES[one.occasion]}",
        "subject": f"{one.namespace}/{one.name}",
        "time": one.time,
        "datacontenttype": "application/json",
        "data": {key: value for key, value in data.items() if value not in ("", None)},
    }
    return json.dumps(event).encode()


def mail(one: Note, sender: str, to: list[str]) -> EmailMessage:
    """A mail in plain text. Its Message-ID is the same in every delivery."""
    made = EmailMessage()
    made["Subject"] = f"[allranks] {one.title}"
    made["From"], made["To"] = sender, ", ".join(to)
    made["Message-ID"] = f"<{one.id.replace('/', '.')}@allranks>"
    made["X-Mailer"] = f"allranks {__version__}"
    made["Auto-Submitted"] = "auto-generated"
    made.set_content(plain(one))
    return made
