"""Intervals, timeouts and the clock of the operator. Tests pass their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Timing:
    """All values are seconds, except `reconcile_cpu_share`."""

    status_min_interval: float = 0.2
    """Minimum interval between status writes that carry no decision. Count-only and progress-only updates use the
    longer intervals below."""
    counts_min_interval: float = 2.0
    progress_min_interval: float = 5.0
    counts_debounce: float = 0.5
    """Pods start and end in bursts: a count-only update waits this long for further changes."""
    pod_event_debounce: float = 0.02
    """Debounce for benign pod events: changes within this window are coalesced into one reconcile."""
    reconcile_cpu_share: float = 0.05
    """The debounce of a large job grows until its reconciles use at most this share of the time..."""
    pod_event_debounce_max: float = 0.25
    """...but not beyond this limit."""
    retry_max: float = 300.0
    unavailable_retry_max: float = 30.0
    """Limit of the backoff while the API server is unavailable: after an outage of any length, work resumes this
    soon."""
    deletion_retry_max: float = 60.0
    """Limit of the backoff of a rejected deletion: the pod holds GPUs that others wait for."""
    companion_check: float = 300.0
    """Interval of the check for Services and the like that someone else deleted or changed, per running job."""
    namespace_max_age: float = 15.0
    """A new job is judged by a Namespace that was read at most this long ago."""
    namespace_refresh: float = 300.0
    """Interval in which the Namespaces of other jobs are read again."""
    optional_apis: float = 30.0
    """Interval of the discovery of optional API groups, such as Kueue's."""
    session_backoff_max: float = 30.0
    watch_margin: float = 120.0
    """A watch is renewed every `watch_timeout`. One that shows no activity for this much longer hangs."""
    crd_poll: float = 5.0
    crd_check: float = 300.0
    """Interval of the comparison of the installed CRDs with those that this operator was built for."""
    events_flush: float = 2.0
    """At shutdown, queued Events are sent for this long."""
    kopf_shutdown: float = 15.0
    token_review_retry: float = 2.0
    """A TokenReview is retried for this long. Then the sender gets 503; its own timeout is 3 s."""
    token_rejected_ttl: float = 30.0
    """How long a rejected token stays rejected: an API server that lags behind does not have the newest pods."""


class Clock:
    """The operator's source of time."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        """Return the time of a clock like `monotonic` that also runs while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def call_later(self, seconds: float, callback: Callable[..., None], *arguments: Any) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, callback, *arguments)
