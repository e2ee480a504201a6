"""Loads TrainingSweeps from manifests, with all checks of the job in the template.

Also makes one of a job and the options of `allranks sweep`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.api import job, sweep, sweep_validation
from allranks.api.job import API_VERSION, Job
from allranks.api.sweep import Sweep
from allranks.api.sweep_validation import in_template, parse_sweep
from allranks.api.validation import parse
from allranks.api.validation_messages import similar
from allranks.authoring.checks import manifest as checks
from allranks.authoring.checks.problem import Problem
from allranks.authoring.shipping import Shipping
from allranks.core.objects import pods
from allranks.errors import InvalidManifest


@dataclass(frozen=True, slots=True)
class LoadedSweep:
    """A sweep and the job of its template."""

    sweep: Sweep
    job: Job
    code: Path | None = None
    """The directory that the template names as its code."""


def load_sweep(document: dict[str, Any], shipping: Shipping, file: str) -> tuple[LoadedSweep | None, list[Problem]]:
    """Return the sweep (None if there are errors) and its problems, with the paths in the sweep."""
    document = copy.deepcopy(document)
    inner = sweep_validation.job_document(document)
    code = _code(inner, shipping, file)
    problems: list[Problem] = []
    if inner is not None:
        try:
            problems += [_placed(note) for note in shipping.apply(inner, file)]
        except InvalidManifest as error:
            return None, [_placed(Problem(*problem)) for problem in error.problems]
    try:
        sweep = parse_sweep(document)
    except InvalidManifest as error:
        wrong = [Problem(*problem) for problem in error.problems]
        reported = {problem.path for problem in wrong}
        further = checks.written(inner) if inner is not None else []
        return None, [*wrong, *(problem for problem in map(_placed, further) if problem.path not in reported)]
    job = parse(inner)
    of_job = [Problem(*problem) for problem in pods.problems(job)]
    of_job += checks.written(inner or {}, None if of_job else job)
    problems += [_placed(problem) for problem in of_job]
    if any(problem.severity == "error" for problem in problems):
        return None, problems
    return LoadedSweep(sweep, job, code), problems


def finish_sweep(loaded: LoadedSweep, beside: checks.Beside) -> list[Problem]:
    """Return problems of the pods of a trial, and notes, of a sweep that has no other errors."""
    of_job = [*checks.finished(loaded.job, beside), *_misspelt_parameters(loaded)]
    return [*map(_placed, of_job), *_about_metric(loaded)]


def _misspelt_parameters(loaded: LoadedSweep) -> Iterator[Problem]:
    """Yield warnings about references to misspelt parameters: Kubernetes leaves an unknown `$(NAME)` as it is."""
    parameters = list(loaded.sweep.spec.parameters)
    for path, text in _texts(loaded.job):
        for name in re.findall(r"\$\(([A-Za-z_][-A-Za-z0-9_.]*)\)", text):
            if name not in parameters and (near := similar(name, parameters)):
                yield Problem(path, f"$({name}) is no parameter of the sweep, did you mean $({near})?", "warning")


def _texts(job: Job) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of commands, arguments and variables."""
    for place, part in (("spec", job.spec), *((f"spec.roles.{role}", spec) for role, spec in job.spec.roles.items())):
        for field, words in (("command", part.command), ("args", part.args)):
            yield from ((f"{place}.{field}[{number}]", word) for number, word in enumerate(words or ()))
        for number, variable in enumerate(part.env or ()):
            yield f"{place}.env[{number}].value", variable.value or ""


def _about_metric(loaded: LoadedSweep) -> Iterator[Problem]:
    """Yield a warning if the metric resembles a name of `logPattern`. Other names may be metrics of the program
    itself."""
    objective, progress = loaded.sweep.spec.objective, loaded.job.spec.progress
    if objective is None:
        return
    metric = objective.metric
    groups = re.compile(progress.log_pattern).groupindex if progress and progress.log_pattern else {}
    if metric not in groups and (near := similar(metric, list(groups))):
        message = f"no group of logPattern is named {metric}, did you mean {near}?"
        yield Problem("spec.objective.metric", message, "warning")


def _placed(problem: Problem) -> Problem:
    return problem._replace(path=in_template(problem.path))


def _code(inner: dict[str, Any] | None, shipping: Shipping, file: str) -> Path | None:
    """Return the directory with the code, if the manifest or the command line names one."""
    if isinstance(shipping.code, Path):
        return shipping.code.absolute()
    written = inner["spec"].get("code") if inner else None
    return (Path(file).parent / Path(written).expanduser()).absolute() if isinstance(written, str) else None


# --- a sweep of a job and the options of `allranks sweep` -------------------------------------------------------------

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_WHOLE = re.compile(r"[-+]?\d+")
_RANGE = re.compile(rf"(?:(log|int|uniform):)?({_NUMBER})\.\.({_NUMBER})(?:\.\.({_NUMBER})|/(\d+))?")
_DISTRIBUTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "normal": ("normal", ("mu", "sigma")),
    "lognormal": ("logNormal", ("mu", "sigma")),
    "gamma": ("gamma", ("shape", "scale")),
    "beta": ("beta", ("alpha", "beta")),
    "exponential": ("exponential", ("mean",)),
}
"""Word before the numbers of `--param` -> the distribution, and the fields that the numbers are."""
FORMS = "lr=log:1e-4..1e-1, dropout=0..0.5, layers=int:1..8, momentum=beta:9,1 or batch=16,32,64"


def parameter(text: str) -> tuple[str, dict[str, Any]]:
    """Return (name, values) of `--param`. Raise InvalidManifest."""
    name, equals, values = text.partition("=")
    if not (name and equals and values):
        raise InvalidManifest([(f"--param {text}", f"must be NAME=VALUES, for example {FORMS}")])
    if match := _RANGE.fullmatch(values):
        return name, _range(text, *match.groups())
    kind, colon, numbers = values.partition(":")
    if colon and kind in _DISTRIBUTIONS:
        distribution, fields = _DISTRIBUTIONS[kind]
        parts = numbers.split(",")
        if len(parts) != len(fields) or not all(re.fullmatch(_NUMBER, part) for part in parts):
            form = f"{name}={kind}:{','.join(fields).upper()}"
            raise InvalidManifest([(f"--param {text}", f"must be {form}, with numbers")])
        return name, {distribution: dict(zip(fields, map(float, parts), strict=True))}
    if ".." in values or values.startswith(("log:", "int:", "uniform:")):
        raise InvalidManifest([(f"--param {text}", f"is no range: write {FORMS}")])
    return name, {"values": [_scalar(value) for value in values.split(",")]}


def _range(text: str, kind: str | None, low: str, high: str, step: str | None, points: str | None) -> dict[str, Any]:
    numbers = [number for number in (low, high, step) if number is not None]
    whole = all(map(_WHOLE.fullmatch, numbers))
    if kind == "int" or (kind is None and whole):
        if not whole or points:
            raise InvalidManifest([(f"--param {text}", "int: needs whole numbers, for example layers=int:1..8")])
        return {"int": dict(zip(("min", "max", "step"), map(int, numbers), strict=False))}
    bounds: dict[str, Any] = dict(zip(("min", "max", "step"), map(float, numbers), strict=False))
    bounds |= {"points": int(points)} if points else {}
    return {"logUniform" if kind == "log" else "uniform": bounds}


def sweep_document(
    document: dict[str, Any], parameters: Iterable[tuple[str, dict[str, Any]]], **spec: Any
) -> dict[str, Any]:
    """Return the sweep of a job. A parameter that the job does not name as $(NAME) is added to `args` as
    --NAME=$(NAME)."""
    template = copy.deepcopy(document.get("spec"))
    values = dict(parameters)
    if isinstance(template, dict):
        written = repr(template)
        missing = [name for name in values if f"$({name})" not in written]
        args = template.get("args") or []
        if missing and isinstance(args, list):
            template["args"] = [*args, *(f"--{name}=$({name})" for name in missing)]
    metadata = document.get("metadata") if isinstance(document.get("metadata"), dict) else {}
    kept_metadata = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)} if metadata else {}
    whole = {"parameters": values, **{name: value for name, value in spec.items() if value is not None}}
    return {
        "apiVersion": API_VERSION,
        "kind": sweep.KIND,
        "metadata": {"name": (metadata or {}).get("name", "sweep")},
        "spec": {**whole, "template": {**({"metadata": kept_metadata} if kept_metadata else {}), "spec": template}},
    }


def is_job(document: Any) -> bool:
    return isinstance(document, dict) and document.get("kind") == job.KIND


def _scalar(text: str) -> str | int | float | bool:
    if _WHOLE.fullmatch(text):
        return int(text)
    if re.fullmatch(_NUMBER, text):
        return float(text)
    return {"true": True, "false": False}.get(text, text)
