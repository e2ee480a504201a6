"""The types of prices, of the GPU time that a job used, and of the policy for jobs that use GPUs badly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from allranks.fields import Count, Model, NonNegative, Reason, StatusPart, TextPart

AMOUNT = r"^[0-9]{1,9}(\.[0-9]{1,6})?$"
Amount = Annotated[str, StringConstraints(max_length=16, pattern=AMOUNT)]
"""An amount of money, as a decimal number in a string."""
CURRENCY = r"^[A-Z]{3}$"
Currency = Annotated[str, StringConstraints(max_length=3, pattern=CURRENCY)]


class Price(Model):
    """What GPUs cost."""

    gpu_hour: Amount = Field(description='Price of one GPU for one hour, as a string: "2.40".')
    currency: Currency = Field("USD", description="Code of the currency, as in ISO 4217: USD, EUR.")


class Utilization(Model):
    """What happens to a job that holds its pods without training enough."""

    min_productive_percent: Annotated[int, Field(ge=1, le=100)] = Field(
        description="The least share of productive time in a window, in percent."
    )
    window_seconds: Annotated[int, Field(ge=60, le=2_592_000)] = Field(
        3600, description="Length of a window. Queued and suspended time does not count."
    )
    action: Literal["Notify", "Suspend"] = Field(
        "Notify",
        description="What is done below that share. Notify: the condition LowUtilization and an Event. Suspend: the "
        "job is suspended as well.",
    )


@dataclass(frozen=True, kw_only=True)
class GpuTime(StatusPart):
    """An amount of GPU time, or its price, by what the GPUs did."""

    waiting: Annotated[
        NonNegative, Field(description="Held while the job was queued, or other pods of it had no node.")
    ] = 0.0
    starting: Annotated[NonNegative, Field(description="Held from then to the first step.")] = 0.0
    productive: Annotated[NonNegative, Field(description="Training, without lost work.")] = 0.0
    lost: Annotated[NonNegative, Field(description="Work lost by restarts, and the restarts themselves.")] = 0.0


@dataclass(frozen=True, kw_only=True)
class RoleCost(TextPart):
    """The GPU time of the pods of one role."""

    pool: Annotated[
        Annotated[str, StringConstraints(max_length=253)] | None, Field(description="TrainingPool of the role.")
    ] = None
    gpus: Annotated[Count, Field(description="GPUs that pods of the role hold.")] = 0
    price: Annotated[
        Annotated[str, StringConstraints(max_length=16)] | None,
        Field(description="Price of a GPU-hour of its pool, for the time from now on."),
    ] = None
    gpu_seconds: Annotated[GpuTime, Field(description="GPU time of the role, in seconds.")] = field(
        default_factory=GpuTime
    )
    spent: Annotated[GpuTime | None, Field(description="Its price, at the prices of its pool.")] = None


@dataclass(frozen=True, kw_only=True)
class CostStatus(TextPart):
    """The GPU time of the job. It counts up to times.since."""

    gpus: Annotated[Count, Field(description="GPUs that the pods hold, if they have a node and have not ended.")] = 0
    partial: Annotated[bool | None, Field(description="Other pods of the job have no node yet.")] = None
    price: Annotated[
        Annotated[str, StringConstraints(max_length=16)] | None,
        Field(description="Price of a GPU-hour, for the time from now on, if it is the same for all GPUs of the job."),
    ] = None
    currency: Annotated[
        Annotated[str, StringConstraints(max_length=3)] | None, Field(description="Currency of the price and of spent.")
    ] = None
    gpu_seconds: Annotated[GpuTime, Field(description="GPU time of the job, in seconds.")] = field(
        default_factory=GpuTime
    )
    spent: Annotated[
        GpuTime | None,
        Field(description="Its price, at the prices of the pools while the job ran, if all roles with GPUs have one."),
    ] = None
    roles: Annotated[
        dict[Reason, RoleCost] | None,
        Field(max_length=16, description="The parts of roles with GPUs, of a job with several pools."),
    ] = None
    summary: Annotated[
        str, StringConstraints(max_length=48), Field(description="For kubectl get: GPU-hours and their price.")
    ] = ""


@dataclass(frozen=True, kw_only=True)
class UtilizationStatus(StatusPart):
    """The current window of the policy `utilization`."""

    used_seconds: Annotated[NonNegative, Field(description="Starting, productive and lost time before the window.")] = (
        0.0
    )
    productive_seconds: Annotated[NonNegative, Field(description="Productive time before the window.")] = 0.0
    suspend_attempt: Annotated[
        Count | None, Field(description="The attempt that is suspended for low utilization.")
    ] = None
