"""Nodes, their kubelets and the scheduler: they place pods, run scripted programs, and stop deleted pods.

With a `Workload` pods are scheduled, started and ended automatically. Without one, the test does this, and only
deletions, node loss and the garbage collector are automatic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from allranks.core.facts.model import Manifest
from allranks.core.facts.naming import ATTEMPT_LABEL, TRAINER

from . import pod_status
from .store import GRACE_SECONDS, Change, Key, Store, controller_of, ended, key_of


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps a pod from running."""

    kind: Literal["waits", "initializes", "unmounted", "rejected"]
    """A container waits with a reason; an init container runs; volumes are not mounted; the kubelet rejects the pod."""
    container: str = TRAINER
    reason: str = ""
    seconds: float | None = None
    """Time until it is gone; None: it stays."""


@dataclass(frozen=True, slots=True)
class Program:
    """The behaviour of one rank."""

    seconds: float | None = None
    """Time until it exits; None: it runs until it is stopped."""
    code: int = 0
    reason: str = ""
    message: str = ""
    when_peer_is_lost: Literal["continues", "hangs", "crashes"] = "hangs"
    """Reaction to the loss of a rank of the same attempt."""
    crash_seconds: float = 5.0
    crash_code: int = 1
    stop_seconds: float | None = 1.0
    """Time from SIGTERM to its exit; None: it ignores SIGTERM, and is killed after the grace period."""
    ending: Literal["exits", "evicted", "over limit"] = "exits"
    """`evicted`: a resource of the node is exhausted. `over limit`: the pod exceeds a limit of its own."""
    sidecars_stay: bool = False
    """The other containers continue when the program exits."""
    collected_seconds: float | None = None
    """Time from its end until somebody deletes the pod; None: never."""
    obstacle: Obstacle | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Runs pods automatically."""

    program: Callable[[Manifest], Program] = lambda pod: Program()
    """The program of a pod, for example by its role and attempt."""
    schedule_seconds: float = 0.1
    start_seconds: float = 1.0
    explains_preemption: bool = True
    """The scheduler says whether pods are in the way of a pod that it cannot place."""
    bad_images: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Images that cannot be pulled -> (waiting reason, message)."""


@dataclass(slots=True)
class Node:
    """A machine. Pods take `pods: 1` each, and what they request of resources such as `nvidia.com/gpu`."""

    name: str
    capacity: dict[str, int] = field(default_factory=lambda: {"pods": 110})
    reachable: bool = True


class Host(Protocol):
    """The part of a cluster that kubelets need."""

    @property
    def now(self) -> datetime: ...
    def after(self, seconds: float, action: Callable[[], None]) -> None: ...


class Kubelets:
    """All nodes. A pod on a lost node does not change, and is not removed, until the node is back or deleted."""

    def __init__(self, store: Store, host: Host, nodes: Mapping[str, Node], workload: Workload | None) -> None:
        self._store, self._host, self._workload = store, host, workload
        self.nodes = dict(nodes)
        self._stopping: set[str] = set()
        self._placing: set[str] = set()
        self._starting: set[str] = set()
        self._overcome: set[Key] = set()
        """Pods whose obstacle is gone, or ends at a planned time. Names are never used twice."""
        self._generations: dict[str, int] = {}
        """UID -> number of its latest planned end. Earlier ones are cancelled."""
        store.watchers.append(self._changed)

    # Actions of the scheduler, the kubelet and the node controller on one pod

    def place(self, key: Key, node: str) -> None:
        self._store.bind(key, node)
        self._report(key, pod_status.scheduled(self._store.get(key), self._host.now))

    def start(self, key: Key) -> None:
        self._report(key, pod_status.running(self._store.get(key), self._host.now))

    def end(
        self, key: Key, code: int, reason: str = "", message: str = "", container: str = TRAINER, others: int | None = 0
    ) -> None:
        pod = self._store.get(key)
        self._report(key, pod_status.exited(pod, self._host.now, code, reason, message, container, others))

    def wait(self, key: Key, reason: str, message: str = "", container: str = TRAINER) -> None:
        self._report(key, pod_status.waiting(self._store.get(key), self._host.now, reason, message, container))

    def initialize(self, key: Key, container: str) -> None:
        self._report(key, pod_status.initializing(self._store.get(key), self._host.now, container))

    def unmount(self, key: Key) -> None:
        self._report(key, pod_status.unmounted(self._store.get(key), self._host.now))

    def cannot_place(self, key: Key, message: str) -> None:
        self._report(key, pod_status.unschedulable(self._store.get(key), self._host.now, message))

    def fail_init(self, key: Key, code: int, message: str = "") -> None:
        self._report(key, pod_status.init_failed(self._store.get(key), self._host.now, code, message))

    def reject(self, key: Key, reason: str, message: str) -> None:
        self._report(key, pod_status.rejected(self._store.get(key), reason, message))

    def stop(self, key: Key, code: int) -> None:
        """The containers have ended, which the kubelet writes before the phase of the pod and the reason."""
        self._report(key, pod_status.stopped(self._store.get(key), self._host.now, code))

    def evict(self, key: Key) -> None:
        """Eviction by the kubelet: the containers are killed, and the pod stays as Failed."""
        self._report(key, pod_status.evicted(self._store.get(key), self._host.now))

    def mark(self, key: Key, reason: str = "PreemptionByScheduler", message: str = "") -> None:
        """Sets condition DisruptionTarget, as for preemption, eviction by the API, or a taint."""
        self._report(key, pod_status.disrupted(self._store.get(key), self._host.now, reason, message))

    def disrupt(self, key: Key, reason: str = "PreemptionByScheduler", message: str = "") -> None:
        """Sets condition DisruptionTarget and deletes the pod with its grace period."""
        self.mark(key, reason, message)
        self._store.delete(key)

    def collect(self, key: Key) -> None:
        """The pod garbage collector marks a pod whose node was deleted, before it removes the pod."""
        self._report(key, pod_status.collected(self._store.get(key), self._host.now))

    # Nodes

    def add(self, node: Node) -> None:
        self.nodes[node.name] = node
        self._host.after(0, self._place_waiting)

    def lose(self, name: str) -> None:
        """The node becomes unreachable. The taint manager deletes its pods, but no kubelet confirms it."""
        self.nodes[name].reachable = False
        for pod in self._on(name):
            if ended(pod["status"]):
                continue
            key = key_of(pod)
            self._report(key, pod_status.unreachable(pod, self._host.now))
            message = "Taint manager: deleting due to NoExecute taint"
            self.disrupt(key, "DeletionByTaintManager", message)

    def recover(self, name: str) -> None:
        """The node is back. Its kubelet stops the pods that were deleted in the meantime."""
        self.nodes[name].reachable = True
        self._host.after(0, self._place_waiting)
        for pod in self._on(name):
            self._stop_if_deleted(pod)

    def remove(self, name: str) -> None:
        """The node is deleted, and the garbage collector force-deletes its pods."""
        del self.nodes[name]
        for pod in self._on(name):
            if not ended(pod["status"]):
                self.collect(key_of(pod))
            if self._store.find(key_of(pod)):
                self._store.remove(key_of(pod))

    # Automatic actions

    def _changed(self, change: Change) -> None:
        if change.key[0] != "Pod":
            return
        pod = change.object
        if change.kind == "DELETED":
            self._forget(pod["metadata"]["uid"])
            self._host.after(0, self._place_waiting)
            self._notify_peers(pod)
            return
        self._stop_if_deleted(pod)
        if ended(pod["status"]):
            self._host.after(0, self._place_waiting)
            if pod["status"]["phase"] == "Failed":
                self._notify_peers(pod)
        elif self._workload and "nodeName" not in pod["spec"]:
            self._once(self._placing, pod, self._workload.schedule_seconds, self._place_waiting)
        elif self._workload and pod["status"]["phase"] == "Pending":
            self._once(self._starting, pod, self._workload.start_seconds, lambda: self._begin(pod))

    def _stop_if_deleted(self, pod: Manifest) -> None:
        metadata = pod["metadata"]
        node = self.nodes.get(pod["spec"].get("nodeName", ""))
        if "deletionTimestamp" not in metadata or (node and not node.reachable):
            return
        seconds = self._program(pod).stop_seconds
        grace = float(metadata.get("deletionGracePeriodSeconds", GRACE_SECONDS))
        killed = seconds is None or seconds > grace
        wait = grace if seconds is None else min(seconds, grace)
        self._once(self._stopping, pod, wait, lambda: self._stop(pod, 137 if killed else 143))

    def _stop(self, pod: Manifest, code: int) -> None:
        present = self._same(pod)
        if present is None:
            return
        node = self.nodes.get(present["spec"].get("nodeName", ""))
        if node and not node.reachable:
            self._stopping.discard(pod["metadata"]["uid"])
            return
        key = key_of(present)
        if present["status"]["phase"] == "Running":
            self.end(key, code, others=code)
        if self._store.find(key):
            self._store.remove(key)

    def _place_waiting(self) -> None:
        if not self._workload:
            return
        for pod in self._store.all("Pod"):
            if "nodeName" in pod["spec"] or ended(pod["status"]) or "deletionTimestamp" in pod["metadata"]:
                continue
            self._placing.discard(pod["metadata"]["uid"])
            node = next((n for n in self.nodes.values() if n.reachable and self._fits(pod, n)), None)
            if node:
                self.place(key_of(pod), node.name)
            else:
                total = len(self.nodes)
                text = f"0/{total} nodes are available: {total} Insufficient {', '.join(sorted(_requests(pod)))}."
                self._placing.add(pod["metadata"]["uid"])
                self.cannot_place(key_of(pod), text + self._about_preemption(pod))

    def _about_preemption(self, pod: Manifest) -> str:
        """What the scheduler says of nodes that are full, and of those that are too small for the pod."""
        if not (self._workload and self._workload.explains_preemption):
            return ""
        requests, nodes = _requests(pod).items(), self.nodes.values()
        full = sum(1 for node in nodes if all(amount <= node.capacity.get(name, 0) for name, amount in requests))
        reasons = {"Preemption is not helpful for scheduling": len(nodes) - full, "No preemption victims found": full}
        text = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
        return f" preemption: 0/{len(nodes)} nodes are available: {text}."

    def _fits(self, pod: Manifest, node: Node) -> bool:
        used: dict[str, int] = {}
        for other in self._on(node.name):
            if not ended(other["status"]):
                for name, amount in _requests(other).items():
                    used[name] = used.get(name, 0) + amount
        return all(used.get(n, 0) + amount <= node.capacity.get(n, 0) for n, amount in _requests(pod).items())

    def _begin(self, pod: Manifest) -> None:
        present, workload = self._same(pod), self._workload
        if (
            present is None
            or workload is None
            or ended(present["status"])
            or "deletionTimestamp" in present["metadata"]
        ):
            return
        key = key_of(present)
        image = next(c.get("image", "") for c in present["spec"]["containers"] if c["name"] == TRAINER)
        if image in workload.bad_images:
            self.wait(key, *workload.bad_images[image])
            return
        program = self._program(present)
        if program.obstacle and key not in self._overcome:
            self._meet(present, program.obstacle)
            return
        self.start(key)
        if program.seconds is not None:
            self._plan_end(present, program.seconds, program.code, program.reason, program.message)

    def _meet(self, pod: Manifest, obstacle: Obstacle) -> None:
        key = key_of(pod)
        match obstacle.kind:
            case "waits":
                self.wait(key, obstacle.reason, container=obstacle.container)
            case "initializes":
                self.initialize(key, obstacle.container)
            case "unmounted":
                self.unmount(key)
            case "rejected":
                self.reject(key, obstacle.reason, "the kubelet rejected the pod")
        if obstacle.seconds is not None and obstacle.kind != "rejected":
            self._overcome.add(key)
            self._host.after(obstacle.seconds, lambda: self._begin(pod))

    def _plan_end(self, pod: Manifest, seconds: float, code: int, reason: str = "", message: str = "") -> None:
        generation = self._next_generation(pod["metadata"]["uid"])

        def end_pod() -> None:
            present = self._same(pod)
            if present is None or self._generations.get(pod["metadata"]["uid"]) != generation:
                return
            node = self.nodes.get(present["spec"].get("nodeName", ""))
            if node and node.reachable and present["status"]["phase"] == "Running":
                self._finish(present, code, reason, message)

        self._host.after(seconds, end_pod)

    def _finish(self, pod: Manifest, code: int, reason: str, message: str) -> None:
        key, program = key_of(pod), self._program(pod)
        if program.ending == "exits":
            self.end(key, code, reason, message, others=None if program.sidecars_stay else 0)
        else:
            self._report(key, _EVICTIONS[program.ending](pod, self._host.now))
        if program.collected_seconds is not None:
            self._host.after(program.collected_seconds, lambda: self._remove(pod))

    def _remove(self, pod: Manifest) -> None:
        if self._same(pod):
            self._store.remove(key_of(pod))

    def _notify_peers(self, lost: Manifest) -> None:
        if not self._workload or (lost["status"]["phase"] == "Succeeded"):
            return
        labels = lost["metadata"].get("labels", {})
        for pod in self._store.all("Pod"):
            same = controller_of(pod) == controller_of(lost) and pod["metadata"].get("labels", {}).get(
                ATTEMPT_LABEL
            ) == labels.get(ATTEMPT_LABEL)
            if not same or pod["status"]["phase"] != "Running" or pod["metadata"]["uid"] == lost["metadata"]["uid"]:
                continue
            program = self._program(pod)
            if program.when_peer_is_lost == "hangs":
                self._next_generation(pod["metadata"]["uid"])
            elif program.when_peer_is_lost == "crashes":
                self._plan_end(pod, program.crash_seconds, program.crash_code, message="connection reset by peer")

    def _program(self, pod: Manifest) -> Program:
        return self._workload.program(pod) if self._workload else Program()

    def _report(self, key: Key, status: Manifest) -> None:
        self._store.write_status(key, status)

    def _on(self, node: str) -> list[Manifest]:
        return [pod for pod in self._store.all("Pod") if pod["spec"].get("nodeName") == node]

    def _same(self, pod: Manifest) -> Manifest | None:
        """The current version of the pod; None if it was removed, also if another one has its name."""
        present = self._store.find(key_of(pod))
        return present if present and present["metadata"]["uid"] == pod["metadata"]["uid"] else None

    def _once(self, doing: set[str], pod: Manifest, seconds: float, action: Callable[[], None]) -> None:
        uid = pod["metadata"]["uid"]
        if uid not in doing:
            doing.add(uid)
            self._host.after(seconds, action)

    def _next_generation(self, uid: str) -> int:
        self._generations[uid] = self._generations.get(uid, 0) + 1
        return self._generations[uid]

    def _forget(self, uid: str) -> None:
        for doing in (self._stopping, self._placing, self._starting):
            doing.discard(uid)
        self._generations.pop(uid, None)


_EVICTIONS = {"evicted": pod_status.evicted, "over limit": pod_status.over_limit}


def _requests(pod: Manifest) -> dict[str, int]:
    wanted = {"pods": 1}
    for container in pod["spec"]["containers"]:
        resources = container.get("resources", {})
        for name, amount in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
            if "/" in name and str(amount).isdigit():
                wanted[name] = wanted.get(name, 0) + int(amount)
    return wanted
