"""Parses a manifest and reports all problems at once with their field paths, as the API server would.

The pydantic types from which the CRD is generated check the schema. The CRD's own CEL expressions check the rules.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from allranks.api import cel_rules, job, pod_template, pool
from allranks.api.crd import Schema, root_schema
from allranks.api.data import upper
from allranks.api.job import API_VERSION, Job, Metadata, Spec
from allranks.api.pool import Pool, PoolSpec
from allranks.api.sweep import SweepSpec
from allranks.api.validation_messages import json_type, meant_fields, path_step, problem, steps_of, unknown_roles
from allranks.errors import InvalidManifest
from allranks.frameworks import FRAMEWORKS

Problem = tuple[str, str]
"""(field path, message)"""

MAX_TEMPLATE_BYTES = 256 * 1024
"""Size as JSON of all parts of a spec that have no schema. Each pod holds a copy, and as objects they take up to forty
times as much of the operator's memory. Templates in practice have a few KiB."""
MAX_MERGED_BYTES = 2 * MAX_TEMPLATE_BYTES
"""The same size, with a copy of `spec.template` for each role: the operator merges it with the template of the role."""
MAX_TEMPLATE_DEPTH = 64
"""Nesting of a part without a schema. A complete PodTemplateSpec has about twenty levels."""
MAX_LABELS = 64
"""Labels of a template, and likewise its annotations. Each pod has them, and everything that watches pods decodes
them."""
MAX_LABEL_BYTES = 32 * 1024
"""Size of the labels of a template, and likewise of its annotations."""
M = TypeVar("M", bound=BaseModel)

_ROUNDS = 3
"""An object without a required field is left out in the next round."""
_ANY: dict[tuple[int | str, ...], str] = {
    ("spec", "framework"): [name for name, framework in FRAMEWORKS.items() if framework.any_role][-1],
    ("metadata", "name"): "name",
}
"""Fields without which nothing can be checked -> a value that stands for any."""


class _Document(BaseModel):
    model_config = {"extra": "forbid", "strict": True}
    apiVersion: str
    kind: str
    metadata: Metadata
    status: Any = None


class _JobDocument(_Document):
    spec: Spec


class _PoolDocument(_Document):
    spec: PoolSpec


class SweepDocument(_Document):
    """A TrainingSweep, for `sweep_validation`."""

    spec: SweepSpec


def parse(document: Any, stored: bool = False) -> Job:
    """Return the job in a manifest (decoded YAML or JSON), with defaults.

    Raise InvalidManifest with all problems. If it is `stored`, the API server has evaluated the CEL rules.
    """
    parsed = _parse(document, job.KIND, _JobDocument, stored)
    return Job(metadata=parsed.metadata, spec=parsed.spec)


def without_errors(document: Any) -> Job | None:
    """Return the job without the values that violate the schema, for further checks; None if too little of it is
    left."""
    try:
        parsed: _JobDocument | None = _JobDocument.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        parsed = repaired(document, _JobDocument, error.errors(include_url=False))
    return Job(metadata=parsed.metadata, spec=parsed.spec) if parsed else None


def parse_pool(document: Any) -> Pool:
    """Return the TrainingPool in a manifest. Raise InvalidManifest with all problems."""
    parsed = _parse(document, pool.KIND, _PoolDocument)
    return Pool(parsed.metadata.name, parsed.spec)


def _parse(document: Any, kind: str, model: type[_Document], stored: bool = False) -> Any:
    if not isinstance(document, dict):
        raise InvalidManifest([("", f"a manifest must be a mapping, not {json_type(document)}")])
    problems = list(wrong_kind(document, kind))
    if problems:
        raise InvalidManifest(problems)
    parsed: Any = None
    partial: Any = None
    meant: dict[str, str] = {}
    try:
        parsed = model.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems = [problem(detail, root_schema(kind)) for detail in details]
        meant = meant_fields(details, root_schema(kind))
        partial = repaired(document, model, details)
    if kind == job.KIND:
        unknown = list(unknown_roles(document.get("spec"), root_schema(kind)))
        problems = [item for item in problems if not any(_within(item[0], path) for path, _, _ in unknown)]
        problems += [(path, message) for path, message, _ in unknown]
        meant |= {path: role for path, _, role in unknown if role}
    problems += _template_problems(document.get("spec"))
    if too_much := list(unbounded(document.get("spec"))):
        raise InvalidManifest([*problems, *too_much], meant=meant)  # an evaluation of the rules could take very long
    complete = document if (checked := parsed or partial) is None else with_defaults(document, checked)
    if partial is not None:
        complete = with_values(complete, document)
    reported = [path for path, _ in problems]
    broken = [] if stored else rule_problems(complete, reported, lenient=parsed is None, kind=kind)
    # A rule that fails at a field for which the schema has already reported a problem adds nothing.
    problems += [(path, text) for path, text in broken if not any(_within(other, path) for other in reported)]
    if problems or parsed is None:
        raise InvalidManifest(list(dict.fromkeys(problems)), meant=meant)
    return parsed


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))


def with_defaults(document: Mapping[str, Any], parsed: Job | Pool) -> dict[str, Any]:
    """Return the document as the API server would store it."""
    return {**document, "spec": parsed.spec.model_dump(by_alias=True, exclude_none=True, mode="json")}


def rule_problems(
    document: Mapping[str, Any], wrong: Iterable[str] = (), lenient: bool = False, kind: str = job.KIND
) -> list[Problem]:
    """Return (path, message) of the CEL rules that the document violates.

    Rules that read a field whose path is in `wrong` are skipped. `lenient` also skips rules that cannot be evaluated,
    which a document with schema errors may cause."""
    schema = root_schema(kind)
    skipped, broken = tuple(wrong), []
    for rule, place, field, message, value in _rules(schema, _without_templates(schema, document), ""):
        if not _reads(rule, place, skipped) and not _holds(rule, value, lenient):
            text = _about_variables(message, field, value) + _about_directory(field, value)
            broken.append(((place + field).removeprefix("."), text))
    # The messages of rules of the whole object begin with the path.
    return [(path, message) if path else _split(message) for path, message in broken]


def _about_variables(message: str, field: str, value: Any) -> str:
    """Return the message with the name of the input's variable, and of the listed variables only the ones set at
    `field`.

    Messages of CEL are fixed texts: messages that depend on the value would cost the API server time at every write."""
    if isinstance(value, dict) and isinstance(name := value.get("name"), str):
        message = message.replace("ALLRANKS_INPUT_NAME", f"ALLRANKS_INPUT_{upper(name)}")
    subject, remove_any, listed = message.partition(cel_rules.REMOVE_ANY)
    if not remove_any:
        return message
    for step in filter(None, field.split(".")):
        value = (value or {}).get(step)
    names = [variable.get("name") for variable in value or () if isinstance(variable, dict)]
    set_names = [name for name in listed.split(", ") if name in names]
    return f"{subject}remove {', '.join(set_names)}" if set_names else message


def _about_directory(field: str, value: Any) -> str:
    """Return the cure for a directory of this machine as the address of data."""
    address = value.get(field.removeprefix(".")) if field in (".from", ".to") else None
    if not isinstance(address, str) or not address.removeprefix("file://").startswith(("/", "./", "../", "~")):
        return ""
    return f"; for a directory of this machine, run with --volume {value.get('name')}={address.removeprefix('file://')}"


def _split(message: str) -> Problem:
    path, _, text = message.partition(": ")
    return path, text


def template_problems(content: Mapping[str, Any], place: str) -> Iterator[Problem]:
    """Yield wrong types and too many labels inside a pod template, whose content the CRD's schema does not check."""
    for detail in pod_template.errors(content):
        path, message = problem(detail, {})
        yield f"{place}.{path}", message
    metadata = content.get("metadata")
    for part in ("labels", "annotations"):
        values = metadata.get(part) if isinstance(metadata, dict) else None
        if isinstance(values, dict) and (message := _too_many(part, values)):
            yield f"{place}.metadata.{part}", message


def _too_many(part: str, values: Mapping[str, Any]) -> str:
    if len(values) > MAX_LABELS:
        return f"has {len(values)} {part}, and at most {MAX_LABELS} fit: remove the others"
    size = sum(len(f"{key}{value}".encode()) for key, value in values.items())
    if size > MAX_LABEL_BYTES:
        return f"has {size} bytes, and at most {MAX_LABEL_BYTES} fit: move data to a ConfigMap or image"
    return ""


def _template_problems(spec: Any) -> Iterator[Problem]:
    """Yield wrong types inside templates, read from the raw document, so that they are reported with all other
    problems."""
    for place, container in _containers(spec):
        content = container.get("template")
        if isinstance(content, dict):
            yield from template_problems(content, f"{place}.template")


def _containers(spec: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return (path, value) of the spec and of its roles; the ones that are no mappings are left out."""
    places = [("spec", spec)] if isinstance(spec, dict) else []
    if places and isinstance(spec.get("roles"), dict):
        places += [(f"spec.roles.{role}", part) for role, part in spec["roles"].items() if isinstance(part, dict)]
    return places


def unbounded(spec: Any) -> Iterator[Problem]:
    """Yield parts without a schema that are nested too deeply or too large, in a raw spec."""
    sizes: dict[str, int] = {}
    for path, part in _parts_without_schema(spec):
        if part is None:
            continue
        if _is_deeper(part, MAX_TEMPLATE_DEPTH):
            yield path, f"is nested more than {MAX_TEMPLATE_DEPTH} levels deep: no pod template needs that"
        else:
            sizes[path] = len(json.dumps(part, ensure_ascii=False, separators=(",", ":"), default=str).encode())
    if sum(sizes.values()) > MAX_TEMPLATE_BYTES:
        yield too_large("spec")
        return
    size, roles = sizes.get("spec.template", 0), len(_containers(spec)) - 1
    fits = (MAX_MERGED_BYTES - sum(sizes.values()) + size) // max(1, roles)
    if size > fits:
        yield "spec.template", f"has {size} bytes, and each of the {roles} roles has a copy: at most {fits} bytes fit"


def too_large(path: str) -> Problem:
    limit = f"{MAX_TEMPLATE_BYTES // 1024} KiB"
    return (
        path,
        f"templates, valueFrom and volume have more than {limit} in total: move data to a ConfigMap or image",
    )


def _parts_without_schema(spec: Any) -> Iterator[tuple[str, Any]]:
    for place, container in _containers(spec):
        yield f"{place}.template", container.get("template")
        env = container.get("env")
        for number, variable in enumerate(env if isinstance(env, list) else ()):
            if isinstance(variable, dict):
                yield f"{place}.env[{number}].valueFrom", variable.get("valueFrom")
    if isinstance(spec, dict) and isinstance(spec.get("checkpoint"), dict):
        yield "spec.checkpoint.volume", spec["checkpoint"].get("volume")


def _is_deeper(value: Any, levels: int) -> bool:
    """Return whether a value has more levels. This is not recursive, so that no nesting is too deep for it."""
    layer = [value]
    for _ in range(levels + 1):
        if not layer:
            return False
        inner = (part.values() if isinstance(part, dict) else part for part in layer if isinstance(part, dict | list))
        layer = [item for items in inner for item in items]
    return True


def wrong_kind(document: Mapping[str, Any], kind: str) -> Iterator[Problem]:
    """Yield problems of `kind` and `apiVersion`."""
    for field, expected in (("kind", kind), ("apiVersion", API_VERSION)):
        actual = document.get(field)
        if actual is None:
            yield field, f"is required: {field}: {expected}"
        elif actual != expected:
            yield field, f"must be {expected}, not {actual!r}"


def _reads(rule: str, place: str, paths: Iterable[str]) -> bool:
    """Return whether a rule at `place` reads one of the fields at `paths`."""
    names = (f".{path}".removeprefix(place) for path in paths if f".{path}".startswith(f"{place}."))
    rule = re.sub(r"\['(\w+)'\]", r".\1", rule)
    return any(re.search(rf"\bself{re.escape(name)}\b", rule) for name in names)


def _rules(schema: Schema, value: Any, path: str) -> Iterator[tuple[str, str, str, str, Any]]:
    """Yield every rule that applies somewhere in `value`: (rule, path of the object, fieldPath, message, value of
    `self`)."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"]:
            yield rule["rule"], path, rule.get("fieldPath", ""), rule["message"], value
    if isinstance(value, dict):
        for name, child in schema.get("properties", {}).items():
            if name in value:
                yield from _rules(child, value[name], f"{path}.{name}")
        if "additionalProperties" in schema:
            for key, item in value.items():
                yield from _rules(schema["additionalProperties"], item, path + path_step(key))
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _rules(schema["items"], item, f"{path}[{index}]")


def _without_templates(schema: Schema, value: Any) -> Any:
    """Return the value without the fields that have no schema, such as those in a template.

    Rules cannot read them, and the evaluator copies the whole value for each rule.
    """
    if isinstance(value, dict):
        fields, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            value = {name: item for name, item in value.items() if name in fields}
        return {name: _without_templates(fields.get(name, others), item) for name, item in value.items()}
    if isinstance(value, list) and "items" in schema:
        return [_without_templates(schema["items"], item) for item in value]
    return value


def _holds(rule: str, value: Any, lenient: bool) -> bool:
    try:
        return bool(_program(rule).execute({"self": value}))
    except Exception:  # the evaluator raises various types for values of a wrong type
        if lenient:
            return True
        raise


@cache
def _program(rule: str) -> Any:
    # The package also imports its command line, which takes 0.2 s: a third of `allranks validate`.
    sys.modules.setdefault("cel.cli", ModuleType("cel.cli"))
    import cel

    return cel.compile(rule)


# --- the rest of a document with errors ------------------------------------------------------------------------------


def repaired(document: dict[str, Any], model: type[M], errors: Sequence[ErrorDetails]) -> M | None:
    """Return the document without the values that `errors` are about; None if too little of it is left."""
    remaining = copy.deepcopy(document)
    for _ in range(_ROUNDS):
        for detail in reversed(errors):
            path = tuple(steps_of(detail))
            drop(remaining, path)
            parent = remaining.get(str(path[0])) if len(path) == 2 else None
            if path in _ANY and isinstance(parent, dict):
                parent[str(path[1])] = _ANY[path]
        try:
            return model.model_validate(remaining, by_alias=True, by_name=False)
        except ValidationError as error:
            errors = error.errors(include_url=False)
    return None


def with_values(complete: Any, written: Any) -> Any:
    """Return `complete`, which has all defaults, with the values of `written`, also the wrong ones."""
    if isinstance(complete, dict) and isinstance(written, dict):
        merged = {key: with_values(complete.get(key), value) for key, value in written.items() if value is not None}
        return {**complete, **merged}
    if isinstance(complete, list) and isinstance(written, list) and len(complete) == len(written):
        return [with_values(item, written_item) for item, written_item in zip(complete, written, strict=True)]
    return written


def drop(value: Any, path: Sequence[int | str]) -> None:
    """Remove the value at `path`, or the nearest one above it that exists: an object without a required field."""
    steps: list[tuple[Any, int | str]] = []
    for step in path:
        is_item = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if not is_item and not (isinstance(value, dict) and step in value):
            break
        steps.append((value, step))
        value = value[step]
    if steps:
        container, step = steps[-1]
        del container[step]
