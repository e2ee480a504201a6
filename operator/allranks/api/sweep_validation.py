"""Parses a TrainingSweep and reports all problems at once with their field paths, also the problems of the job in
it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from allranks.api import job, sweep_values, validation
from allranks.api.crd import root_schema
from allranks.api.job import API_VERSION
from allranks.api.sweep import KIND, MAX_TRIALS, Distribution, LogRange, Parameter, Range, Sweep, SweepSpec
from allranks.api.validation import Problem
from allranks.api.validation_messages import json_type, path_step, problem
from allranks.errors import InvalidManifest
from allranks.text import stored_bytes

MAX_SPEC_BYTES = 256 * 1024
"""JSON text of a sweep's spec."""
MAX_PARAMETER_BYTES = 256 * 1024
"""Names and values of the parameters of all trials, which the status holds."""
TEMPLATE = "spec.template.spec"
_NAME = re.compile(r"[A-Za-z]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_NESTED = "a sweep of sweeps is refused: the template is a DistributedTraining"


def parse_sweep(document: Any, stored: bool = False) -> Sweep:
    """Return the sweep in a manifest (decoded YAML or JSON), with defaults. Raise InvalidManifest with all problems.

    If it is `stored`, the API server has evaluated the CEL rules, which take seconds for the largest sweep.
    """
    if not isinstance(document, dict):
        raise InvalidManifest([("", f"a manifest must be a mapping, not {json_type(document)}")])
    if wrong := list(validation.wrong_kind(document, KIND)):
        raise InvalidManifest(wrong)
    if _contains_sweep(document):
        raise InvalidManifest([("spec.template", _NESTED)])
    if _is_too_large(document.get("spec")):
        raise InvalidManifest([too_large()])
    problems: list[Problem] = []
    parsed: Any = None
    try:
        parsed = validation.SweepDocument.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        problems = [problem(detail, root_schema(KIND)) for detail in error.errors(include_url=False)]
    if not stored:
        problems += _broken_rules(document, parsed, [path for path, _ in problems])
    if parsed is not None:
        problems += _problems_of(parsed.spec)
    problems += template_problems(document, stored)
    if problems or parsed is None:
        raise InvalidManifest(list(dict.fromkeys(problems)))
    return Sweep(parsed.metadata, parsed.spec)


def _is_too_large(spec: Any) -> bool:
    try:
        text = json.dumps(spec, separators=(",", ":"), ensure_ascii=False, default=str)
    except RecursionError:
        return True
    return len(text) > MAX_SPEC_BYTES or len(text.encode(errors="replace")) > MAX_SPEC_BYTES


def too_large() -> Problem:
    limit = f"{MAX_SPEC_BYTES // 1024} KiB"
    return "spec", f"has more than {limit} as JSON, or is nested too deeply: move data to a ConfigMap or image"


def job_document(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the DistributedTraining in the template, with the name of the sweep; None if the template has none."""
    spec = document.get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        return None
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    labels = {}
    if isinstance(outer := template.get("metadata"), dict):
        labels = {key: outer[key] for key in ("labels", "annotations") if outer.get(key)}
    return {
        "apiVersion": API_VERSION,
        "kind": job.KIND,
        "metadata": {"name": name if isinstance(name, str) else "sweep", **labels},
        "spec": template["spec"],
    }


def in_template(path: str) -> str:
    """Return the path in the sweep of a field of its job."""
    if path.startswith("metadata"):
        return f"spec.template.{path}"
    return TEMPLATE + path.removeprefix("spec")


def template_problems(document: Mapping[str, Any], stored: bool = False) -> Iterator[Problem]:
    """Yield problems of the job in the template, and fields that only the sweep may set."""
    inner = job_document(document)
    if inner is None:
        return
    for field, reason in _OF_THE_SWEEP.items():
        if inner["spec"].get(field):
            yield f"{TEMPLATE}.{field}", reason
    try:
        validation.parse(inner, stored)
    except InvalidManifest as error:
        # The job has the name of the sweep, whose own rule is stricter.
        yield from ((in_template(path), text) for path, text in error.problems if path != "metadata.name")


_PUNCTUATION = len('"":"",')


_OF_THE_SWEEP = {
    "suspend": "the sweep suspends a trial to stop it: remove suspend",
    "managedBy": "the sweep needs this operator: remove managedBy",
    "ttlSecondsAfterFinished": "the jobs of a sweep are deleted with it: remove ttlSecondsAfterFinished",
}


def _contains_sweep(document: Mapping[str, Any]) -> bool:
    spec = document.get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    if not isinstance(template, dict):
        return False
    inner = template.get("spec")
    return template.get("kind") == KIND or (isinstance(inner, dict) and {"parameters", "template"} <= inner.keys())


def _broken_rules(document: Mapping[str, Any], parsed: Any, wrong: list[str]) -> Iterator[Problem]:
    """Yield the rules of the sweep itself, with the paths where a problem is reported already left out."""
    spec = document.get("spec")
    if parsed is not None:
        spec = parsed.spec.model_dump(by_alias=True, exclude_none=True, mode="json")
    if not isinstance(spec, dict):
        return
    without_template = {**document, "spec": {name: value for name, value in spec.items() if name != "template"}}
    for path, text in validation.rule_problems(without_template, wrong, lenient=parsed is None, kind=KIND):
        if not any(other == path or other.startswith((f"{path}.", f"{path}[")) for other in wrong):
            yield path, text


def _problems_of(spec: SweepSpec) -> Iterator[Problem]:
    """Yield problems that neither the schema nor a rule of the CRD finds."""
    wrong = [*_problems_of_names(spec), *_problems_of_spaces(spec)]
    yield from wrong or _problems_of_size(spec)


def _problems_of_names(spec: SweepSpec) -> Iterator[Problem]:
    variables: dict[str, str] = {}
    for name in spec.parameters:
        path = f"spec.parameters{path_step(name)}"
        if not _NAME.fullmatch(name):
            yield path, "must be letters, digits, '_', '-' and '.', and begin with a letter: it is used as $(NAME)"
        other = variables.setdefault(sweep_values.variable(name), name)
        if other != name:
            yield path, f"has the same variable as {other}, {sweep_values.variable(name)}: rename one of them"


def _problems_of_spaces(spec: SweepSpec) -> Iterator[Problem]:
    for name, parameter in spec.parameters.items():
        path = f"spec.parameters{path_step(name)}"
        if len(parameter.spaces) != 1:
            yield path, f"set exactly one of {_SPACES}"
        for kind, space in parameter.spaces.items():
            match space:
                case Range():
                    yield from _problems_of_range(f"{path}.{kind}", space, spec.algorithm)
                case Distribution():
                    yield from _not_positive(f"{path}.{kind}", space)
                    if reason := _WITHOUT_BOUNDS.get(spec.algorithm):
                        yield f"{path}.{kind}", reason


def _problems_of_range(path: str, bounds: Range, algorithm: str) -> Iterator[Problem]:
    if bounds.min >= bounds.max:
        yield f"{path}.max", "must be larger than min"
    elif isinstance(bounds, LogRange) and bounds.min <= 0:
        yield f"{path}.min", "must be larger than 0: it has a logarithm"
    elif bounds.step is not None and bounds.points is not None:
        yield f"{path}.points", "set either points or step: a step determines the values that algorithm Grid tries"
    elif bounds.step is not None and bounds.step > bounds.max - bounds.min:
        yield f"{path}.step", "must not be larger than the difference of max and min"
    elif algorithm == "Grid" and bounds.step is None and bounds.points is None:
        yield f"{path}.points", "is required for algorithm Grid: how many values to try"
    yield from _not_positive(path, bounds)


def _not_positive(path: str, distribution: Distribution) -> Iterator[Problem]:
    for field in _POSITIVE:
        value = getattr(distribution, field, None)
        if value is not None and value <= 0:
            yield f"{path}.{field}", "must be larger than 0"


def _problems_of_size(spec: SweepSpec) -> Iterator[Problem]:
    """Yield problems with the number of trials of a sweep whose parameters have no problems."""
    size = sweep_values.combinations(spec) if spec.algorithm == "Grid" else None
    if size and size > MAX_TRIALS and not spec.trials:
        yield "spec.parameters", f"have {size} combinations, but a sweep has at most {MAX_TRIALS} trials: set trials"
    if size and spec.trials and spec.trials > size:
        yield "spec.trials", f"there are only {size} combinations: remove trials"
    largest = sum(
        stored_bytes(name) + sweep_values.longest(parameter) + _PUNCTUATION
        for name, parameter in spec.parameters.items()
    )
    fits = max(0, MAX_PARAMETER_BYTES // largest - 1)  # the status has the best trial twice
    if sweep_values.number_of_trials(spec) > fits:
        # Not at trials, which may be absent.
        yield "spec.parameters", f"take up to {largest} bytes per trial, of which {fits} trials fit into the status"


*_OTHERS, _LAST = (field.alias or name for name, field in Parameter.model_fields.items())
_SPACES = f"{', '.join(_OTHERS)} and {_LAST}"
_POSITIVE = ("step", "sigma", "shape", "scale", "alpha", "beta", "mean")
_WITHOUT_BOUNDS = {
    "Grid": "has no finite set of values, which algorithm Grid needs: use values, int, or uniform with points or step",
    "TPE": "algorithm TPE searches between two bounds: use uniform or logUniform, or algorithm Random",
}
"""Algorithm -> why it refuses distributions without bounds."""
