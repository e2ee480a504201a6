"""The checkpoints of a job, as people see them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.api.status import Status
from allranks.views.format.duration import elapsed, human


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
