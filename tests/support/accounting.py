"""Statuses of jobs whose times can be compared."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from allranks.api.status import Times
from allranks.core.accounting import time_accounting
from allranks.kube import job_codec


def status_up_to(job: dict[str, Any] | None, now: datetime) -> Any:
    """The status of a manifest with the time up to now; None if there is none. The operator accounts for time at each
    status write, and a fault may cause one more, or one less."""
    job = job or {}
    if not (written := job.get("status")) or not written.get("times"):
        return written
    status = job_codec.status(job)
    assert status.times
    assert status.goodput == _goodput(status.times), written
    times = time_accounting.up_to(status, now)
    assert times
    encoded = job_codec.encode(replace(status, times=times, goodput=_goodput(times)))
    return written | {name: encoded.get(name) for name in ("times", "goodput")}


def _goodput(times: Times) -> float | None:
    return time_accounting.goodput(times) if times.measured else None
