"""Makes a TrainingSweep of a job and the options of `allranks sweep`."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Any

from allranks.api import job, sweep
from allranks.api.job import API_VERSION
from allranks.errors import InvalidManifest

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"(?:(log|int|uniform):)?({_NUMBER})\.\.({_NUMBER})(?:/(\d+))?")
FORMS = "lr=log:1e-4..1e-1, dropout=0..0.5, layers=int:1..8 or batch=16,32,64"


def parameter(text: str) -> tuple[str, dict[str, Any]]:
    """(name, values) of `--param`. Raises InvalidManifest."""
    name, equals, values = text.partition("=")
    if not (name and equals and values):
        raise InvalidManifest([(f"--param {text}", f"must be NAME=VALUES, for example {FORMS}")])
    if found := _RANGE.fullmatch(values):
        kind, low, high, points = found.groups()
        if kind == "int" or (kind is None and re.fullmatch(r"[-+]?\d+", low) and re.fullmatch(r"[-+]?\d+", high)):
            if not (re.fullmatch(r"[-+]?\d+", low) and re.fullmatch(r"[-+]?\d+", high)) or points:
                raise InvalidManifest([(f"--param {text}", "int: needs whole numbers, for example layers=int:1..8")])
            return name, {"int": {"min": int(low), "max": int(high)}}
        bounds: dict[str, Any] = {"min": float(low), "max": float(high)}
        bounds |= {"points": int(points)} if points else {}
        return name, {"logUniform" if kind == "log" else "uniform": bounds}
    if ".." in values or values.startswith(("log:", "int:", "uniform:")):
        raise InvalidManifest([(f"--param {text}", f"is no range: write {FORMS}")])
    return name, {"values": [_scalar(value) for value in values.split(",")]}


def sweep_document(
    document: dict[str, Any], parameters: Iterable[tuple[str, dict[str, Any]]], **spec: Any
) -> dict[str, Any]:
    """The sweep of a job. A parameter that the job does not name as $(NAME) is added to `args` as --NAME=$(NAME)."""
    template = copy.deepcopy(document.get("spec"))
    values = dict(parameters)
    if isinstance(template, dict):
        written = repr(template)
        missing = [name for name in values if f"$({name})" not in written]
        args = template.get("args") or []
        if missing and isinstance(args, list):
            template["args"] = [*args, *(f"--{name}=$({name})" for name in missing)]
    metadata = document.get("metadata") if isinstance(document.get("metadata"), dict) else {}
    own = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)} if metadata else {}
    whole = {"parameters": values, **{name: value for name, value in spec.items() if value is not None}}
    return {
        "apiVersion": API_VERSION,
        "kind": sweep.KIND,
        "metadata": {"name": (metadata or {}).get("name", "sweep")},
        "spec": {**whole, "template": {**({"metadata": own} if own else {}), "spec": template}},
    }


def is_job(document: Any) -> bool:
    return isinstance(document, dict) and document.get("kind") == job.KIND


def _scalar(text: str) -> str | int | float | bool:
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    if re.fullmatch(_NUMBER, text):
        return float(text)
    return {"true": True, "false": False}.get(text, text)
