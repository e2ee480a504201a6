"""The types of answers that commands print with `-o json`. Only the OpenAPI document needs them: what a command
prints is sent as it is, and a test compares it with these types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from allranks.ui.openapi import described_as

Metadata = Annotated[dict[str, Any], WithJsonSchema(described_as("ObjectMeta"))]
Progress = Annotated[dict[str, Any], WithJsonSchema(described_as("ProgressStatus"))]
Sweep = Annotated[dict[str, Any], WithJsonSchema(described_as("TrainingSweep"))]


class Typed(BaseModel):
    """Keys in camelCase, and the sentence below a field as its description."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True)


# --- the report on a job ---------------------------------------------------------------------------------------------


class Segment(Typed):
    """A part of an attempt, or of the time between attempts."""

    kind: str
    """queued, starting, productive, lost, or forgotten for attempts that the status no longer has."""
    begin: float
    """Seconds since the creation of the job."""
    seconds: float


class Cause(Typed):
    """Why an attempt ended, or a replica was restarted: the first failure."""

    reason: str
    who: str
    """The replica, as ROLE-INDEX."""
    rank: int | None
    node: str
    how: str
    """`exit code 1`, `signal 9 (SIGKILL)`."""
    exit_code: int | None
    signal: int | None
    last_line: str
    """Of its log."""


class Attempt(Typed):
    """An attempt. Only the last one can be running (`over` is false)."""

    number: int
    begin: float
    """Seconds since the creation of the job."""
    end: float
    """Seconds since the creation of the job."""
    over: bool
    reason: str
    counted: bool
    """It counts toward restart.maxRestarts."""
    waited: bool
    """The job was suspended after it, or waited in a queue."""
    first_step: int | None
    last_step: int | None
    segments: list[Segment]
    cause: Cause | None


class RestartedReplica(Typed):
    """Restarts of a single replica in the current attempt."""

    replica: str
    count: int
    counted: bool
    at: float
    """Seconds since the creation of the job."""
    cause: Cause | None


class Point(Typed):
    """A point of the curves."""

    at: float
    """Seconds since the creation of the job."""
    attempt: int
    step: int
    value: float | None
    """Of the main metric."""
    samples_per_second: float | None
    steps_per_second: float | None
    metrics: dict[str, float | None]
    """null for a value that is not a finite number."""


class Cost(Typed):
    """GPU-hours and money of a job."""

    gpu_hours: dict[str, float]
    """By kind: productive, starting, waiting, lost."""
    lost_gpu_hours_by_reason: dict[str, float]
    spent: dict[str, float] | None
    """Money by kind; null without a price."""
    lost_by_reason: dict[str, float] | None
    """Lost money by cause."""
    gpus: int
    """GPUs that pods hold now."""
    price: str | None
    """Of a GPU-hour, now."""
    currency: str | None


class JobInput(Typed):
    """An input of a job, and the state of its data."""

    name: str
    source: str = Field(alias="from")
    """The address of the data, without a password."""
    path: str
    """Directory in which the pods find the data."""
    state: str
    """Pending, Fetching, Ready or Failed."""
    mounted: bool
    """Whether it is a volume, which nothing fetches."""
    revision: str | None
    """The revision that the ranks read, else the wanted one."""
    sha256: str | None
    bytes: int | None
    """null until the data is there."""
    cached: bool | None
    """Whether the data was in the cache before."""


class JobOutput(Typed):
    """An output of a job, and the state of its upload."""

    name: str
    to: str
    """The address of the files, without a password."""
    path: str
    """Directory into which the program writes."""
    when: str
    """Success, Always or Checkpoint."""
    state: str
    """Pending, Uploading, Uploaded or Failed."""
    step: int | None
    """Of the newest checkpoint, to which the state refers."""
    uploaded_step: int | None
    """Of the newest checkpoint that is uploaded."""
    files: int | None
    bytes: int | None
    message: str
    """Why the upload failed."""


class Report(Typed):
    """The report on a job, as `allranks report -o json` prints it."""

    name: str
    namespace: str
    framework: str
    size: str
    image: str
    command: str
    environment: list[str]
    """Names of the variables in the manifest. Values may be secret."""
    commit: str
    """git commit of the code; empty if unknown."""
    dirty: bool
    """Whether files differed from the commit."""
    changes: str
    """The files that differed."""
    sha256: str
    """Hash of the code that was shipped."""
    source: str
    """The claim or image with the code, if it was not shipped."""
    differences: str
    """From the commit, as a unified diff in which secrets are masked."""
    differences_note: str
    """Where the differences are, or why there are none."""
    logs: list[str]
    """Log files of a run of this machine. Empty in this interface."""
    phase: str
    verdict: str
    """What happened, in one sentence."""
    why: str
    failure: list[str]
    """For a failed job: the first replica that failed, and the last lines of its log."""
    began: str
    """When the job was created: 2026-03-04T10:00:00Z."""
    until: str
    """The end of the job, or the time of the report."""
    over: bool
    seconds: float
    attempts: list[Attempt]
    between: list[Segment]
    """Time before, between and after the attempts."""
    forgotten: int
    """Number of earlier attempts that the status no longer has."""
    restarts: list[RestartedReplica]
    counted: int
    """Restarts that count toward restart.maxRestarts."""
    disruptions: int
    """Restarts by disruptions."""
    times: dict[str, float]
    """Seconds by kind: queued, starting, productive, lost."""
    goodput: float | None
    """null if the ranks did not report steps."""
    goodput_limit: float | None
    """Upper bound of the goodput: all running time counts as productive. null if the goodput is measured."""
    measured: bool
    lost: dict[str, float]
    """Lost seconds by cause."""
    cost: Cost | None
    """null without GPUs."""
    inputs: list[JobInput]
    outputs: list[JobOutput]
    progress: Progress | None
    metric: str
    """The main metric."""
    points: list[Point]


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
