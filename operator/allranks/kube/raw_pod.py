"""The fields of a pod that are decoded. msgspec skips all others without building them, so that ten thousand pods stay
cheap, and tens of thousands of labels of a pod do no harm."""

from __future__ import annotations

from datetime import datetime

import msgspec

from allranks.core.facts.naming import ATTEMPT_LABEL, INDEX_LABEL, JOB_LABEL, RESTART_LABEL, ROLE_LABEL


class _Fields(msgspec.Struct, rename="camel"):
    """Kubernetes' JSON is camelCase."""


class Owner(_Fields):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Labels(msgspec.Struct):
    """The labels that allranks reads; empty where a pod has none."""

    job: str = msgspec.field(default="", name=JOB_LABEL)
    role: str = msgspec.field(default="", name=ROLE_LABEL)
    index: str = msgspec.field(default="", name=INDEX_LABEL)
    attempt: str = msgspec.field(default="", name=ATTEMPT_LABEL)
    restart: str = msgspec.field(default="", name=RESTART_LABEL)


class Meta(_Fields):
    name: str = ""
    namespace: str = "default"
    uid: str = ""
    resource_version: str = "0"
    labels: Labels = msgspec.field(default_factory=Labels)
    owner_references: list[Owner] = []
    finalizers: list[str] = []
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None


class Running(_Fields):
    started_at: datetime | None = None


class Waiting(_Fields):
    reason: str = ""
    message: str = ""


class Terminated(_Fields):
    exit_code: int = 0
    signal: int = 0
    """Part of the API. containerd and CRI-O do not set it: they report 128 + n as the exit code."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    reason: str = "Error"
    message: str = ""


class State(_Fields):
    running: Running | None = None
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class LinuxUser(_Fields):
    uid: int = -1
    gid: int = -1


class User(_Fields):
    """The user of the first process of a container, which containerd has since 2.0 and CRI-O since 1.31."""

    linux: LinuxUser | None = None


class DeviceHealth(_Fields):
    resource_id: str = msgspec.field(default="", name="resourceID")
    health: str = ""


class ResourceHealth(_Fields):
    """The devices of a resource, or of a claim (`claim:NAME/REQUEST`), that a container has: KEP-4680."""

    name: str = ""
    resources: list[DeviceHealth] = []


class Container(_Fields):
    name: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    user: User | None = None
    state: State = msgspec.field(default_factory=State)
    last_state: State = msgspec.field(default_factory=State)
    restart_count: int = 0
    allocated_resources_status: list[ResourceHealth] = []


class Condition(_Fields):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class RawStatus(_Fields):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: list[Condition] = []
    container_statuses: list[Container] = []
    init_container_statuses: list[Container] = []


class ExitCodes(_Fields):
    operator: str = ""
    values: list[int] = []


class RestartRule(_Fields):
    action: str = ""
    exit_codes: ExitCodes = msgspec.field(default_factory=ExitCodes)


class ContainerSpec(_Fields):
    name: str = ""
    restart_policy: str | None = None
    restart_policy_rules: list[RestartRule] = []


class SchedulingGroup(_Fields):
    pod_group_name: str | None = None


class RawSpec(_Fields):
    node_name: str | None = None
    priority: int | None = None
    scheduling_group: SchedulingGroup | None = None
    restart_policy: str = "Never"
    """The API server always sets it."""
    containers: list[ContainerSpec] = []
    init_containers: list[ContainerSpec] = []


class Raw(_Fields):
    """The decoded fields of a pod."""

    metadata: Meta
    spec: RawSpec = msgspec.field(default_factory=RawSpec)
    status: RawStatus = msgspec.field(default_factory=RawStatus)
