"""State of a job between two reconciles: rejected requests, deadlines, decoded objects."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto

from allranks.api.status import FINISHED, WITHOUT_PODS
from allranks.core.facts.model import Observed, Plan, PodRef, RejectedCreate, RejectedDelete
from allranks.operator.observer import Decoded
from allranks.operator.reconciler import State
from allranks.operator.timing import Clock, Timing


@dataclass
class Rejections:
    """Requests for one job that the API server rejected, until they succeed."""

    by_object: dict[tuple[str, str], RejectedCreate] = field(default_factory=dict)
    """Creates, by kind and name."""
    tries: int = 0
    changes: dict[tuple[str, str], RejectedCreate] = field(default_factory=dict)
    """Patches and deletions of objects of optional kinds, until they succeed or are no longer planned."""
    conflicts: bool = False
    """In this reconcile, one of these objects had changed."""
    deletions: dict[str, RejectedDelete] = field(default_factory=dict)
    """By UID of the pod."""
    deletion_tries: int = 0
    deletions_retry_at: float | None = None
    deletions_sent: dict[str, int] = field(default_factory=dict)
    """UID -> how often the API server rejected it. 0: not sent, because another one had just been rejected."""

    def clear_creates(self) -> None:
        self.by_object.clear()
        self.tries = 0

    def due_deletions(self, planned: Sequence[PodRef], now: float) -> list[PodRef]:
        """Return the pods to delete now: all, or during the backoff those that were not rejected."""
        self.keep_deletions(planned)
        if self.deletions_retry_at is None or self.deletions_retry_at <= now:
            return list(planned)
        return [pod for pod in planned if pod.uid not in self.deletions]

    def delay_deletions(self, tried: Iterable[PodRef], now: float, longest: float) -> None:
        """Begin the backoff if some of the tried ones were rejected, and end it if none is left."""
        if not self.deletions:
            self.deletion_tries, self.deletions_retry_at = 0, None
        elif any(pod.uid in self.deletions for pod in tried):
            unsent = 0 in self.deletions_sent.values()
            self.deletion_tries += not unsent
            delay = min(longest, 2.0 ** max(0, self.deletion_tries - 1))
            self.deletions_retry_at = now + (min(1.0, delay) if unsent else delay)

    def keep_deletions(self, planned: Iterable[PodRef]) -> None:
        """Forget all others."""
        uids = {reference.uid for reference in planned}
        self.deletions = {uid: rejected for uid, rejected in self.deletions.items() if uid in uids}
        self.deletions_sent = {uid: count for uid, count in self.deletions_sent.items() if uid in uids}


@dataclass
class WriteState:
    """State of the debounce of one job. All moments are of the monotonic clock."""

    written_at: float = float("-inf")
    counts_since: float | None = None
    """Since when a change of pod counts has been waiting."""
    due: float | None = None
    """When the postponed status is to be written."""
    last: tuple[str, int] | None = None
    """(resourceVersion, hash) of the last status that this operator wrote; None if an answer was lost."""
    foreign: int = 0
    """How often someone else changed the status between two writes."""


class Creates(Enum):
    """The next step of a reconcile for the creates of its plan."""

    ALLOWED = auto()
    REJECTED = auto()
    """A create was rejected, and neither the job changed nor a pod ended since: nothing else makes room in a quota."""
    INTERRUPTED = auto()
    """An error interrupted the creates, and the retry sends them again."""


@dataclass
class JobState(State):
    """`creates` leaves ALLOWED when creates are sent. It returns when all succeed, when nothing is to be created, when
    the job changed, or when `retry_at` or `wake_at` has passed.

    The five deadlines (`deadline` is the next one) are each cleared by the reconcile that they cause.
    """

    rejections: Rejections = field(default_factory=Rejections)
    creates: Creates = Creates.ALLOWED
    companions_due: float | None = None
    """When to check the companions of a running job again."""
    check_companions: bool = False
    wake_at: float | None = None
    """When the plan asks for the next reconcile."""
    writes: WriteState = field(default_factory=WriteState)
    status_rejected: str = ""
    """Why the status could not be written; already reported."""
    suspend_rejected: str = ""
    """Why the job could not be suspended; already reported."""
    decoded: Decoded = field(default_factory=Decoded)

    def begin(self, now: float, changed: bool) -> None:
        """Begin a reconcile: clear deadlines that have passed, and allow creates again if one of them, or a change of
        the job, gives a reason."""
        due = False
        if self.retry_at is not None and self.retry_at <= now:
            self.retry_at, due = None, True
        if self.wake_at is not None and self.wake_at <= now:
            self.wake_at, due = None, True
        if self.companions_due is not None and self.companions_due <= now:
            self.companions_due, self.check_companions = None, True
        if self.rejections.deletions_retry_at is not None and self.rejections.deletions_retry_at <= now:
            self.rejections.deletions_retry_at = None
        self.writes.due = None
        self.rejections.conflicts = False
        if changed or due:
            self.creates = Creates.ALLOWED

    @property
    def deadline(self) -> float | None:
        """Return the next moment at which the job is reconciled without any event."""
        moments = (
            self.wake_at,
            self.retry_at,
            self.writes.due,
            self.companions_due,
            self.rejections.deletions_retry_at,
        )
        return min((at for at in moments if at is not None), default=None)

    def end(self) -> None:
        """End a reconcile that succeeded and left no creates to the retry after an error."""
        if not self.rejections.by_object:
            self.retry_at = None

    def set_wake_at(self, moment: datetime | None, clock: Clock) -> None:
        self.wake_at = None
        if moment:
            self.wake_at = clock.monotonic() + max(0.0, (moment - clock.now()).total_seconds())

    def set_companions_due(self, observed: Observed, plan: Plan, clock: Clock, timing: Timing) -> None:
        if not observed.persisted.launched or observed.persisted.phase in FINISHED | WITHOUT_PODS:
            self.companions_due = None
        elif self.companions_due is None or plan.restore:
            interval = timing.companion_check * random.uniform(0.75, 1.25)
            self.companions_due = clock.monotonic() + interval
        self.check_companions = self.check_companions and plan.write_ahead

    def created(self, clock: Clock, timing: Timing) -> None:
        """Note that the creates of a plan were sent. Rejected ones are tried again with a backoff."""
        rejections = self.rejections
        self.creates = Creates.REJECTED if rejections.by_object else Creates.ALLOWED
        if rejections.by_object:
            rejections.tries += 1
            self.retry_at = clock.monotonic() + min(timing.retry_max, 2.0 ** (rejections.tries - 1))
        else:
            rejections.tries = 0
