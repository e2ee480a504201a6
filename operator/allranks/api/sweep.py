"""The types of `TrainingSweep`: a search for the parameters with which a training gives the best result.

The CRD is generated from these (`make generate`); field descriptions are what `kubectl explain` prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from allranks.api import cel_rules as cel
from allranks.api.job import Metadata
from allranks.api.notify import SweepNotifications
from allranks.fields import LongText, Model, Name, Opaque, Reason, rules

KIND = "TrainingSweep"
PLURAL = "trainingsweeps"
MAX_TRIALS = 500
"""The status holds all trials."""


def _number(value: Any) -> Any:
    """Return the number in a text: YAML reads 1e-4 as a text."""
    if isinstance(value, str) and len(value) <= 64:
        try:
            return float(value)
        except ValueError:
            return value
    return value


_ANY_TYPE = {"x-kubernetes-preserve-unknown-fields": True}
Number = Annotated[float, Field(allow_inf_nan=False)]
Bound = Annotated[Number, BeforeValidator(_number), Field(json_schema_extra=_ANY_TYPE)]
"""A number, or a text that is one. No field of a spec is a float, because programs write floats differently."""
Whole = Annotated[int, Field(ge=-(2**53), le=2**53)]
Scalar = Annotated[LongText | int | Number | bool, Field(json_schema_extra=_ANY_TYPE)]
"""A text, a number or a truth value. No structural schema describes that."""
Points = Annotated[int, Field(ge=2, le=MAX_TRIALS)]


class Distribution(Model):
    """A distribution of random numbers, which may be rounded."""

    step: Bound | None = Field(
        None,
        description="Values are multiples of it, counted from min if there is one. If step and min are whole numbers, "
        "so are the values. Default: any number.",
    )


class Range(Distribution):
    """Numbers between two bounds, each equally likely."""

    min: Bound = Field(description="Smallest value of the parameter.")
    max: Bound = Field(description="Largest value of the parameter.")
    points: Points | None = Field(None, description="Number of values that algorithm Grid tries, with both bounds.")


class LogRange(Range):
    """Numbers between two bounds, with each order of magnitude equally likely."""


class Normal(Distribution):
    """The normal distribution."""

    mu: Bound = Field(description="Mean of the values, and also their median.")
    sigma: Bound = Field(description="Standard deviation of the values.")


class LogNormal(Distribution):
    """Numbers whose logarithms have a normal distribution."""

    mu: Bound = Field(description="Mean of the natural logarithm: exp(mu) is the median of the values.")
    sigma: Bound = Field(description="Standard deviation of the natural logarithm.")


class Gamma(Distribution):
    """The gamma distribution. Its mean is shape * scale."""

    shape: Bound = Field(description="Shape, also called alpha or k.")
    scale: Bound = Field(description="Scale, also called theta; 1 divided by the rate.")


class Beta(Distribution):
    """The beta distribution, of numbers from 0 to 1. Its mean is alpha / (alpha + beta)."""

    alpha: Bound = Field(description="First shape: large values are likely if it is larger than beta.")
    beta: Bound = Field(description="Second shape: small values are likely if it is larger than alpha.")


class Exponential(Distribution):
    """The exponential distribution."""

    mean: Bound = Field(description="Mean, which is 1 divided by the rate (lambda).")


class IntRange(Model):
    """Whole numbers between two bounds, each equally likely."""

    model_config = {"json_schema_extra": rules(*cel.RANGE)}

    min: Whole = Field(description="Smallest value of the parameter.")
    max: Whole = Field(description="Largest value of the parameter.")
    step: Annotated[int, Field(ge=1, le=2**53)] = Field(
        1, description="Difference between two neighbouring values, from min on."
    )


class Parameter(Model):
    """The values of one parameter. Set exactly one of the fields."""

    uniform: Range | None = Field(None, description="Numbers between two bounds, for example {min: 0, max: 0.5}.")
    log_uniform: LogRange | None = Field(
        None,
        description="Numbers between two bounds, with each order of magnitude equally likely, for example "
        "{min: 0.0001, max: 0.1}.",
    )
    whole: IntRange | None = Field(
        None, alias="int", description="Whole numbers between two bounds, for example {min: 8, max: 64, step: 8}."
    )
    normal: Normal | None = Field(
        None, description="Numbers of the normal distribution, for example {mu: 0.5, sigma: 0.1}."
    )
    log_normal: LogNormal | None = Field(
        None, description="Numbers whose logarithms have a normal distribution, for example {mu: -7, sigma: 1}."
    )
    gamma: Gamma | None = Field(
        None, description="Numbers of the gamma distribution, for example {shape: 2, scale: 0.01}."
    )
    beta: Beta | None = Field(
        None, description="Numbers of the beta distribution, from 0 to 1, for example {alpha: 2, beta: 5}."
    )
    exponential: Exponential | None = Field(
        None, description="Numbers of the exponential distribution, for example {mean: 0.01}."
    )
    values: Annotated[list[Scalar], Field(min_length=1, max_length=64)] | None = Field(
        None, description="A list of values, for example [16, 32, 64] or [adam, sgd]."
    )

    @property
    def spaces(self) -> dict[str, SearchSpace]:
        """The fields that are set, by their names in manifests. A valid parameter has one."""
        fields = ((field.alias or name, getattr(self, name)) for name, field in type(self).model_fields.items())
        return {name: space for name, space in fields if space is not None}

    @property
    def space(self) -> SearchSpace:
        """The only field of a valid parameter that is set."""
        return next(iter(self.spaces.values()))


SearchSpace = Distribution | IntRange | list[str | int | float | bool]
ParameterName = Annotated[str, StringConstraints(min_length=1, max_length=63)]


class Objective(Model):
    """What the trials are compared by."""

    metric: Annotated[Reason, Field(min_length=1)] = Field(
        description="Name of a metric that the program reports, for example loss."
    )
    goal: Literal["Minimize", "Maximize"] = Field(description="Whether smaller or larger values are better.")
    value: Literal["Last", "Best"] | None = Field(
        None,
        description="Which value of the metric counts for a trial. Last: the latest one. Best: the lowest or highest "
        "one, whichever goal says. Default: Last. Early stopping compares values of the same step.",
    )


class Stop(Model):
    """When trials that are worse than others are stopped early."""

    rule: Literal["ASHA", "Median"] = Field(
        description="ASHA: at each check the best 1/factor of the trials continue. Median: a trial continues unless "
        "its value is worse than the median of the others at the same check, of which there must be three."
    )
    min_steps: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = Field(
        None,
        description="Steps of a trial before its first check. Each further check is after factor times as many. "
        "Default: the steps of the first trial that reports its totalSteps, divided by the square of factor.",
    )
    factor: Annotated[int, Field(ge=2, le=100)] = Field(
        3,
        description="Steps of a check divided by the previous check's steps; for ASHA also the share that continues.",
    )


class TrialMetadata(Model):
    """Metadata of the jobs of a sweep."""

    labels: Annotated[dict[Name, Name], Field(max_length=64)] | None = Field(
        None, description="Labels of each job, for example kueue.x-k8s.io/queue-name."
    )
    annotations: Annotated[dict[Name, LongText], Field(max_length=64)] | None = Field(
        None, description="Annotations of each job of the sweep."
    )


class TrialTemplate(Model):
    """The DistributedTraining of each trial."""

    metadata: TrialMetadata | None = Field(None, description="Labels and annotations of the job of each trial.")
    spec: Opaque = Field(
        description="The spec of a DistributedTraining. $(NAME) in command, args and the values of env stands for the "
        "value of the parameter NAME, which the program also finds in the variable ALLRANKS_PARAM_NAME."
    )


class SweepSpec(Model):
    """Specification of the sweep."""

    model_config = {"json_schema_extra": rules(*cel.SWEEP)}

    parameters: Annotated[dict[ParameterName, Parameter], Field(min_length=1, max_length=32)] = Field(
        description="Parameters of the training by name, with the values to try.", json_schema_extra=rules(*cel.FROZEN)
    )
    objective: Objective | None = Field(
        None,
        description="What the trials are compared by. Without it all trials run, and none of them is the best.",
        json_schema_extra=rules(*cel.FROZEN),
    )
    algorithm: Literal["Random", "Grid", "TPE"] = Field(
        "Random",
        description="How values are chosen: Random; Grid, all combinations; or TPE, which learns from the trials that "
        "have ended (Optuna's TPE) and needs an operator with the extra `sweeps`.",
        json_schema_extra=rules(*cel.FROZEN),
    )
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(
        0,
        description="Seed of random values: the same seed gives the same trials.",
        json_schema_extra=rules(*cel.FROZEN),
    )
    trials: Annotated[int, Field(ge=1, le=MAX_TRIALS)] | None = Field(
        None, description="Number of trials; it may be raised later. Default for Grid: all combinations."
    )
    parallel: Annotated[int, Field(ge=1, le=100)] = Field(
        1, description="Number of trials that exist at the same time; it may be changed later."
    )
    suspend: bool = Field(
        False,
        description="While true, no trial starts and the running ones are suspended. The same trials continue when it "
        "is false again.",
    )
    stop: Stop | None = Field(
        None, description="When trials that are worse than others are stopped early. Default: never."
    )
    notify: SweepNotifications | None = Field(
        None,
        description="Who is notified when the sweep ends: of the best trial, or of the reason why it failed. notify of "
        "the template is about each trial.",
    )
    template: TrialTemplate = Field(
        description="The DistributedTraining of each trial.", json_schema_extra=rules(*cel.FROZEN)
    )


@dataclass(frozen=True, slots=True)
class Sweep:
    """A `TrainingSweep`, without its status."""

    metadata: Metadata
    spec: SweepSpec

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def template(self) -> dict[str, Any]:
        """The spec of a DistributedTraining, as written."""
        return self.spec.template.spec
