"""Progress, time accounting and goodput of a job. Pure.

The status has its times as of `times.since`; the functions here add the time that has passed since then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from statistics import median

from allranks.api.status import ProgressStatus, Status
from allranks.core.accounting import time_accounting
from allranks.core.facts.model import Pod
from allranks.views.format.duration import human
from allranks.views.format.table import cell

KINDS = ("queued", "starting", "productive", "lost", "uploading")
NOT_MEASURED = "not measured"
LOADING_SHOWN = 0.05
"""A smaller share of a step is not shown beside the rates."""


def times(status: Status, now: datetime) -> dict[str, float]:
    """Return the seconds by kind, up to now; empty without time accounting."""
    total = time_accounting.up_to(status, now)
    seconds = {kind: getattr(total, kind) for kind in KINDS} if total else {}
    return {kind: value for kind, value in seconds.items() if value is not None}  # most jobs upload nothing


def lost_by(status: Status, now: datetime) -> dict[str, float]:
    """Return the lost seconds by reason, the largest first."""
    total = time_accounting.up_to(status, now)
    return dict(sorted(total.by_reason.items(), key=lambda item: (-item[1], item[0]))) if total else {}


def goodput(status: Status, now: datetime) -> float | None:
    """Return productive / (all but queued and uploading), up to now. It is an upper bound unless `is_measured`."""
    total = time_accounting.up_to(status, now)
    return time_accounting.goodput(total) if total else status.goodput


def is_measured(status: Status) -> bool:
    """Return whether the ranks reported steps. Otherwise all running time counts as productive."""
    return bool(status.times and status.times.measured)


def limit_note(limit: float | None) -> str:
    """Say why the goodput is not measured, and its upper bound."""
    if not limit:
        return "no rank has reported a step"
    return f"no rank has reported a step; at most {percent(limit)}, if all running time was productive"


def kind_name(kind: str, measured: bool) -> str:
    """Return the name of a kind of time. Without reports nothing shows whether a running job was productive."""
    return "running" if kind == "productive" and not measured else kind


def trains(status: Status) -> bool:
    """Return whether rates and ETA are shown: only while the job runs."""
    return status.phase == "Running"


def fraction(progress: ProgressStatus | None) -> float | None:
    """Return the share of completed steps; None if the total is not reported."""
    if progress is None or progress.step is None or not progress.total_steps:
        return None
    return min(1.0, progress.step / progress.total_steps)


def step_rate(progress: ProgressStatus | None) -> float | None:
    """Return steps per second: measured by the ranks, or derived from the ETA or the curve."""
    if progress is None:
        return None
    seconds = [rank.step_seconds for rank in progress.ranks if rank.step_seconds]
    if seconds:
        return 1 / median(seconds)
    if progress.step is not None and progress.total_steps and progress.eta_seconds:
        return (progress.total_steps - progress.step) / progress.eta_seconds
    for before, after in zip(progress.curve[-2:], progress.curve[-1:], strict=False):
        passed = (after.time - before.time).total_seconds()
        if before.attempt == after.attempt and passed > 0 and after.step > before.step:
            return (after.step - before.step) / passed
    return None


def summary(progress: ProgressStatus) -> str:
    """Write `1200/5000 24%`."""
    return cell(progress.summary) or ("" if progress.step is None else f"step {progress.step}")


def eta(progress: ProgressStatus | None) -> str:
    """Write the estimate `2h10m`; empty without one."""
    if progress is None:
        return ""
    return cell(progress.eta) or ("" if progress.eta_seconds is None else human(progress.eta_seconds))


def rates(progress: ProgressStatus) -> Iterator[str]:
    """Yield `4.2 steps/s`, `810 samples/s`, `35% waiting for data`."""
    rate = step_rate(progress)
    if rate is not None:
        yield f"{number(rate)} steps/s" if rate >= 0.1 else f"{number(1 / rate)} s/step"
    if progress.samples_per_second is not None:
        yield f"{number(progress.samples_per_second)} samples/s"
    if progress.loading is not None and progress.loading >= LOADING_SHOWN:
        yield loading(progress)


def loading(progress: ProgressStatus | None) -> str:
    """Write `35% waiting for data`; empty if no rank measures it."""
    if progress is None or progress.loading is None:
        return ""
    return f"{progress.loading:.0%} waiting for data"


def metrics(progress: ProgressStatus) -> Iterator[str]:
    """Yield `loss 0.31`; the metric of the curve is first."""
    names = sorted(progress.metrics, key=lambda name: name != progress.curve_metric)
    yield from (f"{cell(name)} {number(progress.metrics[name])}" for name in names)
    yield from (f"{cell(name)} not finite since step {step}" for name, step in (progress.not_finite or {}).items())


def line(status: Status) -> str:
    """Write progress, rates, ETA and metrics in one line for a log; empty without progress."""
    progress = status.progress
    if progress is None or progress.step is None:
        return ""
    words = summary(progress)
    parts = [words if words.startswith("step") else f"step {words}"]
    if trains(status):
        parts += rates(progress)
        parts += [f"ETA {left}"] if (left := eta(progress)) else []
    parts += list(metrics(progress))[:3]
    return ", ".join(parts)


def stragglers(progress: ProgressStatus | None, no_node: str = "") -> Iterator[tuple[object, str, str, str]]:
    """Yield (rank, replica, node or `no_node`, slowdown) of each straggler."""
    for straggler in progress.stragglers if progress else ():
        yield (
            "-" if straggler.rank is None else straggler.rank,
            straggler.replica,
            straggler.node or no_node,
            f"{straggler.slowdown:.2g}x{', waits for data' if straggler.loading else ''}",
        )


def values(progress: ProgressStatus | None) -> list[float | None]:
    """Return the values of the curve."""
    return [point.value for point in progress.curve] if progress else []


def number(value: float) -> str:
    """Write four significant digits: `0.3068`, `8105`, `1.2e-05`."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


def percent(value: float | None) -> str:
    """Write a rounded percentage. Only exactly 1 is 100%."""
    if value is None:
        return ""
    return "100%" if value >= 1 else f"{min(value, 0.999):.1%}"


def pod_state(pod: Pod) -> str:
    """Return the phase of a pod, or why it waits."""
    if pod.deleted_at:
        return "Stopping"
    if pod.waiting_reason in ("CrashLoopBackOff", "Unschedulable"):
        return pod.waiting_message or pod.waiting_reason
    return pod.phase
