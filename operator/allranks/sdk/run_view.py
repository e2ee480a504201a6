"""A run or a job as rich output of a notebook: phase, progress bar, curve of the loss, and ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from allranks.api.status import ProgressStatus
from allranks.control_sequences import clean_text
from allranks.core.diagnosis.reasons import describe_failure
from allranks.errors import AllranksError
from allranks.extras import install_command
from allranks.kube.cluster import Manifest
from allranks.local.run_directories import RUN_FILE
from allranks.views.format.progress import number
from allranks.views.job_view import JobView
from allranks.views.report.model import samples_of
from allranks.views.report.run_files import Sample, read_run_files

WIDTH, HEIGHT = 600, 100
MOST_CURVES = 2
_COLOURS = {"Succeeded": "#27ae60", "Failed": "#c0392b", "Restarting": "#d68910"}


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric over the steps. `points` are the coordinates of an SVG polyline."""

    metric: str
    points: str
    low: str
    high: str
    last: str


@dataclass(frozen=True, slots=True)
class NotebookView:
    """The values that run_view.html.j2 shows."""

    job: str
    phase: str = "Pending"
    attempt: int = 0
    facts: tuple[str, ...] = ()
    fraction: float | None = None
    """Completed part of all steps."""
    failure: str = ""
    curves: tuple[Curve, ...] = ()
    ranks: tuple[Sequence[str], ...] = ()


class RunView:
    """A run, read again each time it is displayed."""

    def __init__(self, directory: Path, job: str) -> None:
        self._directory, self._job = directory, job

    def read(self) -> NotebookView:
        try:
            job = json.loads((self._directory / RUN_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return NotebookView(self._job)
        if not isinstance(job, dict):
            return NotebookView(self._job)
        files = read_run_files(self._directory)
        return _notebook_view(self._job, JobView.decode(job, datetime.now(UTC), active=files.active), files.samples)

    def __repr__(self) -> str:
        return _line(self.read())

    def _repr_html_(self) -> str:
        return html_of(self.read())


class ClusterJobView:
    """A job on a cluster as it was read last; `read` reads it again."""

    def __init__(self, job: str, manifest: Callable[[], Manifest]) -> None:
        """`manifest` asks the API server."""
        self._job, self._manifest = job, manifest
        self._view = NotebookView(job)

    def read(self) -> NotebookView:
        """Read the job again. Raises JobDeleted, ClusterError."""
        view = JobView.decode(self._manifest(), datetime.now(UTC))
        self._view = _notebook_view(self._job, view, samples_of(view.status.progress))
        return self._view

    def __repr__(self) -> str:
        return _line(self._view)

    def _repr_html_(self) -> str:
        return html_of(self._view)


def _line(view: NotebookView) -> str:
    return ", ".join([f"{view.job}: {view.phase}", *view.facts])


def _notebook_view(job: str, view: JobView, samples: Sequence[Sample]) -> NotebookView:
    """`samples`: points of the curves, of which the files of a run have more than its status."""
    status = view.status
    failure = status.last_failure if status.phase in ("Failed", "Restarting") else None
    return NotebookView(
        job,
        view.phase,
        status.attempt,
        tuple(_facts(view, samples)),
        _fraction(status.progress, samples),
        describe_failure(failure) if failure else "",
        tuple(_curves(samples))[:MOST_CURVES],
        tuple(_ranks(status.progress)) if status.progress else (),
    )


def html_of(view: NotebookView) -> str:
    """Every value is escaped by the template engine. Raises AllranksError without Jinja2."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise AllranksError(f"the view of a run needs Jinja2, which is missing: {install_command('cli')}") from error
    environment = Environment(
        loader=PackageLoader("allranks.sdk", "."), autoescape=True, undefined=StrictUndefined, finalize=_finalized
    )
    return environment.get_template("run_view.html.j2").render(view=view, colours=_COLOURS)


def _finalized(value: Any) -> Any:
    return clean_text(value, colour=False) if type(value) is str else value


def _step(progress: ProgressStatus | None, samples: Sequence[Sample]) -> int | None:
    """Return the latest step: progress.jsonl is newer than the job file."""
    steps = [samples[-1].step] if samples else []
    steps += [progress.step] if progress and progress.step is not None else []
    return max(steps, default=None)


def _fraction(progress: ProgressStatus | None, samples: Sequence[Sample]) -> float | None:
    step = _step(progress, samples)
    if progress is None or not progress.total_steps or step is None:
        return None
    return min(1.0, step / progress.total_steps)


def _facts(view: JobView, samples: Sequence[Sample]) -> Iterator[str]:
    progress = view.status.progress
    step = _step(progress, samples)
    if progress is None or step is None:
        return
    yield f"step {step}/{progress.total_steps}" if progress.total_steps else f"step {step}"
    if progress.samples_per_second:
        yield f"{number(progress.samples_per_second)} samples/s"
    if view.eta:
        yield f"{view.eta} left"


def _curves(samples: Sequence[Sample]) -> Iterator[Curve]:
    """Yield the curves, the loss first. A curve needs two points."""
    names = dict.fromkeys(name for sample in samples for name in sample.metrics)
    for name in sorted(names, key=lambda name: name != "loss"):
        points = [(s.step, s.metrics[name]) for s in samples if math.isfinite(s.metrics.get(name, math.nan))]
        if len(points) < 2:
            continue
        values = [value for _, value in points]
        low, high = min(values), max(values)
        yield Curve(name, _polyline(points, low, high), number(low), number(high), number(values[-1]))


def _polyline(points: Sequence[tuple[int, float]], low: float, high: float) -> str:
    first, last = min(step for step, _ in points), max(step for step, _ in points)
    width, height = max(1, last - first), high - low or 1.0
    pixels = ((WIDTH * (step - first) / width, HEIGHT * (1 - (value - low) / height)) for step, value in points)
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)


def _ranks(progress: ProgressStatus) -> Iterator[Sequence[str]]:
    for rank in progress.ranks:
        times = (rank.step_seconds, rank.busy_seconds)
        yield (
            "" if rank.rank is None else str(rank.rank),
            rank.replica,
            "" if rank.step is None else str(rank.step),
            str(rank.lag) if rank.lag else "",
            *("" if seconds is None else f"{seconds:.3g}" for seconds in times),
        )
