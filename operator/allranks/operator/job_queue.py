"""The work queue of jobs. Watches and caches add to it; the controller is its only consumer."""

from __future__ import annotations

from allranks.operator.cache import JobKey
from allranks.operator.timing import Clock, Timing
from allranks.operator.workqueue import WorkQueue


class JobQueue(WorkQueue[JobKey]):
    """Ignores jobs of a namespace until `open` is called for it, when its pods are listed."""

    def __init__(self, timing: Timing, clock: Clock) -> None:
        super().__init__(clock, lambda failures: _backoff(failures, timing))
        self._timing = timing
        self._open: set[str | None] = set()
        self._changed: set[JobKey] = set()
        self._debouncing: set[JobKey] = set()
        self._cost: dict[JobKey, float] = {}

    @property
    def idle(self) -> bool:
        """Nothing is queued, processed, debounced or in backoff."""
        return not (len(self) or self._debouncing or self.failing)

    def open(self, namespace: str | None) -> None:
        """Serve the jobs of a namespace; None: of all namespaces."""
        self._open.add(namespace)

    def enqueue(self, key: JobKey, urgent: bool = True) -> None:
        """Enqueue a job that changed, or whose pool did. A change that is not urgent is debounced."""
        self.mark_changed(key)
        self.enqueue_pod_event(key, urgent)

    def mark_changed(self, key: JobKey) -> None:
        """Let the next reconcile send rejected creates again, without waiting for their backoff."""
        self._changed.add(key)

    def enqueue_pod_event(self, key: JobKey, urgent: bool) -> None:
        """Enqueue a job of which a pod changed. Rejected creates keep their backoff, unless `mark_changed` is called as
        well."""
        cost = self._cost.get(key)
        if urgent or cost is None:
            self.enqueue_now(key)
        elif self._is_open(key):
            timing = self._timing
            self._debouncing.add(key)
            grown = min(timing.pod_event_debounce_max, cost / timing.reconcile_cpu_share)
            self.add_after(key, max(timing.pod_event_debounce, grown))

    def begin(self, key: JobKey) -> bool:
        """Begin a reconcile, which covers all delayed requests of this job. Return whether the job changed since the
        last."""
        self.cancel_delay(key)
        self._debouncing.discard(key)
        changed = key in self._changed
        self._changed.discard(key)
        return changed

    def set_cost(self, key: JobKey, seconds: float) -> None:
        """CPU time of the last reconcile, from which the debounce follows."""
        self._cost[key] = seconds

    def remove(self, key: JobKey) -> None:
        """Forget a job that is deleted."""
        self.begin(key)
        self.forget(key)
        self._cost.pop(key, None)

    def enqueue_now(self, key: JobKey) -> None:
        """Enqueue a job that did not change, for example because its ranks reported: rejected creates keep their
        backoff."""
        if self._is_open(key):
            self.add(key)

    def _is_open(self, key: JobKey) -> bool:
        return None in self._open or key[0] in self._open


def _backoff(failures: int, timing: Timing) -> float:
    """1 s, doubled up to 30 s; after eight failures up to five minutes."""
    longest = timing.retry_max if failures > 8 else timing.unavailable_retry_max
    return min(longest, 0.5 * 2.0 ** min(failures, 10))
