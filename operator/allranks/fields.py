"""Building blocks of the resource types: bounded strings, quantities, and the bases of specs and statuses.

Every string, list and map has an upper bound, from which the API server estimates the cost of validation rules.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, JsonValue, StringConstraints, TypeAdapter
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema
from pydantic_core.core_schema import DataclassSchema

from allranks.control_sequences import clean_text

T = TypeVar("T")


class Model(BaseModel):
    """Base of all parts of a spec: immutable, no unknown fields, no type conversions, camelCase in manifests."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="forbid",
        strict=True,
        protected_namespaces=(),
    )


class StatusPart:
    """Base of a status and its parts: dataclasses, because mypy checks `dataclasses.replace`. They are not validated
    when the program builds them."""

    __pydantic_config__: ClassVar[ConfigDict] = Model.model_config

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept a dictionary. With strict types, only an instance would be valid."""
        schema = handler(source)
        cast("DataclassSchema", handler.resolve_ref_schema(schema))["strict"] = False
        return schema


class TextPart(StatusPart):
    """Base of parts that have text.

    Programs and images of others wrote much of the text, so no text of a status has control sequences or invisible
    characters, whatever builds it: `kubectl` prints them to terminals. Two statuses can still be compared, because both
    are clean. Fields that are marked as `EXACT` stay as they are.
    """

    _texts: ClassVar[tuple[Any, tuple[str, ...]]] = (None, ())
    """(class, names of its fields with text): thousands of parts are built at a time."""

    def __post_init__(self) -> None:
        kind = self.__class__
        if kind._texts[0] is not kind:
            kind._texts = kind, _names_of_text(kind)
        values, names = self.__dict__, kind._texts[1]
        if not names or "".join(map("".join, filter(None, map(values.get, names)))).isprintable():
            return
        for name in names:
            if value := values[name]:
                clean = printable(value) if isinstance(value, str) else {printable(key): value[key] for key in value}
                object.__setattr__(self, name, clean)


def printable(text: str) -> str:
    """Return text without control sequences and invisible characters; `?` if it has nothing else."""
    return clean_text(text, colour=False) or ("?" if text else "")


def _names_of_text(kind: type) -> tuple[str, ...]:
    """Return the names of the fields that are text, and of those that are dictionaries with words as keys."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(name for name, hint in hints.items() if get_origin(hint) is not ClassVar and _is_text(hint))


def _is_text(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return EXACT not in get_args(hint)[1:] and _is_text(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return any(map(_is_text, get_args(hint)))
    return hint is str or (get_origin(hint) is dict and get_args(hint)[0] is Reason)


def decode(kind: type[T], value: Any) -> T:
    """Validate a status, or a part of it, as it was stored. Raises ValidationError."""
    part: T = adapter(kind).validate_python(value, by_alias=True, by_name=False)
    return part


def validated(part: T) -> T:
    """Validate a part of a status that has values of other programs. Raises ValidationError."""
    valid: T = adapter(type(part)).validate_python(vars(part), by_alias=False, by_name=True)
    return valid


def encode(part: StatusPart) -> dict[str, Any]:
    """Return a status, or a part of it, as it is stored: as JSON, without the fields that are None."""
    stored: dict[str, Any] = adapter(type(part)).dump_python(part, by_alias=True, exclude_none=True, mode="json")
    return stored


adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Returns the validator and serializer of a type."""


class Rule(BaseModel):
    """One CEL rule of the CRD. `message` is shown to the user and says what to change."""

    model_config = ConfigDict(frozen=True)

    rule: str
    message: str
    field: str | None = None
    """`fieldPath`, relative to the object that carries the rule, for example `.roles`."""

    def as_schema(self) -> dict[str, str]:
        schema = {"rule": self.rule, "message": self.message}
        return schema | {"fieldPath": self.field} if self.field else schema


def rules(*validations: Rule) -> dict[str, Any]:
    """Return `json_schema_extra` with the CEL rules of an object, which the API server and `allranks validate`
    evaluate."""
    return {"x-kubernetes-validations": [rule.as_schema() for rule in validations]}


Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
"""The name of a Kubernetes object."""
EXACT = "exact"
"""In the annotation of a status field: text of the spec that programs get as it is."""
Text = Annotated[str, StringConstraints(max_length=1024)]
LongText = Annotated[str, StringConstraints(max_length=8192)]
"""An argument, or the value of a variable."""
Path = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^/")]
"""An absolute path inside the container."""
GangBackend = Literal["Native", "Kueue", "Volcano", "Coscheduling"]
"""What can place the pods of a job together."""
LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=317, pattern=LABEL_KEY)]
"""Key of a label, for example topology.kubernetes.io/zone."""
SHA256 = r"^[0-9a-f]{64}$"
Sha256 = Annotated[str, StringConstraints(pattern=SHA256, max_length=64)]
COMMIT = r"^[0-9a-f]{7,64}$"
Commit = Annotated[str, StringConstraints(pattern=COMMIT, max_length=64)]
"""The hash of a commit, which may be shortened."""
Reason = Annotated[str, StringConstraints(max_length=128)]
Seconds = Annotated[int, Field(ge=0, le=315_360_000)]
"""At most ten years."""
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=0, le=2_147_483_647)]
Replicas = Annotated[int, Field(ge=0, le=10_000)]
NonNegative = Annotated[float, Field(ge=0)]
Time = Annotated[datetime, Field(strict=False)]
COMPUTE = frozenset({"cpu", "memory", "ephemeral-storage"})
"""Resources of containers that every node has."""

Opaque = Annotated[
    dict[str, JsonValue], Field(max_length=256), Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
]
"""A part of the Kubernetes API that is passed on unchanged. The API server checks it when the pod is created."""

Quantity = Annotated[
    int | Annotated[str, StringConstraints(max_length=64)],
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]
