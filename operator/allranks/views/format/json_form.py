"""The JSON form of the dataclasses of reports. One definition has their fields: pydantic derives from it what commands
print with `-o json`, and what the OpenAPI document of the REST interface says."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, PlainSerializer, PlainValidator, WithJsonSchema
from pydantic.alias_generators import to_camel

from allranks.api.status import ProgressStatus
from allranks.fields import adapter, decode, encode

CONFIG = ConfigDict(
    alias_generator=to_camel, use_attribute_docstrings=True, json_schema_serialization_defaults_required=True
)
"""Keys in camelCase, and the sentence below a field as its description. Dataclasses inside others inherit it."""
MODEL_MARK = "x-allranks-model"


def described_as(model: str) -> dict[str, Any]:
    """Return a schema that the OpenAPI document replaces by a reference to this type of the CRDs."""
    return {"type": "object", MODEL_MARK: model}


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


Moment = Annotated[datetime, PlainSerializer(_stamp, return_type=str)]
"""`2026-03-04T10:00:00Z`."""
Number = Annotated[
    float,
    BeforeValidator(lambda value: math.nan if value is None else value),
    PlainSerializer(_finite, return_type=float | None),
]
"""null if it is not finite, for which JSON has no number."""
Progress = Annotated[
    ProgressStatus,
    PlainValidator(partial(decode, ProgressStatus)),  # not the type itself: the document has it already, from the CRDs
    PlainSerializer(encode, return_type=dict[str, Any]),
    WithJsonSchema(described_as("ProgressStatus")),
]
"""As in the status of the job."""


def as_json(value: Any, exact: frozenset[str] = frozenset()) -> Any:
    """Convert a dataclass to JSON, with the keys of its configuration. `exact`: keys below which numbers are not
    rounded."""
    return rounded(adapter(type(value)).dump_python(value, mode="json", by_alias=True), exact)


def rounded(value: Any, exact: frozenset[str]) -> Any:
    """Round numbers to at most six decimal places, except below the keys `exact`."""
    if isinstance(value, dict):
        return {key: item if key in exact else rounded(item, exact) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item, exact) for item in value]
    return round(value, 6) if isinstance(value, float) else value
