"""The answer of a rule to a snapshot: a plan, a time to wait for, or nothing (None).

A rule with a deadline returns `WaitUntil` before it and `Act` after it, so that the wake-up cannot be forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from allranks.api.status import Status
from allranks.core.facts.model import Event, Plan


@dataclass(frozen=True, slots=True)
class Act:
    """The rule decides: this plan is next."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """The rule becomes due at this time if nothing changes; it is always in the future."""

    time: datetime


@dataclass(frozen=True, slots=True)
class WaitForCheckpoint(WaitUntil):
    """The rule waits for a checkpoint that ranks were asked for. Without any such rule the request is withdrawn."""


Outcome = Act | WaitUntil | None


def write(status: Status, *events: Event) -> Act:
    """Write a decision ahead of everything that follows from it."""
    return Act(Plan(next=status, write_ahead=True, events=events))
