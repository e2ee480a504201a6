"""A run as rich output of a notebook: phase, progress bar, curve of the loss, and ranks. Reads the run directory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.api.status import ProgressStatus, Status
from allranks.control_sequences import clean_text
from allranks.core.diagnosis.root_cause import describe_failure
from allranks.errors import AllranksError
from allranks.extras import install_command
from allranks.kube.job_codec import status_of
from allranks.local.run_directories import RUN_FILE, phase_of
from allranks.views.format.duration import human
from allranks.views.format.progress import number
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
class View:
    """What is shown."""

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

    def read(self) -> View:
        try:
            job = json.loads((self._directory / RUN_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return View(self._job)
        if not isinstance(job, dict):
            return View(self._job)
        files = read_run_files(self._directory)
        return view_of(self._job, status_of(job), files.samples, active=files.active)

    def __repr__(self) -> str:
        view = self.read()
        return ", ".join([f"{view.job}: {view.phase}", *view.facts])

    def _repr_html_(self) -> str:
        return html_of(self.read())


def view_of(job: str, status: Status, samples: Sequence[Sample], *, active: bool = True) -> View:
    """Pure. `active`: something runs the job, if it has not finished."""
    progress, phase = status.progress, phase_of(status.phase, active=active)
    failure = status.last_failure
    return View(
        job,
        phase,
        status.attempt,
        tuple(_facts(progress, samples, phase)),
        _fraction(progress, samples),
        describe_failure(failure) if failure and status.phase in ("Failed", "Restarting") else "",
        tuple(_curves(samples))[:MOST_CURVES],
        tuple(_ranks(progress)) if progress else (),
    )


def html_of(view: View) -> str:
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
    """progress.jsonl is newer than the job file."""
    steps = [samples[-1].step] if samples else []
    steps += [progress.step] if progress and progress.step is not None else []
    return max(steps, default=None)


def _fraction(progress: ProgressStatus | None, samples: Sequence[Sample]) -> float | None:
    step = _step(progress, samples)
    if progress is None or not progress.total_steps or step is None:
        return None
    return min(1.0, step / progress.total_steps)


def _facts(progress: ProgressStatus | None, samples: Sequence[Sample], phase: str) -> Iterator[str]:
    step = _step(progress, samples)
    if progress is None or step is None:
        return
    yield f"step {step}/{progress.total_steps}" if progress.total_steps else f"step {step}"
    if progress.samples_per_second:
        yield f"{number(progress.samples_per_second)} samples/s"
    if progress.eta_seconds and phase == "Running":
        yield f"{human(progress.eta_seconds)} left"


def _curves(samples: Sequence[Sample]) -> Iterator[Curve]:
    """The loss first. A curve needs two points."""
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
