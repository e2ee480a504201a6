"""Building blocks of the resource types: bounded strings, quantities, and a base model that is frozen and strict.

Every string, list and map has an upper bound, from which the API server estimates the cost of validation rules.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """Base of all parts of the resource: immutable, no unknown fields, no type conversions, camelCase in manifests."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="forbid",
        strict=True,
        protected_namespaces=(),
    )


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
