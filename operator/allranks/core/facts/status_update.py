"""Typed, checked changes of status objects.

`model_copy(update=...)` accepts any key and value. `changed` has the same cost, but mypy checks names and types of the
fields, and a name that the model does not have raises TypeError.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypedDict, Unpack, overload

from allranks.api.cost import CostStatus, GpuTime, UtilizationStatus
from allranks.api.data import InputState, InputStatus, OutputState, OutputStatus
from allranks.api.scheduling import GangStatus, QueueStatus
from allranks.api.status import (
    CheckpointRequest,
    CodeStatus,
    Condition,
    CurvePoint,
    Failure,
    Hold,
    PastAttempt,
    Phase,
    ProgressStatus,
    RankProgress,
    ReplicaRestarts,
    RestartCounts,
    RoleStatus,
    Status,
    Straggler,
    TimeKind,
    Times,
)


class StatusChanges(TypedDict, total=False):
    phase: Phase
    conditions: list[Condition]
    observed_generation: int
    attempt: int
    launched: bool
    restarts: RestartCounts
    replica_restarts: dict[str, ReplicaRestarts]
    ignored: list[str]
    done: dict[str, str]
    roles: dict[str, RoleStatus]
    ready: str
    avoided_nodes: list[str]
    last_failure: Failure | None
    history: list[PastAttempt]
    start_time: datetime | None
    completion_time: datetime | None
    hold: Hold | None
    attempt_time: datetime | None
    running_time: datetime | None
    first_running_time: datetime | None
    restart_time: datetime | None
    active_since: datetime | None
    active_seconds: float
    times: Times | None
    goodput: float | None
    cost: CostStatus | None
    utilization: UtilizationStatus | None
    notifications: list[str]
    progress: ProgressStatus | None
    gang: GangStatus | None
    queue: QueueStatus | None
    checkpoint_request: CheckpointRequest | None
    resumed_from: str | None
    code: CodeStatus | None
    inputs: list[InputStatus]
    outputs: list[OutputStatus]
    selector: str


class ProgressChanges(TypedDict, total=False):
    step: int | None
    total_steps: int | None
    epoch: int | None
    metrics: dict[str, float]
    samples_per_second: float | None
    loading: float | None
    eta_seconds: float | None
    last_report: datetime | None
    first_step_time: datetime | None
    first_step: int | None
    checkpoint_step: int | None
    checkpoint_time: datetime | None
    saves_on_request: bool | None
    stragglers: list[Straggler]
    ranks: list[RankProgress]
    reporting: int
    curve_metric: str
    curve: list[CurvePoint]
    summary: str
    eta: str


class TimesChanges(TypedDict, total=False):
    queued: float
    starting: float
    productive: float
    lost: float
    uploading: float | None
    category: TimeKind
    since: datetime
    productive_since: datetime | None
    measured: bool
    by_reason: dict[str, float]


class CostChanges(TypedDict, total=False):
    gpus: int
    partial: bool | None
    price: str | None
    currency: str | None
    gpu_seconds: GpuTime
    spent: GpuTime | None
    summary: str


class InputChanges(TypedDict, total=False):
    state: InputState


class OutputChanges(TypedDict, total=False):
    state: OutputState
    step: int | None
    checkpoint_time: datetime | None
    uploaded_step: int | None
    start_time: datetime | None
    bytes: int | None
    files: int | None
    message: str | None


class PastAttemptChanges(TypedDict, total=False):
    reason: str
    counted: bool
    failure: Failure | None
    first_step: int | None
    last_step: int | None
    productive_seconds: float | None
    lost_seconds: float | None


class RoleChanges(TypedDict, total=False):
    desired: int
    active: int
    ready: int
    succeeded: int
    failed: int
    waiting: int


class ReplicaRestartsChanges(TypedDict, total=False):
    launched: bool


class RestartCountsChanges(TypedDict, total=False):
    without_progress: int | None


class FailureChanges(TypedDict, total=False):
    message: str


@overload
def changed(model: Status, **changes: Unpack[StatusChanges]) -> Status: ...
@overload
def changed(model: ProgressStatus, **changes: Unpack[ProgressChanges]) -> ProgressStatus: ...
@overload
def changed(model: Times, **changes: Unpack[TimesChanges]) -> Times: ...
@overload
def changed(model: CostStatus, **changes: Unpack[CostChanges]) -> CostStatus: ...
@overload
def changed(model: InputStatus, **changes: Unpack[InputChanges]) -> InputStatus: ...
@overload
def changed(model: OutputStatus, **changes: Unpack[OutputChanges]) -> OutputStatus: ...
@overload
def changed(model: PastAttempt, **changes: Unpack[PastAttemptChanges]) -> PastAttempt: ...
@overload
def changed(model: RoleStatus, **changes: Unpack[RoleChanges]) -> RoleStatus: ...
@overload
def changed(model: ReplicaRestarts, **changes: Unpack[ReplicaRestartsChanges]) -> ReplicaRestarts: ...
@overload
def changed(model: RestartCounts, **changes: Unpack[RestartCountsChanges]) -> RestartCounts: ...
@overload
def changed(model: Failure, **changes: Unpack[FailureChanges]) -> Failure: ...
def changed(model: Any, **changes: Any) -> Any:
    """Return a copy of the model with the given field values. Values are not validated at run time.

    Raises:
        TypeError: the model has no field of that name.
    """
    kind = type(model)
    if not changes.keys() <= kind.model_fields.keys():
        unknown = ", ".join(sorted(changes.keys() - kind.model_fields.keys()))
        raise TypeError(f"{kind.__name__} has no field {unknown}")
    return model.model_copy(update=changes)
