"""The types of answers that commands print with `-o json`. Only the OpenAPI document needs them: what a command
prints is sent as it is, and a test compares it with these types. The types of reports are their dataclasses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from allranks.cli.format.json_form import CONFIG, described_as
from allranks.cli.job_report.model import Report

Metadata = Annotated[dict[str, Any], WithJsonSchema(described_as("ObjectMeta"))]
Sweep = Annotated[dict[str, Any], WithJsonSchema(described_as("TrainingSweep"))]


class Typed(BaseModel):
    """Keys in camelCase, and the sentence below a field as its description."""

    model_config = ConfigDict(**CONFIG, populate_by_name=True)


# --- queues ----------------------------------------------------------------------------------------------------------


class Waiting(Typed):
    """A job without quota."""

    job: str
    """The job, or `Kind/name` of another owner."""
    position: int | None
    """Jobs before it in the queue; null if Kueue's visibility API does not answer."""
    since: str | None
    reason: str
    message: str
    starts_in_seconds: float | None
    """Lower bound: the earliest time at which a running job ends, by its own estimate."""


class Running(Typed):
    """An admitted job."""

    job: str
    priority: int
    eta_seconds: float | None


class Preempted(Typed):
    """A job that lost its quota to another one."""

    job: str
    by: str
    """The other job; empty if it is unknown."""
    message: str
    time: str


class Queue(Typed):
    """A LocalQueue of Kueue, as `allranks queue -o json` prints it."""

    name: str
    cluster_queue: str
    stopped: str
    """Its stopPolicy; empty if it is not stopped."""
    quota: dict[str, Annotated[list[str], Field(min_length=2, max_length=2)]]
    """Resource -> what all jobs of the ClusterQueue use, and the nominal quota."""
    running: list[Running]
    waiting: list[Waiting]
    preempted: list[Preempted]
    """The last one first."""


# --- views of many jobs ----------------------------------------------------------------------------------------------


class Node(Typed):
    """A node: the GPUs that jobs hold there, what was lost there, and which jobs avoid it."""

    name: str
    gpus: int | None
    """Allocatable; null without the right to list Nodes."""
    gpus_used: int
    unschedulable: bool
    jobs: list[str]
    """NAMESPACE/NAME, the first 20."""
    failures: dict[str, int]
    """Root causes of failures there, by reason."""
    lost_seconds: float
    """Work that was lost by them."""
    avoided_by: list[str]
    """NAMESPACE/NAME, the first 20."""


class HistoryGroup(Typed):
    """GPU-hours, money and goodput of a group of jobs."""

    name: str
    jobs: int
    succeeded: int
    failed: int
    goodput: float | None
    """Productive time divided by all time but queued."""
    gpu_hours: dict[str, float]
    """By kind: productive, starting, waiting, lost."""
    lost_gpu_hours_by_reason: dict[str, float]
    spent: dict[str, float]
    """Money by currency."""
    spent_lost: dict[str, float]
    """The part of it that was lost, by currency."""


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
