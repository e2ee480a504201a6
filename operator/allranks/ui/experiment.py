"""Jobs as an experiment: columns for the parameters of their programs and for their metrics; order and choice by these
values. Pure.

The key of a column is `name`, `phase`, `progress`, `time`, `age`, or `param:NAME`, `metric:NAME`, `lowest:NAME` and
`highest:NAME`.
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from allranks.api.status import Status
from allranks.api.sweep_values import VARIABLE_PREFIX
from allranks.core.facts.compatibility import parsed, program_arguments
from allranks.kube.object_text import ObjectText
from allranks.ui.entries import Entry, in_order
from allranks.ui.problems import Problem
from allranks.views.format import progress as progress_text
from allranks.views.job_view import JobView

DECODED_BYTES = 32 * 1024
"""Size of a job whose spec is decoded for a list. A hundred jobs with the largest templates would take ten seconds."""
MOST_PARAMETERS, MOST_METRICS = 5, 3
"""Columns without a choice of the user."""
MOST_COLUMNS, MOST_OFFERED = 20, 100
MOST_OF_JOB = 100
"""Parameters of one job."""
MOST_CHARACTERS = 60
"""Of a value."""
MOST_CONDITIONS = 10
KINDS = PARAMETER, METRIC, LOWEST, HIGHEST = "param", "metric", "lowest", "highest"
FIXED = ("name", "phase", "progress", "time", "age")
_ASSIGNMENT = re.compile(r"\+{0,2}([A-Za-z_][\w./-]*)=(.*)", re.DOTALL)
_CONDITION = re.compile(r"\s*([^<>=!\s]+)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Value = float | str | None


# --- values ----------------------------------------------------------------------------------------------------------


def parameters(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> value of the options of the program, `--lr 0.1` and `lr=0.1`, and of the variables of a sweep.

    A variable is left out if an option has its value.
    """
    roles = spec.get("roles")
    places = [spec, *(roles.values() if isinstance(roles, Mapping) else ())]
    out: dict[str, str] = {}
    for place in places:
        for name, value in _options(place if isinstance(place, Mapping) else {}):
            out.setdefault(name, _cut(value))
    values = set(out.values())
    for name, value in _variables(spec.get("env")):
        if _cut(value) not in values:
            out.setdefault(name, _cut(value))
    return dict(list(out.items())[:MOST_OF_JOB])


def _options(place: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for words in (program_arguments(_words(place.get("command"))), _words(place.get("args"))):
        for name, value in parsed(words):
            if name:
                yield name.lstrip("-"), "set" if value is None else value
            elif value and (assignment := _ASSIGNMENT.fullmatch(value)):
                yield assignment[1], assignment[2]


def _words(words: Any) -> list[str]:
    return [str(word) for word in words] if isinstance(words, list) else []


def _variables(env: Any) -> Iterator[tuple[str, str]]:
    for variable in env if isinstance(env, list) else ():
        name = str(variable.get("name") or "") if isinstance(variable, Mapping) else ""
        if name.startswith(VARIABLE_PREFIX) and "value" in variable:
            yield name.removeprefix(VARIABLE_PREFIX).lower(), str(variable["value"])


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def values(entry: Entry) -> Values:
    """Return the parameters and the metrics of a job. A job that is too large has no parameters here."""
    text = entry.content.json if isinstance(entry.content, ObjectText) else b""
    spec = {} if len(text) > DECODED_BYTES else entry.manifest.get("spec")
    return Values(parameters(spec if isinstance(spec, Mapping) else {}), entry.status)


@dataclass(frozen=True)
class Values:
    """The parameters and the metrics of a job."""

    parameters: Mapping[str, str]
    status: Status

    def keys(self) -> Iterator[str]:
        """Yield the keys of the values that the job has, the metric of its curve first of all metrics."""
        yield from (f"{PARAMETER}:{name}" for name in self.parameters)
        progress = self.status.progress
        if progress is None:
            return
        names = sorted(progress.metrics, key=lambda name: name != progress.curve_metric)
        for name in dict.fromkeys([*names, *(progress.not_finite or {})]):
            yield f"{METRIC}:{name}"
        for name, record in (progress.records or {}).items():
            if record.lowest is not None:
                yield from (f"{LOWEST}:{name}", f"{HIGHEST}:{name}")

    def __getitem__(self, key: str) -> Value:
        """Return a value; a parameter that is a number as a number, and None if the job does not have it."""
        kind, _, name = key.partition(":")
        progress = self.status.progress
        if kind == PARAMETER:
            return as_value(self.parameters[name]) if name in self.parameters else None
        if progress is None:
            return None
        if kind == METRIC:
            is_finite = name not in (progress.not_finite or {})
            return progress.metrics.get(name) if is_finite else math.nan
        record = (progress.records or {}).get(name)
        return getattr(record, kind) if record else None

    def text(self, key: str) -> str:
        """Write a value as a cell; empty if the job does not have it."""
        kind, _, name = key.partition(":")
        if kind == PARAMETER:
            return self.parameters.get(name, "")
        value = self[key]
        if value is None or isinstance(value, str):
            return value or ""
        return progress_text.number(value) if math.isfinite(value) else "not finite"


def as_value(text: str) -> float | str:
    """Return a number if the text is one."""
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


# --- columns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of values."""

    key: str
    title: str
    is_chosen: bool
    """Whether the user asked for it, so that narrow windows have it as well."""


def title(key: str) -> str:
    """Write `lr`, `loss`, `lowest loss`."""
    kind, _, name = key.partition(":")
    return f"{kind} {name}" if kind in (LOWEST, HIGHEST) else name


def columns(rows: Sequence[Values], chosen: Sequence[str] = (), order: str = "") -> list[Column]:
    """Return the columns of these jobs that have a value: the chosen ones, and the one by which the jobs are sorted.

    Without a choice, they are the parameters in which the jobs differ and the latest metrics, of most jobs first.
    """
    counts = offered(rows)
    keys = [*chosen, order.removeprefix("-")] if chosen else [*_default(rows, counts), order.removeprefix("-")]
    asked = {*chosen, order.removeprefix("-")}
    kept = [key for key in dict.fromkeys(keys) if key in counts]
    return [Column(key, title(key), key in asked) for key in kept[:MOST_COLUMNS]]


def offered(rows: Iterable[Values]) -> Counter[str]:
    """Return key -> number of jobs that have a value, of most jobs first: up to 100 parameters and 100 metrics."""
    counts = Counter(key for row in rows for key in row.keys()).most_common()  # noqa: SIM118 (it is no mapping)
    of_parameters = [item for item in counts if item[0].startswith(f"{PARAMETER}:")]
    others = [item for item in counts if not item[0].startswith(f"{PARAMETER}:")]
    return Counter(dict([*of_parameters[:MOST_OFFERED], *others[:MOST_OFFERED]]))


def _default(rows: Sequence[Values], counts: Counter[str]) -> Iterator[str]:
    keys = [key for key, _ in counts.most_common()]
    parameters = [key for key in keys if key.startswith(f"{PARAMETER}:")]
    differ = [key for key in parameters if len({row.text(key) for row in rows}) > 1]
    yield from differ[:MOST_PARAMETERS]
    yield from [key for key in keys if key.startswith(f"{METRIC}:")][:MOST_METRICS]


# --- order and choice ------------------------------------------------------------------------------------------------


def ordered(entries: Iterable[Entry], order: str, now: datetime) -> list[Entry]:
    """Sort by the column with a key, descending with `-` before it; without one as lists are. Jobs without a value are
    last.

    Raises Problem.
    """
    default = in_order(entries)
    if not order:
        return default
    key = order.removeprefix("-")
    if key not in FIXED and not re.fullmatch(f"({'|'.join(KINDS)}):.+", key):
        raise Problem(400, f"sort: {key!r} is not a column, such as {', '.join(FIXED)}, param:NAME or metric:NAME")
    keyed = [(_sortable(_value(entry, key, now)), entry) for entry in default]
    with_value = [(value, entry) for value, entry in keyed if value is not None]
    with_value.sort(key=lambda item: item[0], reverse=order.startswith("-"))
    return [entry for _, entry in with_value] + [entry for value, entry in keyed if value is None]


def _value(entry: Entry, key: str, now: datetime) -> Value:
    if key == "name":
        return f"{entry.job}/{entry.name}" if entry.source == "runs" else entry.job
    if key == "phase":
        return entry.phase
    if key == "age":
        return (now - entry.created).total_seconds() if entry.created else None
    if key in FIXED:
        view = JobView({}, entry.status, entry.until(entry.status, now), entry.active)
        return view.fraction if key == "progress" else view.seconds_since_start
    return values(entry)[key]


def _sortable(value: Value) -> tuple[int, float, str] | None:
    """Return a key in which numbers are before texts; None for NaN, which has no place."""
    if value is None or value != value:
        return None
    return (1, 0.0, value.lower()) if isinstance(value, str) else (0, value, "")


def selection(where: str) -> Callable[[Entry], bool]:
    """Return a function that says whether a job has the values of `lr<0.01, optimizer=adam`.

    A name means a parameter, else a metric. A job without the value is selected only by `!=`. Raises Problem.
    """
    texts = [text for text in where.split(",") if text.strip()]
    if len(texts) > MOST_CONDITIONS:
        raise Problem(400, f"where: more than {MOST_CONDITIONS} conditions")
    conditions = [_condition(text) for text in texts]

    def selects(entry: Entry) -> bool:
        if not conditions:
            return True
        of_job = values(entry)
        return all(condition(of_job) for condition in conditions)

    return selects


def _condition(text: str) -> Callable[[Values], bool]:
    match = _CONDITION.fullmatch(text)
    if not match:
        raise Problem(400, f"where: {text.strip()!r} is not like lr=0.1, lr!=0.1, lr<0.1, lr<=0.1, lr>0.1 or lr>=0.1")
    name, sign, limit = match[1], match[2], as_value(match[3])
    if sign not in ("=", "!=") and isinstance(limit, str):
        raise Problem(400, f"where: {text.strip()!r} compares with {match[3]!r}, which is not a number")

    def holds(of_job: Values) -> bool:
        keys = (name,) if ":" in name else (f"{PARAMETER}:{name}", f"{METRIC}:{name}")
        value = next((value for key in keys if (value := of_job[key]) is not None), None)
        if value is None:
            return sign == "!="
        if isinstance(value, str) is not isinstance(limit, str):
            return sign == "!="
        return _COMPARE[sign](value, limit)

    return holds
