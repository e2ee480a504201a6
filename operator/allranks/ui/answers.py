"""The types of answers that commands print with `-o json`. Only the OpenAPI document needs them: what a command
prints is sent as it is, and a test compares it with these types. The types of reports, queues, nodes and groups of the
history are their dataclasses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from allranks.cli.job_report.model import Report
from allranks.views.json_form import CONFIG, described_as

Metadata = Annotated[dict[str, Any], WithJsonSchema(described_as("ObjectMeta"))]
Sweep = Annotated[dict[str, Any], WithJsonSchema(described_as("TrainingSweep"))]


class Typed(BaseModel):
    """Keys in camelCase, and the sentence below a field as its description."""

    model_config = ConfigDict(**CONFIG, populate_by_name=True)


# --- comparison -----------------------------------------------------------------------------------------------------


class Difference(Typed):
    """A field in which manifests differ."""

    field: str
    values: list[str]
    """One of each job; empty if its manifest does not have the field."""


class Comparison(Typed):
    """Jobs, the fields in which their manifests differ, and their reports."""

    jobs: list[str]
    differences: list[Difference]
    reports: list[Report]


# --- objects of Kubernetes -------------------------------------------------------------------------------------------


class _Object(BaseModel):
    """The API server has more fields."""

    model_config = ConfigDict(extra="allow")

    apiVersion: str | None = None
    kind: str | None = None
    metadata: Metadata


class PodSpec(BaseModel):
    model_config = ConfigDict(extra="allow")

    nodeName: str | None = None
    containers: list[dict[str, Any]]


class PodStatus(BaseModel):
    model_config = ConfigDict(extra="allow")

    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    podIP: str | None = None
    startTime: str | None = None
    containerStatuses: list[dict[str, Any]] | None = None


class Pod(_Object):
    """A pod as the API server returned it."""

    spec: PodSpec
    status: PodStatus | None = None


class ObjectReference(BaseModel):
    model_config = ConfigDict(extra="allow")

    kind: str | None = None
    namespace: str | None = None
    name: str | None = None
    uid: str | None = None


class Event(_Object):
    """An Event as the API server returned it."""

    involvedObject: ObjectReference
    reason: str | None = None
    message: str | None = None
    type: str | None = Field(None, description="Normal or Warning.")
    count: int | None = None
    firstTimestamp: str | None = None
    lastTimestamp: str | None = None


class _List(BaseModel):
    apiVersion: Literal["v1"] = "v1"
    kind: Literal["List"] = "List"


class PodList(_List):
    """Pods."""

    items: list[Pod]


class EventList(_List):
    """Events, the oldest first."""

    items: list[Event]


class SweepList(_List):
    """Sweeps."""

    items: list[Sweep]


def listed(items: list[Any]) -> Response:
    """Objects in the form of `allranks get -o json`."""
    return as_printed({"apiVersion": "v1", "kind": "List", "items": items})


def as_printed(content: Any) -> Response:
    """The JSON that a command prints. Numbers that JSON does not have, such as the loss NaN, are null."""
    return Response(msgspec.json.encode(content), media_type="application/json")
