"""The checkpoints of a job, as people see them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from allranks.api.status import Status
from allranks.core.facts import stored_checkpoints
from allranks.text import size
from allranks.views.format.duration import age, elapsed, human
from allranks.views.format.table import Grid


def schedule(spec: Mapping[str, Any], status: Status) -> str:
    """Write when checkpoints are due: `every 22m, because a save takes 10.0s and a failure is expected every 1d; next
    after step 240`. Empty without `everySeconds`."""
    every, recorded = (spec.get("checkpoint") or {}).get("everySeconds"), status.checkpoint_schedule
    if every is None:
        return ""
    if recorded is None or recorded.interval_seconds is None:
        interval = "by everySeconds" if every == "Auto" else f"every {human(every)}"
        return f"{interval}, as soon as a rank reports steps and calls checkpoint_due()"
    interval = f"every {human(recorded.interval_seconds)}"
    if every == "Auto" and recorded.save_seconds is None:
        interval += " until the duration of a save is measured"
    elif every == "Auto" and recorded.fault_seconds is not None:
        save, fault = elapsed(recorded.save_seconds or 0.0), human(recorded.fault_seconds)
        interval += f", because a save takes {save} and a failure is expected every {fault}"
    return f"{interval}; next after step {recorded.step}" if recorded.step is not None and recorded.agreed else interval


def table(status: Status, now: datetime) -> Grid | None:
    """Return the newest checkpoints, the oldest first; None without any. Columns without a value are left out."""
    if not status.checkpoints:
        return None
    resumes = stored_checkpoints.resumes(status)
    headers = ["Step", "Age", "Complete", "Verified", "Size", "Resume", "Path"]
    rows = [
        [
            str(stored.step),
            age(stored.time, now),
            _yes_or_no(stored.complete),
            _yes_or_no(stored.verified),
            "" if stored.bytes is None else size(stored.bytes),
            "yes" if stored is resumes else "",
            stored.path,
        ]
        for stored in status.checkpoints
    ]
    kept = [place for place in range(len(headers)) if any(row[place] for row in rows)]
    return Grid([headers[place] for place in kept], [[row[place] for place in kept] for row in rows], indent="")


def rollback(status: Status) -> str:
    """Write why the current attempt continues from an older checkpoint; empty if it does not."""
    back = status.rollback
    if back is None:
        return ""
    unreadable = f"attempt {back.attempt} could not read the one of step {back.unreadable_step}"
    return f"Attempt {status.attempt} resumes from step {back.step}: {unreadable}."


def _yes_or_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"
