"""The types of the status of a `TrainingSweep`: the write-ahead log of its decisions.

The parameters of a trial are stored here before its job is created, so a new operator continues with the same trials.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from allranks.api.notify import Entry
from allranks.api.status import Condition
from allranks.fields import Count, Model, Name, Reason, Text, Time

SweepPhase = Literal["Pending", "Running", "Suspended", "Succeeded", "Failed"]
TrialPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Stopped", "Lost"]
ENDED: frozenset[str] = frozenset({"Succeeded", "Failed", "Stopped", "Lost"})
"""Phases of a trial that do not change any more."""
Parameters = Annotated[dict[Name, Annotated[str, StringConstraints(max_length=8192)]], Field(max_length=32)]


class SweepCondition(Condition):
    """A condition, as everywhere in Kubernetes."""

    type: Literal["Running", "Complete", "Failed"] = Field(
        description="Type of the condition; Complete and Failed are final."
    )


class Check(Model):
    """The objective of a trial at one check of the early stopping."""

    step: Count = Field(description="Steps at which trials are compared.")
    value: float = Field(description="Value of the metric at these steps.")


class Trial(Model):
    """One trial of the sweep."""

    number: Count = Field(description="Number of the trial, from 0.")
    job: Name = Field(description="Name of its newest DistributedTraining.")
    parameters: Parameters = Field(description="Values of the parameters, as the program gets them.")
    phase: TrialPhase = Field(
        "Pending",
        description="State of the trial. Stopped: early, because others are better. Lost: to disruptions, so it counts "
        "as no result.",
    )
    observed: bool = Field(False, description="Whether its job was observed. If it is missing then, it was deleted.")
    suspended: bool = Field(False, description="Whether the sweep suspended its job, because of spec.suspend.")
    runs: Count = Field(0, description="How often it was run again after a disruption ended its job.")
    step: Count | None = Field(None, description="Number of completed steps.")
    value: float | None = Field(None, description="Latest value of the objective's metric.")
    checks: Annotated[list[Check], Field(max_length=64)] = Field(
        default_factory=list, description="Values of the metric at the checks of the early stopping."
    )
    reason: Reason | None = Field(None, description="Why the trial ended without success, in one word.")
    message: Text | None = Field(None, description="Why the trial ended without success, in a sentence.")
    start_time: Time | None = Field(None, description="When the trial was decided.")
    end_time: Time | None = Field(None, description="When its end was observed.")

    @property
    def ended(self) -> bool:
        return self.phase in ENDED


class TrialCounts(Model):
    """Numbers of trials by phase."""

    pending: Count = Field(0, description="Trials whose job does not run yet.")
    running: Count = Field(0, description="Trials whose job runs or restarts.")
    succeeded: Count = Field(0, description="Trials that ran to their end.")
    failed: Count = Field(0, description="Trials whose program failed.")
    stopped: Count = Field(0, description="Trials that were stopped early.")
    lost: Count = Field(0, description="Trials that disruptions ended several times.")


class Best(Model):
    """The best trial that succeeded."""

    trial: Count = Field(description="Number of the trial, from 0.")
    job: Name = Field(description="Name of its DistributedTraining.")
    value: float = Field(description="Value of the objective's metric.")
    parameters: Parameters = Field(description="Values of the parameters, as the program got them.")


class SweepStatus(Model):
    """Observed state of the sweep."""

    # One field for the API server: managedFields for every trial would double the cost of writing a large status.
    model_config = {"json_schema_extra": {"x-kubernetes-map-type": "atomic"}}

    phase: SweepPhase = Field("Pending", description="State of the sweep in one word, for pipelines.")
    conditions: Annotated[list[SweepCondition], Field(max_length=8)] = Field(
        default_factory=list, description="Running, Complete and Failed; for kubectl wait."
    )
    observed_generation: Count = Field(0, description="Generation of spec that this status is based on.")
    trials: Annotated[list[Trial], Field(max_length=500)] = Field(
        default_factory=list, description="All trials that were decided, by number."
    )
    counts: TrialCounts = Field(default_factory=TrialCounts, description="Numbers of trials by phase.")
    disruptions: Count = Field(0, description="How often a disruption ended the job of a trial.")
    min_steps: Count | None = Field(None, description="Steps before the first check, if spec.stop does not set them.")
    best: Best | None = Field(None, description="The best trial that succeeded.")
    start_time: Time | None = Field(None, description="When the operator first acted on the sweep.")
    completion_time: Time | None = Field(None, description="When the sweep succeeded or failed.")
    notifications: Annotated[list[Entry], Field(max_length=12)] = Field(
        default_factory=list,
        description="Notifications of the end of the sweep: occasion and receiver, with the result of the delivery.",
    )
    summary: Reason = Field("", description="For kubectl get: trials that have ended, and all trials: 7/20.")
    best_summary: Reason = Field("", description="For kubectl get: the best value and its trial.")

    @property
    def finished(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    def condition(self, kind: str) -> SweepCondition | None:
        return next((c for c in self.conditions if c.type == kind), None)
