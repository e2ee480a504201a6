"""The form for a new job, made from the schema of the CRD: its fields with their values, and changes of a manifest by
fields. Pure.

Descriptions are the help, enums are choices, and bounds are those of the inputs. Lists of texts are edited line by
line; other lists and maps are edited as YAML.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from allranks.api import job
from allranks.api.crd import root_schema
from allranks.cli.format.yaml import dump
from allranks.frameworks import FRAMEWORKS
from allranks.ui.entries import Manifest

Schema = dict[str, Any]
Path = tuple[str, ...]
Problems = list[tuple[str, str]]
"""(path of the field, message) of each mistake."""

FIRST = ("framework", "image", "command", "args", "roles", "resources", "code", "checkpoint", "pool")
"""Fields of spec that most jobs need: they come first. The others follow in the order of the schema."""
PREFIX = "field:"
"""Of the names of inputs: `field:spec.framework`."""
_METADATA: dict[str, Schema] = {
    "name": {"type": "string", "description": "Name of the job.", "maxLength": 63},
    "namespace": {"type": "string", "description": "Namespace of the job.", "maxLength": 63},
    "labels": {"type": "object", "description": "Labels of the job, as YAML: team: nlp", "additionalProperties": {}},
}


@dataclass(frozen=True)
class Input:
    """One input. `kind`: text, number, choice, lines or yaml."""

    path: str
    label: str
    help: str
    kind: str
    value: str = ""
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    longest: int | None = None
    placeholder: str = ""
    required: bool = False
    problem: str = ""

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.path}"


@dataclass(frozen=True)
class Section:
    """The fields of an object."""

    path: str
    title: str
    help: str
    inputs: tuple[Input, ...] = ()
    sections: tuple[Section, ...] = ()
    given: bool = False
    """The manifest has a part of it, or it has a problem."""

    @property
    def inner(self) -> Iterator[Input]:
        yield from self.inputs
        for section in self.sections:
            yield from section.inner


@functools.cache
def _spec() -> Schema:
    spec: Schema = root_schema(job.KIND)["properties"]["spec"]
    return spec


# --- the form of a manifest ------------------------------------------------------------------------------------------


def form(
    document: Any, problems: Iterable[tuple[str, str]] = (), given: Mapping[str, str] | None = None
) -> list[Section]:
    """The sections of the form. `given`: values of inputs that replace those of the manifest, by name."""
    made = _Form(dict(problems), given or {})
    document = document if isinstance(document, dict) else {}
    metadata, spec = _mapping(document, "metadata"), _mapping(document, "spec")
    inputs = [made.input(("metadata", name), _METADATA[name], metadata.get(name), name == "name") for name in _METADATA]
    sections: list[Section] = []
    properties = _spec()["properties"]
    chosen = spec.get("framework")
    required = set(_spec()["required"])
    for name in sorted(properties, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)):
        if name in FRAMEWORKS and name != chosen and name not in spec:
            continue
        path, schema, value = ("spec", name), properties[name], spec.get(name)
        if name == "roles":
            sections += made.roles(schema, value)
        elif _is_section(schema):
            sections.append(made.section(path, schema, value))
        else:
            inputs.append(made.input(path, schema, value, name in required))
    first = [each for each in inputs if each.path.rpartition(".")[2] in (*_METADATA, *FIRST)]
    rest = tuple(each for each in inputs if each not in first)
    other = Section("spec", "More fields", "", rest, given=any(each.value or each.problem for each in rest))
    return [Section("", "Job", "", tuple(first), given=True), *sections, other]


def _mapping(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


@dataclass
class _Form:
    problems: dict[str, str]
    given: Mapping[str, str] = field(default_factory=dict)

    def roles(self, schema: Schema, value: Any) -> Iterator[Section]:
        names = [str(name) for name in value] if isinstance(value, dict) else []
        of_role: Schema = schema["additionalProperties"]
        order = sorted(of_role["properties"], key=lambda name: name != "replicas")
        of_role = {**of_role, "properties": {name: of_role["properties"][name] for name in order}}
        for name in names[:16] or ["worker"]:
            role = value.get(name) if isinstance(value, dict) else None
            found = self.section(("spec", "roles", name), of_role, role)
            yield Section(found.path, f"Role {name}", schema["description"], found.inputs, found.sections, True)

    def section(self, path: Path, schema: Schema, value: Any) -> Section:
        values = value if isinstance(value, dict) else {}
        inputs, sections = [], []
        required = set(schema.get("required", ()))
        for name, of_field in schema["properties"].items():
            below = (*path, name)
            if _is_section(of_field):
                sections.append(self.section(below, of_field, values.get(name)))
            else:
                inputs.append(self.input(below, of_field, values.get(name), name in required and bool(values)))
        made = Section(".".join(path), path[-1], schema.get("description", ""), tuple(inputs), tuple(sections))
        problem = any(where == made.path or where.startswith(f"{made.path}.") for where in self.problems)
        return Section(made.path, made.title, made.help, made.inputs, made.sections, bool(values) or problem)

    def input(self, path: Path, schema: Schema, value: Any, required: bool) -> Input:
        dotted, kind = ".".join(path), _kind(schema)
        choices = ("true", "false") if schema.get("type") == "boolean" else tuple(map(str, schema.get("enum", ())))
        text = self.given.get(f"{PREFIX}{dotted}", _text(kind, value))
        if choices and text and text not in choices:
            choices = (*choices, text)  # not allowed, and said so: it must not look like another value
        default = schema.get("default")
        inside = (problem for where, problem in self.problems.items() if _within(where, dotted))
        return Input(
            dotted,
            path[-1],
            schema.get("description", ""),
            kind,
            text,
            choices,
            schema.get("minimum") if kind == "number" else None,
            schema.get("maximum") if kind == "number" else None,
            schema.get("maxLength") if kind == "text" and schema.get("type") == "string" else None,
            "" if default is None or default == {} else _text(kind, default),
            required,
            next(inside, ""),
        )


def _is_section(schema: Schema) -> bool:
    """Volumes and pod templates are edited as YAML: their fields are those of Kubernetes."""
    return "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields")


def _within(path: str, field_path: str) -> bool:
    return path == field_path or path.startswith((f"{field_path}.", f"{field_path}["))


def _kind(schema: Schema) -> str:
    if schema.get("enum") or schema.get("type") == "boolean":
        return "choice"
    if schema.get("type") in ("integer", "number"):
        return "number"
    if schema.get("type") == "array" and schema["items"].get("type") == "string":
        return "lines"
    if schema.get("type") in ("array", "object"):
        return "yaml"
    return "text"


def _text(kind: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if kind == "lines" and isinstance(value, list) and all(isinstance(each, str) and _one_line(each) for each in value):
        return "\n".join(value)
    if isinstance(value, (dict, list)):
        return dump([value]).rstrip("\n") if value else "{}" if isinstance(value, dict) else "[]"
    return str(value)


def _one_line(text: str) -> bool:
    return bool(text.strip()) and "\n" not in text and text == text.strip()


# --- changes of a manifest -------------------------------------------------------------------------------------------


def change(document: Manifest, given: Mapping[str, str]) -> tuple[Manifest, Problems]:
    """The manifest with the values of inputs, by name, and what is wrong with them. Empty texts remove fields."""
    made: Manifest = copy.deepcopy(document)
    problems: Problems = []
    for name, text in given.items():
        path = name.removeprefix(PREFIX)
        found = _field_of(made, path) if name.startswith(PREFIX) else None
        if found is None:
            continue
        keys, schema = found
        try:
            _put(made, keys, _value(_kind(schema), schema, text))
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f", line {mark.line + 1}" if mark else ""
            problems.append((path, f"this is not YAML{line}: {getattr(error, 'problem', None) or error}"))
    return made, problems


def _field_of(document: Manifest, path: str) -> tuple[Path, Schema] | None:
    """The keys and the schema of a path of the form; None for any other path."""
    top, _, rest = path.partition(".")
    if top == "metadata":
        return ((top, rest), _METADATA[rest]) if rest in _METADATA else None
    if top != "spec":
        return None
    keys, schema = ["spec"], _spec()
    while rest:
        if "properties" in schema:
            name, _, rest = rest.partition(".")
            below = schema["properties"].get(name)
        else:  # a map, such as that of the roles
            name, _, rest = rest.partition(".")
            below = schema.get("additionalProperties") if len(keys) == 2 and keys[1] == "roles" else None
        if not isinstance(below, dict):
            return None
        keys.append(name)
        schema = below
    is_section = keys == ["spec", "roles"] or _is_section(schema)
    return None if is_section else (tuple(keys), schema)


def _value(kind: str, schema: Schema, text: str) -> Any:
    """None for an empty text. Raises YAMLError."""
    stripped = text.replace("\r\n", "\n").strip()
    if not stripped:
        return None
    if kind == "lines":
        if stripped[:1] == "[" or stripped[:2] == "- ":
            return yaml.load(stripped, yaml.CSafeLoader)
        return [line.strip() for line in stripped.splitlines() if line.strip()]
    if kind == "yaml":
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(stripped, yaml.CSafeLoader)):
            raise yaml.YAMLError("it has an alias (*NAME): write its value instead")
        return yaml.load(stripped, yaml.CSafeLoader)
    if schema.get("type") == "boolean":
        return {"true": True, "false": False}.get(stripped, stripped)
    if kind == "number" or schema.get("x-kubernetes-int-or-string"):
        try:
            return int(stripped)
        except ValueError:
            return stripped  # the validation says what is wrong
    return stripped


def _put(document: Manifest, keys: Path, value: Any) -> None:
    """Sets the value at a path. None removes it, and objects that become empty with it, but no role."""
    parents = [document]
    for key in keys[:-1]:
        found = parents[-1].get(key)
        if not isinstance(found, dict):
            if value is None:
                return
            found = parents[-1][key] = {}
        parents.append(found)
    if value is not None:
        parents[-1][keys[-1]] = value
        return
    parents[-1].pop(keys[-1], None)
    for depth in range(len(keys) - 1, 1, -1):
        if parents[depth] or (keys[1] == "roles" and depth <= 3):
            return
        del parents[depth - 1][keys[depth - 1]]
