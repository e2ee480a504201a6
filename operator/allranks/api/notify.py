"""The types of `notify`: which receivers are notified of what about a job or a sweep."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from allranks.fields import Model, Rule, rules

Occasion = Literal["Succeeded", "Failed", "Hung", "Preempted", "Straggling", "LowUtilization"]
SweepOccasion = Literal["Succeeded", "Failed"]
RECEIVER = r"^[a-z0-9]([-a-z0-9]{0,22}[a-z0-9])?$"
WEBHOOK_URL = r"^https?://[^\s/@]+(/[^\s]*)?$"
Receiver = Annotated[str, StringConstraints(max_length=24, pattern=RECEIVER)]
Entry = Annotated[str, StringConstraints(max_length=56)]
"""`Failed/3 oncall`: the occasion, the attempt and the receiver; at its end ` sent` or ` failed`, if it is over."""

_USUAL: tuple[Occasion, ...] = ("Succeeded", "Failed", "Hung", "Preempted", "Straggling")
_ENDS: tuple[SweepOccasion, ...] = ("Succeeded", "Failed")
_EITHER = Rule(rule="has(self.receiver) != has(self.webhook)", message="set either receiver or webhook")


class Webhook(Model):
    """An address that gets a POST request for each notification."""

    url: Annotated[str, StringConstraints(max_length=512, pattern=WEBHOOK_URL)] = Field(
        description="The address, without secrets. Its host must be in allowedHosts of the operator's receivers."
    )
    format: Literal["CloudEvents", "Slack"] = Field(
        "CloudEvents", description="CloudEvents: JSON of the CloudEvents specification. Slack: an object with text."
    )


class Target(Model):
    """The receiver or address that is notified."""

    model_config = {"json_schema_extra": rules(_EITHER)}

    receiver: Receiver | None = Field(None, description="Name of a receiver that the operator's administrator defined.")
    webhook: Webhook | None = Field(None, description="An address instead of a receiver.")


class Notification(Target):
    """A receiver, and what it is notified of."""

    occasions: Annotated[list[Occasion], Field(min_length=1, max_length=6)] = Field(
        default_factory=lambda: list(_USUAL),
        description="What it is notified of. Default: all but LowUtilization.",
    )


class SweepNotification(Target):
    """A receiver, and what it is notified of about a sweep."""

    occasions: Annotated[list[SweepOccasion], Field(min_length=1, max_length=2)] = Field(
        default_factory=lambda: list(_ENDS), description="What it is notified of. Default: both."
    )


Notifications = Annotated[list[Notification], Field(max_length=4)]
SweepNotifications = Annotated[list[SweepNotification], Field(max_length=4)]
