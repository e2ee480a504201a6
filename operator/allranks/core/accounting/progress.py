"""Derives `status.progress` from the newest report of each rank: steps, throughput, ETA, learning curve.

A restart of the operator loses nothing: ranks repeat their state.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from operator import itemgetter

from allranks.api.job import Job
from allranks.api.status import (
    FINISHED,
    WITHOUT_PODS,
    CurvePoint,
    MetricRecord,
    ProgressStatus,
    RankProgress,
    Status,
)
from allranks.core.diagnosis.hang_detection import stall_sentence
from allranks.core.diagnosis.stragglers import stragglers
from allranks.core.facts import stored_checkpoints, topology
from allranks.core.facts.model import Observed, Pod
from allranks.core.facts.naming import replica_key
from allranks.core.facts.rank_reports import RankReport, Reports
from allranks.fields import validated
from allranks.text import human_duration

RANKS = 16
"""Limit of status.progress.ranks."""
POINTS = 64
"""Limit of status.progress.curve."""
METRICS = 32
"""Limit of status.progress.metrics and of status.progress.records."""
_JITTER = timedelta(seconds=1)
"""Ranks report ages, so a repeated report gives a slightly different time."""


def drop_stale(reports: Reports | None, pods: Iterable[Pod]) -> Reports | None:
    """Drop reports of deleted pods and of processes before the present one, and mark ranks of terminated pods as
    done."""
    if reports is None:
        return None
    owned = {pod.name: pod for pod in pods if pod.owned}
    ranks = tuple(
        replace(rank, done=True) if not rank.done and owned[rank.pod].exit else rank
        for rank in reports.ranks
        if rank.done or (rank.pod in owned and not _is_dead(rank, owned[rank.pod]))
    )
    return replace(reports, ranks=ranks)


def _is_dead(rank: RankReport, pod: Pod) -> bool:
    """Return whether the report is of a process before the one that runs, or is to run, in the pod."""
    if pod.process is None or pod.exit:
        return False
    return pod.process.started_at is None or rank.received_at < pod.process.started_at


def with_ranks(job: Job, status: Status, reports: Reports | None) -> Reports | None:
    """Add the global rank where a process has only an index within its role (TensorFlow)."""
    framework = topology.framework_of(job)
    if reports is None or not framework.ranks_are_pods or all(rank.rank is not None for rank in reports.ranks):
        return reports
    places = {(replica.role, replica.index): replica.node_rank for replica in topology.replicas(job, status)}
    ranks = (
        replace(report, rank=places.get((report.role, report.index))) if report.rank is None else report
        for report in reports.ranks
    )
    return replace(reports, ranks=tuple(ranks))


def observe(job: Job, status: Status, reports: Reports | None) -> Status:
    """Update `status.progress` from the reports; return the same object if nothing changed."""
    if reports is None or not reports.ranks or status.attempt_time is None:
        return status
    before = status.progress or ProgressStatus()
    ranks = reports.ranks
    stepped = [rank for rank in ranks if rank.step is not None]
    step = max((rank.step for rank in stepped if rank.step is not None), default=before.step)
    if status.phase in WITHOUT_PODS and (step or 0) < (before.step or 0):
        return status  # late reports of some ranks do not take back what the ended attempt has reached
    firsts = [(rank.first_step_at, rank.step or 0) for rank in ranks if rank.first_step_at]
    last_report = max((rank.stepped_at or rank.received_at for rank in stepped), default=before.last_report)
    jitter = _JITTER if step == before.step else timedelta(0)
    if before.last_report and last_report and abs(last_report - before.last_report) <= jitter:
        last_report = before.last_report
    if _is_older(before, step, last_report):
        step, last_report = before.step, before.last_report
    source = _source(ranks)
    metrics, not_finite = _metrics(before, source)
    after = replace(
        before,
        step=step,
        total_steps=max((rank.total_steps for rank in ranks if rank.total_steps is not None), default=None),
        epoch=max((rank.epoch for rank in ranks if rank.epoch is not None), default=before.epoch),
        metrics=metrics,
        metrics_step=source.step if source else before.metrics_step,
        not_finite=not_finite or None,
        records=_records(before, metrics, source, reports.metrics) or None,
        samples_per_second=_rate(ranks),
        loading=_loading(ranks) or before.loading,
        last_report=last_report,
        stragglers=stragglers(job, before, ranks),
        ranks=_slowest(ranks),
        reporting=len(ranks),
        saves_on_request=_saves_on_request(before, ranks),
        copies=before.copies or _copies(job, ranks),
    )
    if before.first_step_time is None and firsts:
        first_step_time, first_step = min(firsts)
        after = replace(after, first_step_time=first_step_time, first_step=first_step)
    checkpoints = ((r.checkpoint_at, r.checkpoint_step) for r in ranks if r.checkpoint_at)
    saved = max(checkpoints, default=None, key=itemgetter(0))
    jitter = _JITTER if saved and saved[1] == before.checkpoint_step else timedelta(0)
    if saved and (before.checkpoint_time is None or saved[0] > before.checkpoint_time + jitter):
        after = replace(after, checkpoint_time=saved[0], checkpoint_step=saved[1])
    after = _with_forecast(after, ranks)
    has_loss = "loss" in {**(after.records or {}), **not_finite}
    metric = after.curve_metric or ("loss" if has_loss else next(iter(after.metrics), ""))
    after = replace(after, summary=_summary(after), curve_metric=metric, curve=_curve(status, after, metric))
    if status.phase in WITHOUT_PODS:
        # Pods that are on their way out still report, and fewer each time.
        after = replace(_without_pods(after), ranks=max(after.ranks, before.ranks, key=len))
    return status if after == before else replace(status, progress=after)


def with_reports(o: Observed) -> Observed:
    """Add the ranks' reports to the current status. Late reports change nothing about a finished job."""
    if o.persisted.phase in FINISHED:
        return o
    reports = with_ranks(o.job, o.current, drop_stale(o.reports, o.pods))
    status = stored_checkpoints.observe(observe(o.job, o.current, reports), reports)
    status = _with_stall(status, o.current, reports, o.now)
    return replace(o, reports=reports).with_current(status)


def _with_stall(status: Status, before: Status, reports: Reports | None, now: datetime) -> Status:
    """Record for which rank the others wait. Until they go on, the rest of the time cannot be estimated."""
    if reports is None or status.progress is None or not reports.ranks:
        return status
    running = status.phase not in WITHOUT_PODS
    recorded = before.progress or ProgressStatus()
    stalled = stall_sentence(recorded, status.progress, reports, now) if running else None
    progress = replace(status.progress, stalled=stalled)
    if stalled:
        progress = replace(progress, eta_seconds=None, eta="")
    return status if progress == status.progress else replace(status, progress=progress)


def _copies(job: Job, ranks: Iterable[RankReport]) -> str | None:
    """Return `worker-0 and worker-1 have a rank 0 each: ...`; None if each number occurs once."""
    if not topology.framework_of(job).ranks_keep_numbers:
        return None
    pods: dict[int, list[str]] = {}
    for report in ranks:
        if report.rank is not None and report.pod not in pods.setdefault(report.rank, []):
            pods[report.rank].append(report.pod)
    number, same = min(pods.items(), key=lambda item: (-len(item[1]), item[0]), default=(0, []))
    if len(same) < 2:
        return None
    replicas = {report.pod: replica_key(report.role, report.index) for report in ranks}
    names = [replicas[pod] for pod in sorted(same)]
    listed = f"{', '.join(names[:8])} and {len(names) - 8} more" if len(names) > 8 else " and ".join(names)
    return f"{listed} have a rank {number} each: they are {len(same)} independent copies that do not train together"


def newly_copied(before: ProgressStatus | None, after: ProgressStatus | None) -> str:
    """Return the sentence about independent copies when it is new; else an empty text."""
    copies = after.copies if after else None
    return copies if copies and not (before and before.copies) else ""


def newly_stalled(before: ProgressStatus | None, after: ProgressStatus | None) -> str:
    """Return the sentence about a stall that began; empty if there is none, or it is recorded."""
    stalled = after.stalled if after else None
    return stalled if stalled and not (before and before.stalled) else ""


def reset_for_attempt(progress: ProgressStatus | None) -> ProgressStatus | None:
    """Return the progress at the start of an attempt: the totals and the curve, without the state of single ranks."""
    if progress is None:
        return None
    return ProgressStatus(
        step=progress.step,
        total_steps=progress.total_steps,
        epoch=progress.epoch,
        metrics=progress.metrics,
        records=progress.records,
        last_report=progress.last_report,
        curve_metric=progress.curve_metric,
        curve=progress.curve,
        summary=progress.summary,
    )


def finalize(progress: ProgressStatus | None) -> ProgressStatus | None:
    """Return the progress of a finished or suspended job, without the values that only a running job has."""
    return None if progress is None else _without_pods(progress)


def _without_pods(progress: ProgressStatus) -> ProgressStatus:
    return replace(
        progress,
        eta_seconds=None,
        eta="",
        samples_per_second=None,
        stragglers=[],
        reporting=0,
        saves_on_request=None,
        stalled=None,
    )


def _is_older(before: ProgressStatus, step: int | None, last_report: datetime | None) -> bool:
    """Return whether the reports are behind the status of this attempt.

    A new operator may receive the report of the furthest rank after the reports of other ranks.
    """
    if before.first_step_time is None or before.step is None or before.last_report is None:
        return False
    return (step or 0) < before.step and (last_report is None or last_report <= before.last_report)


def _saves_on_request(before: ProgressStatus, ranks: Iterable[RankReport]) -> bool | None:
    """Return whether ranks store checkpoints on request.

    The persisted value stays until a rank reports after a restart of the operator.
    """
    able = [rank for rank in ranks if rank.saves_on_request]
    return (any(not rank.done for rank in able) or None) if able else before.saves_on_request


def _with_forecast(progress: ProgressStatus, ranks: Iterable[RankReport]) -> ProgressStatus:
    """Set the ETA: the remaining steps times the median step time."""
    step, total = progress.step, progress.total_steps
    left = max(0, total - step) if step is not None and total else None
    paces = [rank.step_seconds for rank in ranks if rank.step_seconds is not None and not rank.done]
    pace = statistics.median(paces) if paces else None
    eta = 0.0 if left == 0 else float(round(left * pace)) if left is not None and pace is not None else None
    return replace(progress, eta_seconds=eta, eta="" if eta is None else human_duration(eta))


def _source(ranks: Iterable[RankReport]) -> RankReport | None:
    """Return the first rank that reports metrics: usually rank 0 has the mean over all ranks."""
    reporting = [rank for rank in ranks if rank.metrics or rank.not_finite]
    return min(reporting, key=lambda r: (r.rank is None, r.rank or 0, r.role, r.index, r.local_rank), default=None)


def _metrics(before: ProgressStatus, source: RankReport | None) -> tuple[dict[str, float], dict[str, int]]:
    """Return (metrics, metrics that are not finite -> the step since which they are not)."""
    if source is None:
        return before.metrics, before.not_finite or {}
    metrics = {key: _digits(value) for key, value in sorted(source.metrics.items())[:METRICS]}
    return metrics, dict(source.not_finite)


def _records(
    before: ProgressStatus,
    metrics: Mapping[str, float],
    source: RankReport | None,
    reported: Mapping[str, MetricRecord],
) -> dict[str, MetricRecord]:
    """Return what happened to each metric in all attempts. Libraries before the record report only latest values."""
    step = source.step or 0 if source else 0
    records = dict(before.records or {})
    for name, value in metrics.items() if source else ():
        if name not in reported:
            sample = MetricRecord(
                first_step=step,
                first=value,
                last_step=step,
                lowest_step=step,
                lowest=value,
                highest_step=step,
                highest=value,
            )
            records[name] = _united(records[name], sample) if name in records else sample
    for name, record in reported.items():
        rounded = replace(
            record, first=_short(record.first), lowest=_short(record.lowest), highest=_short(record.highest)
        )
        records[name] = _united(records[name], rounded) if name in records else rounded
    return dict(sorted(records.items())[:METRICS])


def _united(before: MetricRecord, after: MetricRecord) -> MetricRecord:
    """Return the record of both together. Of two equal values, the earlier one counts."""
    united = replace(before, last_step=after.last_step)
    if after.first_step < before.first_step:
        united = replace(united, first_step=after.first_step, first=after.first)
    if after.lowest is not None and (before.lowest is None or after.lowest < before.lowest):
        united = replace(united, lowest=after.lowest, lowest_step=after.lowest_step)
    if after.highest is not None and (before.highest is None or after.highest > before.highest):
        united = replace(united, highest=after.highest, highest_step=after.highest_step)
    return replace(united, not_finite_step=min(_steps(before.not_finite_step, after.not_finite_step), default=None))


def _steps(*steps: int | None) -> list[int]:
    return [step for step in steps if step is not None]


def _short(value: float | None) -> float | None:
    return None if value is None else _digits(value)


def newly_not_finite(before: ProgressStatus | None, after: ProgressStatus | None) -> list[str]:
    """Return a sentence for each metric that became NaN or infinite: `loss is not finite since step 20`."""
    recorded, present = ((progress and progress.not_finite) or {} for progress in (before, after))
    return [f"{name} is not finite since step {step}" for name, step in present.items() if name not in recorded]


def curve_not_finite(progress: ProgressStatus | None) -> tuple[str, int] | None:
    """Return (metric, step) if the metric of the curve is NaN or infinite since this step.

    Other metrics may be infinite in a training that is well: the norm of gradients that a loss scaler skips.
    """
    present = (progress and progress.not_finite) or {}
    metric = (progress and progress.curve_metric) or ("loss" if "loss" in present else next(iter(present), ""))
    return (metric, present[metric]) if metric in present else None


def _rate(ranks: Iterable[RankReport]) -> float | None:
    """Return the throughput of all ranks; None if a part of them reports none, or is done."""
    rates = [None if rank.done else rank.samples_per_second for rank in ranks]
    return None if None in rates else _sum(rates)


def _loading(ranks: Iterable[RankReport]) -> float | None:
    """Return the mean share of loading over all ranks that measure it, rounded to percent to save writes."""
    measured = [(r.load_seconds, r.step_seconds) for r in ranks if r.load_seconds is not None and not r.done]
    shares = [min(1.0, load / step) for load, step in measured if load is not None and step]
    return round(statistics.fmean(shares), 2) if shares else None


def _slowest(ranks: Iterable[RankReport]) -> list[RankProgress]:
    """Return up to RANKS ranks: all of a small job, else those with the largest lag, then those with the longest
    steps."""
    everyone = list(ranks)
    furthest = max((rank.step or 0 for rank in everyone), default=0)

    def order(rank: RankReport) -> tuple[float, float, int, str, int, int]:
        slow = -(rank.busy_seconds or rank.step_seconds or 0.0) if len(everyone) > RANKS else 0.0
        lag = (rank.step or 0) - furthest if len(everyone) > RANKS else 0
        return lag, slow, rank.rank or 0, rank.role, rank.index, rank.local_rank

    return [
        validated(
            RankProgress(
                rank=rank.rank,
                replica=replica_key(rank.role, rank.index),
                step=rank.step,
                lag=furthest - (rank.step or 0),
                step_seconds=None if rank.step_seconds is None else _digits(rank.step_seconds),
                busy_seconds=None if rank.busy_seconds is None else _digits(rank.busy_seconds),
            )
        )
        for rank in sorted(everyone, key=order)[:RANKS]
    ]


def _curve(status: Status, after: ProgressStatus, metric: str) -> list[CurvePoint]:
    """Return the curve with the newest point appended, or with its last point updated.

    The value and the step of a point are of the same rank.

    A full curve is thinned to every second point. Points older than the last one are dropped: a new operator may
    receive the report of the furthest rank late.
    """
    if after.step is None or after.last_report is None:
        return after.curve
    point = validated(
        CurvePoint(
            time=after.last_report,
            attempt=status.attempt,
            step=after.step if after.metrics_step is None else after.metrics_step,
            value=after.metrics.get(metric),
            samples_per_second=after.samples_per_second,
        )
    )
    curve = list(after.curve)
    if curve and point.time < curve[-1].time:
        return after.curve
    if curve and (curve[-1].attempt, curve[-1].step) == (point.attempt, point.step):
        return [*curve[:-1], point]
    spacing = (point.time - curve[0].time) / (POINTS * 3 // 4) if curve else timedelta(0)
    same_attempt = len(curve) > 1 and curve[-1].attempt == curve[-2].attempt == point.attempt
    if same_attempt and curve[-1].time - curve[-2].time < spacing:
        return [*curve[:-1], point]
    return [*(curve[::2] if len(curve) >= POINTS else curve), point]


def _summary(progress: ProgressStatus) -> str:
    if progress.step is not None and progress.total_steps:
        return f"{progress.step}/{progress.total_steps} {100 * progress.step // progress.total_steps}%"
    if progress.step is not None:
        return f"step {progress.step}"
    return f"epoch {progress.epoch}" if progress.epoch is not None else ""


def _digits(value: float) -> float:
    """Round to four significant digits: status stays small, and noise causes fewer writes."""
    rounded = float(f"{value:.4g}")
    return rounded if math.isfinite(rounded) else value  # rounding up the largest floats gives infinity


def _sum(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return _digits(sum(numbers)) if numbers else None
