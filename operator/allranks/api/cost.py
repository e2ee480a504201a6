"""The types of prices, of the GPU time that a job used, and of the policy for jobs that use GPUs badly."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from allranks.fields import Count, Model

AMOUNT = r"^[0-9]{1,9}(\.[0-9]{1,6})?$"
Amount = Annotated[str, StringConstraints(max_length=16, pattern=AMOUNT)]
"""An amount of money, as a decimal number in a string."""
CURRENCY = r"^[A-Z]{3}$"
Currency = Annotated[str, StringConstraints(max_length=3, pattern=CURRENCY)]
Value = Annotated[float, Field(ge=0)]


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


class GpuTime(Model):
    """An amount of GPU time, or its price, by what the GPUs did."""

    waiting: Value = Field(0.0, description="Held while the job was queued, or other pods of it had no node.")
    starting: Value = Field(0.0, description="Held from then to the first step.")
    productive: Value = Field(0.0, description="Training, without lost work.")
    lost: Value = Field(0.0, description="Work lost by restarts, and the restarts themselves.")


class CostStatus(Model):
    """The GPU time of the job. It counts up to times.since."""

    gpus: Count = Field(0, description="GPUs that the pods hold, if they have a node and have not ended.")
    partial: bool | None = Field(None, description="Other pods of the job have no node yet.")
    price: Annotated[str, StringConstraints(max_length=16)] | None = Field(
        None, description="Price of a GPU-hour of the pool, for the time from now on."
    )
    currency: Annotated[str, StringConstraints(max_length=3)] | None = Field(
        None, description="Currency of the price and of spent."
    )
    gpu_seconds: GpuTime = Field(default_factory=GpuTime, description="GPU time of the job, in seconds.")
    spent: GpuTime | None = Field(None, description="Its price, at the prices of the pool while the job ran.")
    summary: Annotated[str, StringConstraints(max_length=48)] = Field(
        "", description="For kubectl get: GPU-hours and their price."
    )


class UtilizationStatus(Model):
    """The current window of the policy `utilization`."""

    used_seconds: Value = Field(0.0, description="Starting, productive and lost time before the window.")
    productive_seconds: Value = Field(0.0, description="Productive time before the window.")
    suspend_attempt: Count | None = Field(None, description="The attempt that is suspended for low utilization.")
