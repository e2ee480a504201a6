"""Label selectors, in the forms that kubectl accepts, for objects that no API server selects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Condition = Callable[[Mapping[str, str]], bool]

_CONDITION = re.compile(
    r"(?P<absent>!\s*)?(?P<key>[A-Za-z0-9][\w./-]*)\s*"
    r"(?:(?P<operator>==?|!=)\s*(?P<value>[\w.-]*)|\s(?P<set>in|notin)\s*\((?P<values>[\w.,\s-]*)\))?"
)


def label_selection(selector: str) -> Condition:
    """Return the condition on labels of a selector: `a=b`, `a!=b`, `a`, `!a`, `a in (b, c)`, `a notin (b, c)`, or
    several of these.

    An empty selector selects all. Raises ValueError with a sentence for users.
    """
    parts = [part.strip() for part in re.split(r",(?![^(]*\))", selector) if part.strip()]
    conditions = [_condition(part) for part in parts]
    return lambda labels: all(condition(labels) for condition in conditions)


def _condition(part: str) -> Condition:
    match = _CONDITION.fullmatch(part)
    if not match or (match["absent"] and (match["operator"] or match["set"])):
        raise ValueError(f"{part!r} is not a label selector: use for example team=nlp,stage!=draft")
    key, operator = match["key"], match["operator"] or match["set"]
    if operator is None:
        present = not match["absent"]
        return lambda labels: (key in labels) == present
    values = {value.strip() for value in (match["values"] or "").split(",")} if match["set"] else {match["value"]}
    negated = operator in ("!=", "notin")
    return lambda labels: (labels.get(key) in values) != negated
