"""What is there of a job's present attempt, and of older ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from allranks.api.status import FINISHED, Status
from allranks.core import elasticity, hang_detection, naming, restart_policy, root_cause, topology
from allranks.core.model import Observed, Pod
from allranks.frameworks.base import Replica


@dataclass(frozen=True)
class Snapshot:
    """The observation, sorted by what decisions ask of it."""

    observed: Observed
    """Its status is the persisted one with what ranks have reported since."""
    persisted: Status

    @cached_property
    def replicas(self) -> tuple[Replica, ...]:
        return topology.replicas(self.observed.job, self.observed.status)

    @cached_property
    def pods(self) -> dict[tuple[str, int], Pod]:
        """(role, index) -> the pod that holds this place now: ours, and of the computed name; labels prove nothing."""
        ours = {pod.name: pod for pod in self.observed.pods if pod.owned}
        out = {}
        for replica in self.replicas:
            place = replica.role, replica.index
            if pod := ours.get(self._name(replica)):
                out[place] = pod if (pod.role, pod.index) == place else replace(pod, role=place[0], index=place[1])
        return out

    @cached_property
    def outdated(self) -> list[Pod]:
        """Our pods of older attempts, and those whose place was given to a newer one."""
        held = {pod.uid for pod in (*self.pods.values(), *self.placeholders.values())}
        return sorted((p for p in self.observed.pods if p.owned and p.uid not in held), key=lambda p: (p.name, p.uid))

    @cached_property
    def placeholders(self) -> dict[str, Pod]:
        """Name -> the pod that shows whether there is room for one more worker. One that ended shows nothing."""
        job, status, now = self.observed.job, self.observed.status, self.observed.now
        wanted = {replica.hostname for replica in topology.waiting(job, status)} if self.seeks_room else ()
        there = [pod for pod in self.observed.pods if pod.owned and pod.name in wanted]
        return {
            pod.name: pod for pod in there if not pod.ended or now < elasticity.ended_at(pod, now) + elasticity.RETRY
        }

    @cached_property
    def seeks_room(self) -> bool:
        """For more workers. When the first pod has ended, well or ignored, the attempt comes to its end."""
        status = self.observed.status
        begins = elasticity.seeks_room_from(status)
        over = status.phase in FINISHED or any(pod.ended for pod in self.pods.values())
        return begins is not None and begins <= self.observed.now and not over

    @cached_property
    def watched(self) -> hang_detection.Watch | None:
        o = self.observed
        return hang_detection.watch(o.job, o.status, o.reports)

    @cached_property
    def bad_starts(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.waiting_reason in restart_policy.BAD_START and not pod.ended]

    @cached_property
    def missing(self) -> list[Replica]:
        return [r for r in self.replicas if (r.role, r.index) not in self.pods and not self._ignored(r.role, r.index)]

    @cached_property
    def vanished(self) -> list[Replica]:
        """Pods that were there and are not: somebody deleted them."""
        return [r for r in self.missing if self._launched(r)]

    @cached_property
    def failed(self) -> list[Pod]:
        return [pod for place, pod in self.pods.items() if root_cause.failed(pod) and not self._ignored(*place)]

    def lives(self, replica: Replica) -> bool:
        """Its former pod of this attempt, which has the same host name, was not even told to go yet."""
        if naming.replica_key(replica.role, replica.index) not in self.observed.status.replica_restarts:
            return False
        first, others = replica.hostname, f"{replica.hostname}-"
        former = [pod for pod in self.outdated if pod.name == first or pod.name.startswith(others)]
        return any(not pod.ended and pod.deleted_at is None for pod in former)

    def _name(self, replica: Replica) -> str:
        """Its pod's name: its host name, and how often it was restarted alone."""
        entry = self.observed.status.replica_restarts.get(naming.replica_key(replica.role, replica.index))
        return f"{replica.hostname}-{entry.count}" if entry and entry.count else replica.hostname

    def _launched(self, replica: Replica) -> bool:
        status = self.observed.status
        entry = status.replica_restarts.get(naming.replica_key(replica.role, replica.index))
        return entry.launched if entry else status.launched

    def _ignored(self, role: str, index: int) -> bool:
        ignored = self.observed.status.ignored
        return bool(ignored) and naming.replica_key(role, index) in ignored
