"""The types of the status of a `TrainingSweep`: the write-ahead log of its decisions.

The parameters of a trial are stored here before its job is created, so a new operator continues with the same trials.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from allranks.api.notify import Entry
from allranks.api.status import Condition
from allranks.fields import Count, Name, Reason, StatusPart, Text, TextPart, Time

SweepPhase = Literal["Pending", "Running", "Suspended", "Succeeded", "Failed"]
TrialPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Stopped", "Lost"]
ENDED: frozenset[str] = frozenset({"Succeeded", "Failed", "Stopped", "Lost"})
"""Phases of a trial that do not change any more."""
Parameters = Annotated[dict[Name, Annotated[str, StringConstraints(max_length=8192)]], Field(max_length=32)]


@dataclass(frozen=True, kw_only=True)
class SweepCondition(Condition):
    """A condition, as everywhere in Kubernetes."""

    type: Annotated[
        Literal["Running", "Complete", "Failed"],
        Field(description="Type of the condition; Complete and Failed are final."),
    ]


@dataclass(frozen=True, kw_only=True)
class Check(StatusPart):
    """The objective of a trial at one check of the early stopping."""

    step: Annotated[Count, Field(description="Steps at which trials are compared.")]
    value: Annotated[float, Field(description="Value of the metric at these steps.")]


@dataclass(frozen=True, kw_only=True)
class Trial(TextPart):
    """One trial of the sweep."""

    number: Annotated[Count, Field(description="Number of the trial, from 0.")]
    job: Annotated[Name, Field(description="Name of its newest DistributedTraining.")]
    parameters: Annotated[Parameters, Field(description="Values of the parameters, as the program gets them.")]
    phase: Annotated[
        TrialPhase,
        Field(
            description="State of the trial. Stopped: early, because others are better. Lost: to disruptions, so it "
            "counts as no result."
        ),
    ] = "Pending"
    observed: Annotated[
        bool, Field(description="Whether its job was observed. If it is missing then, it was deleted.")
    ] = False
    suspended: Annotated[bool, Field(description="Whether the sweep suspended its job, because of spec.suspend.")] = (
        False
    )
    runs: Annotated[Count, Field(description="How often it was run again after a disruption ended its job.")] = 0
    step: Annotated[Count | None, Field(description="Number of completed steps.")] = None
    value: Annotated[float | None, Field(description="Value of the objective's metric.")] = None
    checks: Annotated[
        list[Check], Field(max_length=64, description="Values of the metric at the checks of the early stopping.")
    ] = field(default_factory=list)
    reason: Annotated[Reason | None, Field(description="Why the trial ended without success, in one word.")] = None
    message: Annotated[Text | None, Field(description="Why the trial ended without success, in a sentence.")] = None
    start_time: Annotated[Time | None, Field(description="When the trial was decided.")] = None
    end_time: Annotated[Time | None, Field(description="When its end was observed.")] = None

    @property
    def ended(self) -> bool:
        return self.phase in ENDED


@dataclass(frozen=True, kw_only=True)
class TrialCounts(StatusPart):
    """Numbers of trials by phase."""

    pending: Annotated[Count, Field(description="Trials whose job does not run yet.")] = 0
    running: Annotated[Count, Field(description="Trials whose job runs or restarts.")] = 0
    succeeded: Annotated[Count, Field(description="Trials that ran to their end.")] = 0
    failed: Annotated[Count, Field(description="Trials whose program failed.")] = 0
    stopped: Annotated[Count, Field(description="Trials that were stopped early.")] = 0
    lost: Annotated[Count, Field(description="Trials that disruptions ended several times.")] = 0


@dataclass(frozen=True, kw_only=True)
class Best(TextPart):
    """The best trial that succeeded."""

    trial: Annotated[Count, Field(description="Number of the trial, from 0.")]
    job: Annotated[Name, Field(description="Name of its DistributedTraining.")]
    value: Annotated[float, Field(description="Value of the objective's metric.")]
    parameters: Annotated[Parameters, Field(description="Values of the parameters, as the program got them.")]


@dataclass(frozen=True, kw_only=True)
class SweepStatus(TextPart):
    """Observed state of the sweep."""

    # One field for the API server: managedFields for every trial would double the cost of writing a large status.
    __pydantic_config__ = StatusPart.__pydantic_config__ | {"json_schema_extra": {"x-kubernetes-map-type": "atomic"}}

    phase: Annotated[SweepPhase, Field(description="State of the sweep in one word, for pipelines.")] = "Pending"
    conditions: Annotated[
        list[SweepCondition], Field(max_length=8, description="Running, Complete and Failed; for kubectl wait.")
    ] = field(default_factory=list)
    observed_generation: Annotated[Count, Field(description="Generation of spec that this status is based on.")] = 0
    trials: Annotated[list[Trial], Field(max_length=500, description="All trials that were decided, by number.")] = (
        field(default_factory=list)
    )
    counts: Annotated[TrialCounts, Field(description="Numbers of trials by phase.")] = field(
        default_factory=TrialCounts
    )
    disruptions: Annotated[Count, Field(description="How often a disruption ended the job of a trial.")] = 0
    min_steps: Annotated[
        Count | None, Field(description="Steps before the first check, if spec.stop does not set them.")
    ] = None
    best: Annotated[Best | None, Field(description="The best trial that succeeded.")] = None
    start_time: Annotated[Time | None, Field(description="When the operator first acted on the sweep.")] = None
    completion_time: Annotated[Time | None, Field(description="When the sweep succeeded or failed.")] = None
    notifications: Annotated[
        list[Entry],
        Field(
            max_length=12,
            description="Notifications of the end of the sweep: occasion and receiver, with the result of the "
            "delivery.",
        ),
    ] = field(default_factory=list)
    summary: Annotated[Reason, Field(description="For kubectl get: trials that have ended, and all trials: 7/20.")] = ""
    best_summary: Annotated[Reason, Field(description="For kubectl get: the best value and its trial.")] = ""

    @property
    def finished(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    def condition(self, kind: str) -> SweepCondition | None:
        return next((c for c in self.conditions if c.type == kind), None)
