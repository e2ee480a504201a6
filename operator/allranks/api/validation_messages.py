"""Translates pydantic's errors into messages for users: the field's path, what is wrong, and what to write instead."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic_core import ErrorDetails

from allranks.api.cost import AMOUNT, CURRENCY
from allranks.api.crd import Schema
from allranks.api.data import DATA_NAME
from allranks.api.job import RESUME_FROM
from allranks.api.notify import RECEIVER, WEBHOOK_URL
from allranks.api.pool import ATTACHMENT
from allranks.fields import COMMIT, COMPUTE, LABEL_KEY, SHA256
from allranks.frameworks import FRAMEWORKS
from allranks.frameworks.base import Framework
from allranks.text import flow_list, joined

# Lists of words read better without quotes.
# ruff: noqa: SIM905
POD_FIELDS = frozenset(
    "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks "
    "ephemeralContainers evictionResponders hostAliases hostIPC hostNetwork hostPID hostUsers hostname "
    "hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead preemptionPolicy priority "
    "priorityClassName readinessGates resourceClaims restartPolicy runtimeClassName schedulerName schedulingGates "
    "schedulingGroup securityContext serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace "
    "subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes".split()
)
CONTAINER_FIELDS = frozenset(
    "envFrom imagePullPolicy lifecycle livenessProbe ports readinessProbe resizePolicy restartPolicyRules "
    "startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty volumeDevices "
    "volumeMounts".split()
)
_LONGEST_LIST = 120
_LIKELY = 0.7
"""Similarity from which a field or value is suggested for a word that is wrong in any case."""
_ROLES = tuple(dict.fromkeys(role for framework in FRAMEWORKS.values() for role in framework.roles))
MIGRATION = "docs/guides/migrate.md"
PATTERNS = {
    "^/": "must be an absolute path, which begins with /",
    LABEL_KEY: "must be the key of a label of nodes, for example topology.kubernetes.io/zone",
    SHA256: "must be a SHA-256: 64 digits and letters from a to f, in lower case",
    COMMIT: "must be the hash of a commit: 7 to 64 digits and letters from a to f, in lower case",
    RESUME_FROM: "must be the name of a job, or JOB/STEP, for example birds/1200",
    DATA_NAME: "must have only lower-case letters, digits and '-', begin with a letter, and not end with '-'",
    RECEIVER: "must be the name of a receiver: at most 24 lower-case letters, digits and '-', without '-' at an end",
    WEBHOOK_URL: "must be an address such as https://hooks.example.com/T0, without a login and without spaces",
    AMOUNT: 'must be an amount in quotes, such as "2.50": digits, and at most 6 of them after the point',
    CURRENCY: "must be a currency of three capital letters, for example EUR",
    ATTACHMENT: "must be a NetworkAttachmentDefinition: NAMESPACE/NAME or NAMESPACE/NAME@INTERFACE",
}
"""Pattern of a field of text -> what it means."""
_LONGEST_FORM = 120
_SHELL = re.compile(r"[|&;<>$`*?~\n]")
"""Characters that only a shell understands."""


def problem(detail: ErrorDetails, root: Schema) -> tuple[str, str]:
    """Return (field path, message). `root`: the schema of the whole document; empty for a part without a schema."""
    location = steps_of(detail)
    if detail["type"] == "invalid_key":
        location.pop()
    return _path(location), _message(detail, location, root)


def meant_fields(details: Iterable[ErrorDetails], root: Schema) -> dict[str, str]:
    """Return the path of each unknown field -> the field that it is probably meant to be, if there is one."""
    locations = [steps_of(detail) for detail in details if detail["type"] == "extra_forbidden"]
    meant = {_path(steps): _meant(str(steps[-1]), steps[:-1], root) for steps in locations}
    return {path: field for path, field in meant.items() if field}


def _path(location: Iterable[int | str]) -> str:
    return "".join(map(path_step, location)).removeprefix(".")


def steps_of(detail: ErrorDetails) -> list[int | str]:
    """Return the steps of the path to the value that an error is about."""
    loc = detail["loc"]
    field = 3 if loc[:2] == ("spec", "parameters") else None  # a parameter has the field int
    return [part for index, part in enumerate(loc) if index == field or not _is_union_tag(part)]


def path_step(part: int | str) -> str:
    """Return one step of a field path."""
    return f"[{part}]" if isinstance(part, int) or "." in part or "/" in part else f".{part}"


def unknown_roles(spec: Any, root: Schema) -> Iterator[tuple[str, str, str]]:
    """Yield (field path, message, role that is probably meant) of each role of a raw spec that no framework has."""
    roles = spec.get("roles") if isinstance(spec, dict) else None
    framework = FRAMEWORKS.get(str(spec.get("framework"))) if isinstance(spec, dict) else None
    if not isinstance(roles, dict) or (framework and framework.any_role):
        return
    for role in roles:
        if isinstance(role, str) and role not in _ROLES:
            parents: list[int | str] = ["spec", "roles"]
            message = f"unknown field{_suggestion(role, parents, root, framework)}"
            yield f"spec.roles{path_step(role)}", message, _meant(role, parents, root)


def json_type(value: Any) -> str:
    """Return the type of a value in words, for `must be a list, not ...`."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case str():
            return "a string"
        case dict():
            return "a mapping"
        case list():
            return "a list"
    return type(value).__name__


def quotes_hint(value: Any, expected: str) -> str:
    """Return `: remove the quotes` or `: put it in quotes` if that makes the value right. `expected`: a type of
    JSON."""
    match expected:
        case "string":
            return "" if isinstance(value, dict | list) or value is None else ": put it in quotes"
        case "integer":
            unquoted = isinstance(value, str) and re.fullmatch(r"-?\d+", value) is not None
        case _:
            unquoted = value in ("true", "false")
    return ": remove the quotes" if unquoted else ""


def _message(detail: ErrorDetails, location: list[int | str], root: Schema) -> str:
    value = detail["input"]
    schema = _schema_at(location, root)
    if schema.get("x-kubernetes-int-or-string") and detail["type"] != "missing":
        if word := schema.get("pattern", "").strip("^$"):
            return f"must be a whole number from {schema['minimum']} to {schema['maximum']}, or {word}"
        hint = "" if isinstance(value, dict | list) else ": put it in quotes"
        return f"must be a whole number or a string, not {json_type(value)}{hint}"
    context = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return "is required, or generateName" if location == ["metadata", "name"] else "is required"
        case "extra_forbidden":
            return "unknown field" + _suggestion(str(location[-1]), location[:-1], root)
        case "invalid_key":
            return f"has the key {json_type(value)}, which must be text{_key_hint(value)}"
        case "string_type":
            return f"must be a string, not {json_type(value)}{quotes_hint(value, 'string')}"
        case "int_type" | "int_from_float":
            return f"must be a whole number, not {json_type(value)}{quotes_hint(value, 'integer')}"
        case "bool_type":
            return f"must be true or false, not {json_type(value)}{quotes_hint(value, 'boolean')}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"must be a mapping, not {json_type(value)}{_mapping_hint(value, location, schema)}"
        case "list_type":
            return f"must be a list, not {json_type(value)}{_list_hint(value, location, schema)}"
        case "literal_error":
            return f"should be {context['expected']}{_value_hint(value, str(context['expected']))}"
        case "string_pattern_mismatch" if sentence := PATTERNS.get(str(context.get("pattern"))):
            return sentence
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters, and has {len(value)}"
        case "too_short":
            return f"must have at least {context['min_length']} item"
        case "too_long":
            return f"must have at most {context['max_length']} items, and has {len(value)}"
        case _:
            return detail["msg"].removeprefix("Input ").removeprefix("Value error, ")


def _key_hint(key: Any) -> str:
    words = {True: "on and yes", False: "off and no"} if isinstance(key, bool) else {}
    return f": YAML reads {words[key]} as {json_type(key)}" if words else ": put it in quotes"


def _is_union_tag(part: int | str) -> bool:
    return isinstance(part, str) and (part in {"int", "str", "constrained-str", "constrained-int"} or "[" in part)


def _mapping_hint(value: Any, location: list[int | str], schema: Schema) -> str:
    if value is None and location == ["spec", "roles"]:
        return ": write the roles below it, indented, for example worker: {replicas: 2}"
    if isinstance(value, int) and not isinstance(value, bool) and location[:2] == ["spec", "roles"]:
        return f": write {{replicas: {value}}}"
    form = _long_form(value, location, schema)
    return f": write {form}" if form and len(form) < _LONGEST_FORM else ""


def _long_form(value: Any, location: list[int | str], schema: Schema) -> str:
    """Return the mapping that is meant by a shorter form."""
    text = json.dumps(value, default=str)
    match location, value:
        case (["spec", "objective"], str()):
            return f"{{metric: {value}, goal: Minimize}}"
        case (["spec", "stop"], str()):
            return f"{{rule: {value}}}"
        case (["spec", "parameters", _], list()):
            return f"{{values: {text}}}"
        case (["spec", "parameters", _], str() | int() | float()):
            return f"{{values: [{text}]}}"
        case (["spec", "parameters", _, _], list()) if len(value) == len(names := schema.get("required", ())):
            numbers = (json.dumps(number, default=str) for number in value)
            return f"{{{', '.join(f'{name}: {number}' for name, number in zip(names, numbers, strict=True))}}}"
        case (["spec", "notify", _], str()):
            return f"{{receiver: {value}}}"
        case (["spec", "notify", _, "webhook"], str()):
            return f"{{url: {text}}}"
    return ""


def _list_hint(value: Any, location: list[int | str], schema: Schema) -> str:
    field = location[-1] if location else ""
    if isinstance(value, str) and field in ("command", "args"):
        return f": write {_argument_list(value, str(field))}"
    if isinstance(value, dict) and field == "env":
        texts = {name: text if isinstance(text, str) else json.dumps(text, default=str) for name, text in value.items()}
        written = ", ".join(f"{{name: {name}, value: {json.dumps(text)}}}" for name, text in texts.items())
        return f": write [{written}]" if len(written) < _LONGEST_FORM else ": write {name: NAME, value: VALUE} for each"
    items = schema.get("items", {}).get("type")
    if isinstance(value, dict) and items == "object":
        return ": begin each of its items with '- '"
    if isinstance(value, str) and location == ["spec", "notify"]:
        return f": write [{{receiver: {value}}}]"
    return f": write {flow_list([value])}" if isinstance(value, str) and items == "string" else ""


def _argument_list(text: str, field: str) -> str:
    """Return the YAML list for a command line."""
    try:
        words = shlex.split(text)
    except ValueError:  # a quote without its end
        words = []
    if field == "command" and (not words or _SHELL.search(text)):
        return f"[sh, -c, {json.dumps(text)}]"
    return flow_list(words or [text])


def _value_hint(value: Any, expected: str) -> str:
    if not isinstance(value, str):
        return f", not {json_type(value)}"
    near = similar(value, re.findall(r"'([^']*)'", expected), _LIKELY)
    return f", did you mean {near}?" if near else f", not {value!r}"


def similar(word: str, names: Iterable[str], cutoff: float = 0.8) -> str | None:
    """Return the name of which `word` is probably a misspelling: other capitals, `_`, or a few other letters."""
    plain = {name.lower(): name for name in names}
    near = difflib.get_close_matches(_plain(word), plain, n=1, cutoff=cutoff)
    return plain[near[0]] if near else None


def _plain(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")


def _properties(location: list[int | str], root: Schema) -> dict[str, Schema]:
    properties: dict[str, Schema] = _schema_at(location, root).get("properties", {})
    return properties


def _schema_at(location: list[int | str], schema: Schema) -> Schema:
    """Return the schema of the field at `location` below `schema`; empty if there is none."""
    for part in location:
        if isinstance(part, int):
            schema = schema.get("items", {})
        else:
            schema = schema.get("properties", {}).get(part) or schema.get("additionalProperties", {})
    return schema


def _suggestion(name: str, parents: list[int | str], root: Schema, framework: Framework | None = None) -> str:
    """Return `: belongs under spec.template.spec.volumes`, `, did you mean replicas?`, or a list of the fields that
    exist. `framework`: the one whose roles are listed."""
    if name.endswith("ReplicaSpecs"):
        return f": allranks convert converts jobs of Kubeflow ({MIGRATION})"
    if field := _of_other_system(name, root):
        return f": here it is {field}"
    if place := _place(name, parents, root):
        return f": belongs under {place}"
    if near := _similar_field(name, parents, root):
        return f", did you mean {near}?"
    if framework:
        return f": {framework.name} has {joined(framework.roles, 'and')}"
    names = _fields(parents, root)
    listed = ", ".join(names)
    return f": the fields here are {listed}" if names and len(listed) < _LONGEST_LIST else ""


def _meant(name: str, parents: list[int | str], root: Schema) -> str:
    """Return the last field of the place where an unknown one belongs, or the similar field; empty without both."""
    if field := _of_other_system(name, root):
        return field.partition(",")[0].rpartition(".")[2]
    if place := _place(name, parents, root):
        return place.partition(":")[0].rpartition(".")[2]
    return _similar_field(name, parents, root) or ""


_WORKERS = "{job}.roles.worker.replicas"
_PROCESSES = "pytorch.processesPerNode, horovod.slotsPerWorker, mpi.slotsPerWorker or spmd.processesPerPod"
WORDS_OF_OTHER_SYSTEMS = {
    **dict.fromkeys(("nodecount", "numnodes", "instancecount", "workercount", "numworkers", "nummachines"), _WORKERS),
    "processcount": f"{_WORKERS}, times the processes in each pod: {_PROCESSES}",
    **dict.fromkeys(("processcountpernode", "processesperhost", "nprocpernode"), f"{{job}}.{_PROCESSES}"),
    **dict.fromkeys(("parameterservercount", "numparameterservers"), "{job}.roles.ps.replicas"),
    **dict.fromkeys(("parameterserver", "parameterservers"), "{job}.roles.ps"),
    **dict.fromkeys(("instancetype", "computetarget", "vmsize"), "{job}.pool, which names a TrainingPool"),
    "usespotinstances": "{job}.pool, which names a TrainingPool whose nodes are spot nodes",
    "hyperparameters": "{job}.args, for the command line of the program, or {job}.env",
    **dict.fromkeys(("entrypoint", "trainingscript"), "{job}.command"),
    **dict.fromkeys(("sourcedir", "sourcedirectory"), "{job}.code"),
    **dict.fromkeys(("maxrun", "maxruntimeinseconds", "maxrundurationseconds"), "{job}.activeDeadlineSeconds"),
    "communicationbackend": "{job}.pytorch.backend",
    **dict.fromkeys(("checkpoints3uri", "checkpointuri"), "{job}.resumeFrom, with an output of when: Checkpoint"),
    "volumesize": "{job}.template.spec.volumes",
    "tags": "{job}.template.metadata.labels",
}
"""Words of Azure ML, SageMaker and others for fields and roles, without capitals and underscores. Only those that are
no misspelling of the field: `similar` finds these."""


def _of_other_system(name: str, root: Schema) -> str:
    """Return the field that another system calls by this name; empty if none does."""
    job = "spec" if "roles" in _properties(["spec"], root) else "spec.template.spec"
    return WORDS_OF_OTHER_SYSTEMS.get(_plain(name), "").replace("{job}", job)


_PROCESSES_OF_A_POD = frozenset({"processesPerNode", "slotsPerWorker", "processesPerPod"})
"""The names that frameworks have for the same number."""


def _similar_field(name: str, parents: list[int | str], root: Schema) -> str | None:
    fields = _fields(parents, root)
    if name in _PROCESSES_OF_A_POD and (same := _PROCESSES_OF_A_POD.intersection(fields)):
        return next(iter(same))
    return similar(name, fields, _LIKELY)


def _fields(parents: list[int | str], root: Schema) -> list[str]:
    return list(_ROLES if parents[-1:] == ["roles"] else _properties(parents, root))


def _place(name: str, parents: list[int | str], root: Schema) -> str | None:
    """Return the path at which a job has a field of this name; None if there is none or if several are likely."""
    job: list[int | str] = ["spec"] if "roles" in _properties(["spec"], root) else ["spec", "template", "spec"]
    fields, base = _properties(job, root), ".".join(map(str, job))
    at_job, in_role = parents in ([], ["metadata"], job[:-1], job), parents[:-1] == [*job, "roles"]
    if not fields or any(isinstance(part, int) for part in parents):
        return None
    parent = ".".join(map(str, parents))
    if parents[-1:] == ["resources"]:
        return f"{parent}.limits" if name in COMPUTE or "/" in name else None
    if parents != job and name in fields:
        return f"{base}.{name}"
    if name in _properties([*job, "roles", "worker"], root) and not in_role:
        return f"{base}.roles.worker.{name}"
    if not at_job and not in_role:
        return None
    if at_job and name in _ROLES:
        return f"{base}.roles.{name}"
    if name in ("name", "generateName", "namespace"):
        return f"metadata.{name}"
    owner = parent if in_role else base
    for place, blocks in ((owner, _properties(parents if in_role else job, root)), (base, fields)):
        having = [block for block, schema in blocks.items() if name in schema.get("properties", {})]
        if len(having) == 1:
            return f"{place}.{having[0]}.{name}"
    return _place_in_pod(name, owner)


def _place_in_pod(name: str, owner: str) -> str | None:
    """Return the path of a field of pods or containers; None for others. `owner`: path of the spec of a job or of a
    role."""
    if name in ("labels", "annotations"):
        return f"{owner}.template.metadata.{name}"
    if name in POD_FIELDS:
        return f"{owner}.template.spec.{name}"
    if name in CONTAINER_FIELDS:
        return f"{owner}.template.spec.containers: [{{name: trainer, {name}: ...}}]"
    return f"{owner}.resources.limits" if name in COMPUTE or "/" in name else None
