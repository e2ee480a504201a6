"""The report on a sweep: trials, the best one, GPU time and cost, the importance of parameters, and parallel
coordinates. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from allranks.api import sweep_values
from allranks.api.sweep import IntRange, LogNormal, LogRange, Range, SearchSpace, Sweep
from allranks.api.sweep_status import SweepStatus, Trial
from allranks.authoring.yaml_text import dump
from allranks.core.sweeps import importance, trial_job
from allranks.kube import sweep_codec
from allranks.version import __version__
from allranks.views.format import cost as costs
from allranks.views.format.cost import Cost
from allranks.views.format.json_form import as_json
from allranks.views.format.table import Grid
from allranks.views.report import html, sweep_cost
from allranks.views.report.sweep_cost import TrialJobs

WIDTH, HEIGHT, MARGIN = 1000, 260, 70
"""Of the drawing of parallel coordinates."""
_UNKNOWN = 0.5


@dataclass(frozen=True, slots=True)
class Axis:
    """One vertical axis. `low` and `high` are the texts at its ends."""

    name: str
    x: float
    low: str
    high: str


@dataclass(frozen=True, slots=True)
class Line:
    """One trial: the points of a polyline."""

    number: int
    points: str
    kind: str
    """CSS class."""
    title: str


@dataclass(frozen=True)
class SweepReport:
    """The values that pages, text and JSON show of a sweep."""

    sweep: Sweep
    status: SweepStatus
    manifest: Mapping[str, Any]
    jobs: TrialJobs | None = None
    """None if they were not read: then there is no GPU time."""

    @property
    def name(self) -> str:
        return self.sweep.name

    @property
    def metric(self) -> str:
        """Empty for a sweep without an objective."""
        return self.sweep.spec.objective.metric if self.sweep.spec.objective else ""

    @property
    def phase(self) -> str:
        return self.status.phase

    @property
    def verdict(self) -> str:
        final = [
            condition.message
            for condition in self.status.conditions
            if condition.type != "Running" and condition.status == "True"
        ]
        running = self.status.condition("Running")
        return final[0] if final else running.message if running else "the sweep has not begun"

    @cached_property
    def trial_costs(self) -> dict[int, Cost]:
        """Number of the trial -> its GPU time and price, for trials with GPUs."""
        return sweep_cost.by_trial(self.sweep, self.status, self.jobs) if self.jobs else {}

    @cached_property
    def cost(self) -> Cost | None:
        """GPU time and price of all trials; None without GPUs."""
        return costs.total(self.trial_costs.values())

    @property
    def cost_note(self) -> str:
        """The jobs that are missing in the GPU time; empty if the jobs have no GPUs."""
        without_gpus = self.jobs is not None and self.jobs.jobs and self.cost is None
        return "" if without_gpus else sweep_cost.note(self.sweep, self.status, self.jobs)

    @property
    def cost_table(self) -> Grid | None:
        """None without GPU time."""
        return Grid(*sweep_cost.rows(self.cost)) if self.cost and self.cost.total_hours else None

    @property
    def tiles(self) -> list[tuple[str, str, str]]:
        """(title, value, note) of the page."""
        if self.cost is None:
            return self.facts
        money, hours = costs.amount(self.cost.total_money, self.cost.currency), costs.hours(self.cost.total_hours)
        return [*self.facts, ("Cost", money, hours) if money else ("GPU time", hours, "")]

    @property
    def facts(self) -> list[tuple[str, str, str]]:
        """(title, value, note)"""
        counts, best = self.status.counts, self.status.best
        named = asdict(counts)
        spec = self.sweep.spec
        out = [("Trials", self.status.summary or "0", ", ".join(f"{n} {k}" for k, n in named.items() if n))]
        if self.metric:
            value, which = (f"{best.value:.4g}", f"trial {best.trial}") if best else ("-", "")
            out.append((f"Best {self.metric}", value, which))
        rule = f"stops by {spec.stop.rule}" if spec.stop else "no early stopping"
        out.append(("Algorithm", spec.algorithm, f"{rule}, {spec.parallel} at a time"))
        return out

    @property
    def headers(self) -> list[str]:
        of_cost = sweep_cost.headers(self.cost) if self.cost else []
        metric = [self.metric] if self.metric else []
        return ["Trial", *sweep_values.names(self.sweep.spec), "Phase", "Step", *metric, *of_cost, "Note"]

    @property
    def rows(self) -> list[tuple[Trial, list[str]]]:
        """(trial, cells)"""
        return [(trial, self._cells(trial)) for trial in self.status.trials]

    def _cells(self, trial: Trial) -> list[str]:
        best = self.status.best and self.status.best.trial == trial.number
        note = "best" if best else trial.message or ""
        step = "" if trial.step is None else str(trial.step)
        values = [trial.parameters.get(name, "") for name in sweep_values.names(self.sweep.spec)]
        of_cost = sweep_cost.cells(self.trial_costs.get(trial.number), self.cost) if self.cost else ()
        metric = [_number(trial.value)] if self.metric else []
        return [str(trial.number), *values, trial.phase, step, *metric, *of_cost, note]

    @property
    def importances(self) -> dict[str, float]:
        return importance.importances(self.sweep.spec, self.status.trials)

    @property
    def importance_note(self) -> str:
        """Empty for a sweep without an objective."""
        if not self.metric:
            return ""
        number = len(importance.compared(self.status.trials))
        if number < importance.MIN_TRIALS:
            return f"Shown from {importance.MIN_TRIALS} trials with a value on; there are {number}."
        return (
            f"The share of the differences in {self.metric} between {number} trials that each parameter explains alone."
        )

    @property
    def best_manifest(self) -> str:
        """The job with the parameters of the best trial as YAML; empty if there is none."""
        return dump([trial_job.best(self.sweep, self.status.best.parameters)]) if self.status.best else ""

    @property
    def axes(self) -> list[Axis]:
        """The parameters by name, then the metric."""
        names = sweep_values.names(self.sweep.spec)
        gap = (WIDTH - 2 * MARGIN) / len(names)
        ends = [self._ends(name) for name in names]
        out = [
            Axis(name, MARGIN + place * gap, *between)
            for place, (name, between) in enumerate(zip(names, ends, strict=True))
        ]
        low, high = self._bounds()
        return [*out, Axis(self.metric, WIDTH - MARGIN, _number(low), _number(high))]

    @property
    def lines(self) -> list[Line]:
        """One for each trial with a value, the best one last, so that it is drawn on top."""
        best = self.status.best.trial if self.status.best else None
        trials = sorted(importance.compared(self.status.trials), key=lambda trial: (trial.number == best, trial.number))
        return [self._line(trial, trial.number == best) for trial in trials]

    def _line(self, trial: Trial, best: bool) -> Line:
        low, high = self._bounds()
        shares = [
            share(self.sweep.spec.parameters[name].space, trial.parameters[name], self._ends(name))
            for name in sweep_values.names(self.sweep.spec)
        ]
        value = trial.value if trial.value is not None else low
        shares.append((value - low) / (high - low) if high > low else _UNKNOWN)
        points = " ".join(
            f"{axis.x:.1f},{(1 - part) * HEIGHT:.1f}" for axis, part in zip(self.axes, shares, strict=True)
        )
        kind = "best" if best else trial.phase.lower()
        return Line(trial.number, points, kind, f"trial {trial.number}: {self.metric} {_number(trial.value)}")

    def _ends(self, name: str) -> tuple[str, str]:
        drawn = (trial.parameters[name] for trial in importance.compared(self.status.trials))
        return ends(self.sweep.spec.parameters[name].space, drawn)

    def _bounds(self) -> tuple[float, float]:
        """Return the smallest and the largest finite value."""
        values = [trial.value for trial in importance.compared(self.status.trials) if trial.value is not None]
        finite = [value for value in values if math.isfinite(value)]
        return (min(finite), max(finite)) if finite else (0.0, 0.0)

    def as_json(self) -> dict[str, Any]:
        """Return the sweep with its status, and the computed values, for programs."""
        return {
            **self.manifest,
            "importances": self.importances,
            "cost": as_json(self.cost) if self.cost else None,
            "trialCosts": {str(number): as_json(cost) for number, cost in self.trial_costs.items()},
        }


def build(manifest: Mapping[str, Any], jobs: TrialJobs | None = None) -> SweepReport:
    """Build the report on a sweep. Raises DecodeError."""
    return SweepReport(sweep_codec.sweep(dict(manifest)), sweep_codec.status(dict(manifest)), manifest, jobs)


def ends(space: SearchSpace, drawn: Iterable[str]) -> tuple[str, str]:
    """Return the texts at the ends of the axis of a parameter. A distribution without bounds ends at the smallest and
    the largest of the values that were drawn."""
    match space:
        case list():
            return sweep_values.text(space[0]), sweep_values.text(space[-1])
        case IntRange() | Range():
            return sweep_values.text(space.min), sweep_values.text(space.max)
    values = sorted(drawn, key=float)
    return (values[0], values[-1]) if values else ("", "")


def share(space: SearchSpace, value: str, between: tuple[str, str]) -> float:
    """Return the place of a value on an axis with these ends, from 0 to 1."""
    if isinstance(space, list):
        texts = [sweep_values.text(item) for item in space]
        return texts.index(value) / (len(texts) - 1) if value in texts and len(texts) > 1 else _UNKNOWN
    low, high, number = (float(text) for text in (*between, value))
    if isinstance(space, LogRange | LogNormal) and low > 0:
        low, high, number = math.log(low), math.log(high), math.log(number)
    return min(1.0, max(0.0, (number - low) / (high - low))) if high > low else _UNKNOWN


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def page(report: SweepReport) -> str:
    """Write one HTML file, with the rules of the report on a job."""
    template = html.environment().get_template("sweep_report.html.j2")
    return template.render(policy=html.POLICY, report=report, address="", footer=f"allranks {__version__}")


def text(report: SweepReport) -> Iterator[str]:
    yield f"{report.name}: {report.phase}, {report.verdict}"
    yield ""
    for title, value, note in report.facts:
        yield f"{title}: {value}{f' ({note})' if note else ''}"
    if report.cost:
        yield f"GPU time: {costs.summary(report.cost)}"
    if report.cost_note:
        yield report.cost_note
    if table := report.cost_table:
        yield ""
        yield "GPU time"
        yield from table.plain()
    if table or report.importances:
        yield ""
    if report.importances:
        yield "Importance"
        width = max(map(len, report.importances))
        for name, part in report.importances.items():
            yield f"  {name:{width}}  {part:4.0%}  {'#' * round(30 * part)}".rstrip()
    if report.importance_note:
        yield f"  {report.importance_note}" if report.importances else report.importance_note
        yield ""
    yield from Grid(report.headers, [cells for _, cells in report.rows]).plain()


def rendered(manifest: Mapping[str, Any], form: str, jobs: TrialJobs | None = None) -> str:
    """Write the report as text, html or json. Raises DecodeError."""
    import json

    report = build(manifest, jobs)
    if form == "html":
        return page(report)
    if form == "json":
        return json.dumps(report.as_json(), indent=2) + "\n"
    return "".join(f"{line}\n" for line in text(report))


def is_sweep(documents: Sequence[Any]) -> Mapping[str, Any] | None:
    """Return the only document, if it is a TrainingSweep."""
    if len(documents) == 1 and isinstance(documents[0], dict) and documents[0].get("kind") == "TrainingSweep":
        sweep: Mapping[str, Any] = documents[0]
        return sweep
    return None
