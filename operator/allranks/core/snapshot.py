"""The observation of one job, indexed for the rules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from allranks.api.status import FINISHED, WITHOUT_PODS, Status
from allranks.core.diagnosis import elasticity, hang_detection, pod_ends
from allranks.core.diagnosis.culprit import Evidence
from allranks.core.facts import naming, status_summary, topology
from allranks.core.facts import workload as workloads
from allranks.core.facts.model import Manifest, Observed, Pod, RejectedDelete
from allranks.frameworks.base import Replica


@dataclass(frozen=True)
class Snapshot:
    """An observation with the pods sorted into replica slots."""

    observed: Observed

    @cached_property
    def persisted(self) -> Status:
        """The status from the API server."""
        return self.observed.persisted

    @cached_property
    def current(self) -> Status:
        """The persisted status with what was observed since, such as the progress that ranks reported."""
        return self.observed.current

    @cached_property
    def replicas(self) -> tuple[Replica, ...]:
        return topology.replicas(self.observed.job, self.current)

    @cached_property
    def pods(self) -> dict[tuple[str, int], Pod]:
        """(role, index) -> the pod in this replica slot: owned by the job's UID, with the computed name. One that
        succeeded and is gone stays until the status has its success."""
        owned = {pod.name: pod for pod in self.observed.pods if pod.owned}
        over = self.current.phase in FINISHED | WITHOUT_PODS
        succeeded = {} if over else {name: pod for name, pod in self.observed.removed.items() if pod.succeeded}
        out = {}
        for replica in self.replicas:
            place = replica.role, replica.index
            pod = owned.get(name := self._name(replica)) or (None if self.settled(*place) else succeeded.get(name))
            if pod:
                # Name and owner decide; labels may have been edited.
                named = pod if (pod.role, pod.index) == place else replace(pod, role=place[0], index=place[1])
                out[place] = self._judged(named)
        return out

    def _judged(self, pod: Pod) -> Pod:
        """Return the pod with the result of its fetches, and as failed if it restarts in place too often.

        It counts as not ended while its kubelet may still say why.
        """
        pod = pod_ends.judge_fetches(self.observed.job, pod)
        if pod.last_exit:
            return pod_ends.judge_crash_loop(self.observed.job, pod)
        if self.current.phase in FINISHED or not pod_ends.settles_at(pod, self.observed.now):
            return pod
        return replace(pod, exit=None)

    @cached_property
    def settles_at(self) -> datetime | None:
        """The earliest time at which the end of a pod is judged although its kubelet has not set its phase."""
        now, pods = self.observed.now, self.observed.pods
        times = (pod_ends.settles_at(pod, now) for pod in pods if pod.settling and pod.owned)
        return min((time for time in times if time), default=None)

    @cached_property
    def outdated(self) -> list[Pod]:
        """Owned pods of older attempts, and replaced pods of this attempt."""
        current = {pod.uid for pod in (*self.pods.values(), *self.placeholders.values())}
        pods = (pod for pod in self.observed.pods if pod.owned and pod.uid not in current)
        return sorted(pods, key=lambda pod: (pod.name, pod.uid))

    @cached_property
    def undeletable(self) -> list[tuple[Pod, RejectedDelete]]:
        """Pods whose deletion the API server rejected, and which can still run. A pod that is terminating, however
        long, is not one of them."""
        rejected = {rejection.uid: rejection for rejection in self.observed.refused_deletions}
        pods = [pod for pod in (*self.pods.values(), *self.outdated) if rejected and pod.uid in rejected]
        return [(pod, rejected[pod.uid]) for pod in pods if not pod.ended and pod.deleted_at is None]

    @cached_property
    def workload(self) -> Manifest | None:
        """The object by which the job asks Kueue for quota."""
        return workloads.of_job(self.observed)

    @cached_property
    def placeholders(self) -> dict[str, Pod]:
        """Name -> the pod that probes for room for one more worker. Ended ones are kept until they are recreated."""
        job, status, now = self.observed.job, self.current, self.observed.now
        names = {replica.hostname for replica in topology.waiting(job, status)} if self.probes_for_room else ()
        existing = [pod for pod in self.observed.pods if pod.owned and pod.name in names]
        return {
            pod.name: pod
            for pod in existing
            if not pod.ended or now < elasticity.ended_at(pod, now) + elasticity.PLACEHOLDER_RETRY
        }

    @cached_property
    def probes_for_room(self) -> bool:
        """Return whether placeholders may exist. The attempt stops growing when its first pod has ended."""
        status = self.current
        begin = elasticity.probe_not_before(status)
        over = status.phase in FINISHED or bool(status.done) or any(pod.ended for pod in self.pods.values())
        return begin is not None and begin <= self.observed.now and not over

    @cached_property
    def stall_window(self) -> hang_detection.StallWindow | None:
        o = self.observed
        return hang_detection.detect_stall(o.job, o.current, o.reports)

    @cached_property
    def evidence(self) -> Evidence:
        """What is observed of the attempt, to find which replica a failure is of."""
        o = self.observed
        return Evidence(o.job, self.current, o.platform, self.pods, self.missing, o.refused, o.reports, o.node_problems)

    @cached_property
    def start_errors(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.start_error]

    @cached_property
    def missing(self) -> list[Replica]:
        return [r for r in self.replicas if (r.role, r.index) not in self.pods and not self.settled(r.role, r.index)]

    @cached_property
    def deleted_replicas(self) -> list[Replica]:
        """Replicas whose pod existed and was deleted by someone else."""
        return [r for r in self.missing if self._launched(r)]

    @cached_property
    def failed(self) -> list[Pod]:
        return [pod for place, pod in self.pods.items() if pod_ends.failed(pod) and not self.settled(*place)]

    @cached_property
    def summarised(self) -> Status:
        """The current status with the counts of pods."""
        o = self.observed
        return status_summary.summarise(o.job, o.current, self.pods, o.refused, o.now)

    @cached_property
    def summarised_at_end(self) -> Status:
        """The current status of a finished or suspended job with the counts of pods."""
        return status_summary.summarise_ended(self.observed.job, self.current, self.pods)

    def settled(self, role: str, index: int) -> bool:
        """Return whether this replica needs no pod any more: it completed in this attempt, or its failure was
        ignored."""
        if index in naming.decode_indices(self.current.done.get(role, "")):
            return True
        return bool(self._ignored_keys) and naming.replica_key(role, index) in self._ignored_keys

    def predecessor_running(self, replica: Replica) -> bool:
        """Return whether the replica's former pod of this attempt, which has the same hostname, is not even terminating
        yet."""
        if naming.replica_key(replica.role, replica.index) not in self.current.replica_restarts:
            return False
        return replica.hostname in self._running_predecessors

    @cached_property
    def _running_predecessors(self) -> set[str]:
        """Names of outdated pods that are not even terminating, also without their last part.

        The hostname of a pod is its name, or its name without the number of individual restarts.
        """
        names = [pod.name for pod in self.outdated if not pod.ended and pod.deleted_at is None]
        return {*names, *(name.rpartition("-")[0] for name in names)}

    def _name(self, replica: Replica) -> str:
        """Return the hostname, with the number of the individual restart appended for which the pod is created."""
        entry = self.current.replica_restarts.get(naming.replica_key(replica.role, replica.index))
        return f"{replica.hostname}-{entry.pod_number}" if entry and entry.pod_number else replica.hostname

    def _launched(self, replica: Replica) -> bool:
        status = self.current
        entry = status.replica_restarts.get(naming.replica_key(replica.role, replica.index))
        return entry.launched if entry else status.launched

    @cached_property
    def _ignored_keys(self) -> frozenset[str]:
        return frozenset(self.current.ignored)
