"""The report on a job, built from its manifest and its status. Pure.

Times are seconds since the creation of the job. Texts of users and programs are kept unchanged: the output formats
escape them.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar

from pydantic import ConfigDict

from allranks.api.status import FINISHED, ProgressStatus, Status
from allranks.core.accounting import time_accounting
from allranks.kube.job_codec import status_of
from allranks.local.records import SHORTEST_SECONDS
from allranks.local.run_directories import INTERRUPTED
from allranks.masking import mask_text, secrets_in
from allranks.views.format import cost as costs
from allranks.views.format import progress as progress_text
from allranks.views.format.json_form import CONFIG, Moment, Number, Progress, as_json
from allranks.views.format.outcome import failure_block, summary
from allranks.views.job_view import JobView, of_role
from allranks.views.report import data
from allranks.views.report.data import JobInput, JobOutput
from allranks.views.report.run_files import RunFiles, Sample
from allranks.views.report.timeline import Attempt, Cause, Segment, Timeline, cause_of

FEWEST_FOR_PARTIAL = 4
"""An attempt with fewer points keeps the rates of all."""
_EXACT = frozenset({"metrics", "progress"})


@dataclass(frozen=True, slots=True)
class RestartedReplica:
    """Restarts of a single replica in the current attempt."""

    replica: str
    count: int
    counted: bool
    at: float
    """Seconds since the creation of the job."""
    cause: Cause | None


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the curves."""

    at: float
    """Seconds since the creation of the job."""
    attempt: int
    step: int
    value: Number | None
    """Of the main metric."""
    samples_per_second: float | None
    steps_per_second: float | None
    """Both rates are missing at the ends of an attempt, where only some ranks ran: they start and end one by one."""
    metrics: Mapping[str, Number]
    """All metrics. A job on a cluster has only the metric of the curve over time."""
    epoch: int | None = None
    """Completed epochs, where the program reported them with this point."""


@dataclass(frozen=True, slots=True)
class Report:
    """The report on a job, as `allranks report -o json` prints it."""

    __pydantic_config__: ClassVar[ConfigDict] = CONFIG

    name: str
    namespace: str
    framework: str
    size: str
    image: str
    command: str
    environment: tuple[str, ...]
    """Names of the variables in the manifest. Values may be secret."""
    commit: str
    """git commit of the code; empty if unknown."""
    dirty: bool
    """Whether files differed from the commit."""
    changes: str
    """The files that differed."""
    sha256: str
    """Hash of the code that was shipped."""
    source: str
    """The claim or image with the code, if it was not shipped."""
    differences: str
    """From the commit, as a unified diff in which secrets are masked."""
    differences_note: str
    """Where the differences are, or why there are none."""
    logs: tuple[str, ...]
    """Log files of a run of this machine. Empty in the REST interface."""
    phase: str
    """That of the job; Interrupted if nothing runs it any more, although it has not finished."""
    verdict: str
    """What happened, in one sentence."""
    why: str
    failure: tuple[str, ...]
    """For a failed job: the first replica that failed, and the last lines of its log."""
    began: Moment
    """When the job was created: 2026-03-04T10:00:00Z."""
    until: Moment
    """The end of the job, the last moment that an interrupted run has recorded, or the time of the report."""
    over: bool
    seconds: float
    attempts: tuple[Attempt, ...]
    between: tuple[Segment, ...]
    """Time before, between and after the attempts."""
    forgotten: int
    """Number of earlier attempts that the status no longer has."""
    restarts: tuple[RestartedReplica, ...]
    counted: int
    """Restarts that count toward restart.maxRestarts."""
    disruptions: int
    """Restarts by disruptions."""
    times: dict[str, float]
    """Seconds by kind: queued, starting, productive, lost, and uploading if outputs were uploaded after the end."""
    goodput: float | None
    """null if the ranks did not report steps."""
    goodput_limit: float | None
    """Upper bound of the goodput: all running time counts as productive. null if the goodput is measured."""
    measured: bool
    lost: dict[str, float]
    """Lost seconds by cause."""
    cost: costs.Cost | None
    """null without GPUs."""
    inputs: tuple[JobInput, ...]
    outputs: tuple[JobOutput, ...]
    uploads: str
    """Reason and message of the condition OutputsUploaded. Empty without it."""
    progress: Progress | None
    metric: str
    """The main metric."""
    points: tuple[Point, ...]

    @property
    def eta(self) -> str:
        """The estimate `2h10m`; empty unless the job runs."""
        return progress_text.eta(self.progress) if self.phase == "Running" else ""

    @property
    def all_restarts(self) -> int:
        return self.counted + self.disruptions

    @property
    def ends(self) -> list[tuple[float, str]]:
        """(time, reason) of each restart."""
        return [(attempt.end, attempt.reason) for attempt in self.attempts[:-1] if attempt.over]

    def as_json(self) -> dict[str, Any]:
        """Return the report with camel-case keys, as in the API."""
        return dict(as_json(self, _EXACT))

    def strokes(self, value: Callable[[Point], float | None]) -> list[list[tuple[float, float]]]:
        """Return (time, value) of each attempt: the curve is interrupted between attempts."""
        strokes: dict[int, list[tuple[float, float]]] = {}
        for point in self.points:
            y = value(point)
            if y is not None and math.isfinite(y):
                strokes.setdefault(point.attempt, []).append((point.at, y))
        return list(strokes.values())

    def metric_names(self) -> list[str]:
        """Return the metrics that have a curve, the main one first."""
        names = {name for point in self.points for name in point.metrics}
        return sorted(names, key=lambda name: (name != self.metric, name))

    def throughput(self) -> tuple[str, Callable[[Point], float | None]]:
        """Return (unit, value of a point): samples if the program reports them, otherwise steps."""
        if any(point.samples_per_second is not None for point in self.points):
            return "samples/s", lambda point: point.samples_per_second
        return "steps/s", lambda point: point.steps_per_second


def build_report(job: Mapping[str, Any], now: datetime, run: RunFiles | None = None) -> Report:
    """Build the report on a DistributedTraining in the form of the API; missing parts are left out.

    `run`: the files that a local run has stored beside its job.
    """
    run = run or RunFiles()
    view = JobView.decode(job, now, active=run.active)
    status, spec, phase = view.status, view.spec, view.phase
    reason = "" if phase == INTERRUPTED else view.reason
    began = _began(view.metadata, status, now)
    finished = status.phase in FINISHED
    until = (status.completion_time or _last_end(status) or now) if finished else now
    timeline = Timeline(status, began, until, view.times, interrupted=phase == INTERRUPTED)
    attempts = tuple(timeline.attempts())
    kept = min((past.attempt for past in status.history), default=status.attempt)
    progress = status.progress
    code = spec["code"] if isinstance(spec.get("code"), Mapping) else {}
    return Report(
        name=view.name or "(no name)",
        namespace=view.namespace,
        framework=view.framework,
        size=_size(spec, status),
        image=str(spec.get("image") or ""),
        command=shlex.join(str(word) for word in [*(spec.get("command") or []), *(spec.get("args") or [])]),
        environment=tuple(sorted(_variables(spec))),
        commit=str(code.get("commit") or run.commit),
        dirty=code.get("dirty") is True if code.get("commit") else run.dirty,
        changes=str(code.get("changes") or ""),
        sha256=str(code.get("sha256") or ""),
        source=_source(code),
        differences=mask_text(run.differences, secrets_in(job)),
        differences_note=run.missing or ("" if run.differences else _where(code)),
        logs=tuple(map(str, run.logs)),
        phase=phase,
        verdict=_verdict(view.name, status, phase, began, until),
        why=reason,
        failure=tuple(line for line in failure_block(status) if line != reason) if status.phase == "Failed" else (),
        began=began,
        until=until,
        over=finished or phase == INTERRUPTED,
        seconds=max(0.0, (until - began).total_seconds()),
        attempts=attempts,
        between=tuple(timeline.between(attempts)),
        forgotten=kept,
        restarts=tuple(_alone(status, began)),
        counted=status.restarts.counted,
        disruptions=status.restarts.disruptions,
        times=view.times,
        goodput=view.goodput_share if view.measured else None,
        goodput_limit=None if view.measured else view.goodput_share,
        measured=view.measured,
        lost=view.lost,
        cost=view.at(until).cost,
        inputs=tuple(data.inputs(job, status)),
        outputs=tuple(data.outputs(job, status)),
        uploads=data.uploads(job, status),
        progress=progress,
        metric=progress.curve_metric if progress else "",
        points=tuple(_points(run.samples or samples_of(progress), progress, attempts, began)),
    )


def _source(code: Mapping[str, Any]) -> str:
    if not (where := code.get("claim") or code.get("image")):
        return ""
    below = f", directory {code['subPath']}" if code.get("subPath") else ""
    return f"{'claim' if code.get('claim') else 'image'} {where}{below}"


def _where(code: Mapping[str, Any]) -> str:
    """Say where the differences are that this report does not have."""
    if code.get("dirty") is not True or not code.get("configMap"):
        return ""
    return f"The differences are in the ConfigMap {code['configMap']}, which exists as long as a job with this code"


def _began(metadata: Mapping[str, Any], status: Status, now: datetime) -> datetime:
    created = metadata.get("creationTimestamp")
    if isinstance(created, datetime):  # YAML parses timestamps
        created = (created if created.tzinfo else created.replace(tzinfo=UTC)).isoformat()
    try:
        moments = [datetime.fromisoformat(str(created))] if created else []
    except ValueError:
        moments = []
    moments += [moment for moment in (status.start_time, status.attempt_time, status.completion_time) if moment]
    return min(moment if moment.tzinfo else moment.replace(tzinfo=UTC) for moment in [*moments, now])


def last_update(job: Mapping[str, Any]) -> datetime | None:
    """Return the latest timestamp in the status: a report on a file ends there."""
    return time_accounting.last_update(status_of(dict(job)))


def _last_end(status: Status) -> datetime | None:
    return status.history[-1].end_time if status.history else None


def _size(spec: Mapping[str, Any], status: Status) -> str:
    roles: dict[str, int] = {name: role.desired for name, role in status.roles.items()}
    for name, role in (spec.get("roles") or {}).items():
        roles.setdefault(str(name), role.get("replicas", 1) if isinstance(role, dict) else 1)
    return ", ".join(of_role(count, name) for name, count in roles.items())


def _verdict(name: str, status: Status, phase: str, began: datetime, until: datetime) -> str:
    if phase in FINISHED or phase == INTERRUPTED:
        whole = replace(status, completion_time=until)
        return summary(name, whole, began, 0.0, "stopped" if phase == INTERRUPTED else "finished")
    if not status.start_time:
        return f"{name} is {status.phase}: the operator has not processed it yet"
    ready = f", {status.ready} pods running" if status.ready else ""
    return f"{name} is {status.phase}: attempt {status.attempt}{ready}"


def _alone(status: Status, began: datetime) -> Iterator[RestartedReplica]:
    for replica, restart in status.replica_restarts.items():
        if restart.restart_time is None:
            continue  # one of many: the status does not keep the times of all
        at = max(0.0, (restart.restart_time - began).total_seconds())
        cause = cause_of(restart.failure) if restart.failure else None
        yield RestartedReplica(replica, restart.count, restart.counted, at, cause)


def _variables(spec: Mapping[str, Any]) -> set[str]:
    """Return the names of the environment variables in the manifest, of the job and its roles."""
    roles = spec.get("roles") or {}
    levels = [spec, *(roles.values() if isinstance(roles, dict) else ())]
    templates = [_inside(level, "template", "spec", "containers") for level in levels]
    containers = [*levels, *(container for listed in templates if isinstance(listed, list) for container in listed)]
    variables = [_inside(container, "env") for container in containers]
    return {
        str(variable["name"])
        for listed in variables
        if isinstance(listed, list)
        for variable in listed
        if isinstance(variable, dict) and "name" in variable
    }


def _inside(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def samples_of(progress: ProgressStatus | None) -> list[Sample]:
    """Return the curve in the status."""
    return [
        Sample(
            point.time,
            point.attempt,
            point.step,
            point.samples_per_second,
            {} if progress is None or point.value is None else {progress.curve_metric: point.value},
        )
        for point in (progress.curve if progress else ())
    ]


def _points(
    samples: Sequence[Sample], progress: ProgressStatus | None, attempts: Sequence[Attempt], began: datetime
) -> Iterator[Point]:
    metric = progress.curve_metric if progress else ""
    before: Point | None = None
    partial_places = set(_partial(samples, {attempt.number for attempt in attempts if attempt.over}))
    for place, sample in enumerate(samples):
        at, partial, rate = max(0.0, (sample.time - began).total_seconds()), place in partial_places, None
        continues = before is not None and before.attempt == sample.attempt and sample.step >= before.step
        if before and continues and at - before.at >= SHORTEST_SECONDS:  # values of metrics may be milliseconds apart
            rate = (sample.step - before.step) / (at - before.at)
        point = Point(
            at,
            sample.attempt,
            sample.step,
            sample.metrics.get(metric),
            None if partial else sample.samples_per_second,
            None if partial else rate,
            sample.metrics,
            sample.epoch,
        )
        before = before if continues and rate is None else point
        yield point


def _partial(samples: Sequence[Sample], ended: Collection[int]) -> Iterator[int]:
    """Yield the places of the first sample with a rate of each attempt, and of the last one of an ended attempt."""
    for attempt in {sample.attempt for sample in samples}:
        places = [place for place, sample in enumerate(samples) if sample.attempt == attempt]
        rated = [place for place in places if samples[place].samples_per_second is not None]
        if len(places) >= FEWEST_FOR_PARTIAL:
            yield from rated[:1]
            yield from places[-1:] if attempt in ended else ()
