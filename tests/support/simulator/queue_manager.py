"""Plays Kueue in the simulated cluster: admits Workloads in the order of their creation, and evicts them.

It counts pods only, and is much simpler than Kueue itself.
"""

from __future__ import annotations

from typing import Any

from allranks.core.facts.model import Manifest
from allranks.core.facts.optional_kinds import QUEUES

from .cluster import Cluster
from .store import Change, NotFound, key_of, stamp

_API = "kueue.x-k8s.io/v1beta2"


class QueueManager:
    """Installs the API, with LocalQueues of these names and one flavor, and `quota` pods for all of them."""

    def __init__(self, cluster: Cluster, quota: int, queues: tuple[str, ...] = ("team-a",)) -> None:
        self._cluster, self.quota = cluster, quota
        self.partial = False
        """Admits fewer pods than a Workload asks for, down to its minCount."""
        self._due = False
        cluster.serve(QUEUES)
        for name in queues:
            metadata = {"name": name, "namespace": "default"}
            cluster.store.create({"apiVersion": _API, "kind": "LocalQueue", "metadata": metadata, "spec": {}})
        flavor = {"nodeLabels": {"gpu": "h100"}}
        cluster.store.create(
            {"apiVersion": _API, "kind": "ResourceFlavor", "metadata": {"name": "default"}, "spec": flavor}
        )
        cluster.store.watchers.append(self._changed)

    def evict(self, number: int, reason: str) -> None:
        """Evicts one of the admitted Workloads."""
        admitted = [each for each in self._workloads() if holds(each, "Admitted") and not holds(each, "Evicted")]
        if admitted:
            self._set(admitted[number % len(admitted)], Evicted=("True", reason))

    def schedule(self) -> None:
        self._due = False
        free = self.quota - sum(used_by(each) for each in self._workloads())
        for workload in self._workloads():
            if not self._is_waiting(workload):
                continue
            sets = workload["spec"]["podSets"]
            counts = {each["name"]: each["count"] for each in sets}
            if self.partial and sum(counts.values()) > free:
                counts |= {each["name"]: each["minCount"] for each in sets if "minCount" in each}
            if sum(counts.values()) > free:
                self._set(workload, QuotaReserved=("False", "Pending"))
                continue
            free -= sum(counts.values())
            assigned = [{"name": name, "count": count, "flavors": {"cpu": "default"}} for name, count in counts.items()]
            admission = {"clusterQueue": "all", "podSetAssignments": assigned}
            conditions = {"QuotaReserved": ("True", "QuotaReserved"), "Admitted": ("True", "Admitted")}
            if holds(workload, "Evicted"):
                conditions["Evicted"] = ("False", "QuotaReserved")
            self._set(workload, admission, **conditions)

    def used(self) -> int:
        return sum(used_by(each) for each in self._workloads())

    def _workloads(self) -> list[Manifest]:
        return self._cluster.store.all("Workload")

    @staticmethod
    def _is_waiting(workload: Manifest) -> bool:
        return not holds(workload, "QuotaReserved") and not holds(workload, "Finished")

    def _changed(self, change: Change) -> None:
        if change.key[0] == "Workload" and not self._due:
            self._due = True
            self._cluster.after(1, self.schedule)

    def _set(self, workload: Manifest, admission: Any = None, **conditions: tuple[str, str]) -> None:
        status = dict(workload.get("status") or {})
        made = {each["type"]: each for each in status.get("conditions", ())}
        for kind, (state, reason) in conditions.items():
            if made.get(kind, {}).get("status") != state:
                now = stamp(self._cluster.now)
                made[kind] = {"type": kind, "status": state, "reason": reason, "message": reason}
                made[kind]["lastTransitionTime"] = now
        status["conditions"] = list(made.values())
        if admission is not None:
            status["admission"] = admission
        try:
            self._cluster.store.write_status(key_of(workload), status)
        except NotFound:
            return


def holds(workload: Manifest, kind: str) -> bool:
    conditions = (workload.get("status") or {}).get("conditions", ())
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def used_by(workload: Manifest) -> int:
    """Pods whose quota the Workload uses."""
    status = workload.get("status") or {}
    if not holds(workload, "QuotaReserved") or holds(workload, "Finished"):
        return 0
    given_back = sum(each["count"] for each in status.get("reclaimablePods", ()))
    admitted = sum(each["count"] for each in status["admission"]["podSetAssignments"])
    return max(0, int(admitted - given_back))
