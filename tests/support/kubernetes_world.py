"""A namespace of a real API server as the world of a scenario, with a kubelet and a clock that the scenario controls.

API server, garbage collector, quota and the operator's watches work asynchronously. So after every change the world
waits until it has settled: the operator's caches are up to date, and no component has work left.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from allranks.api.job import API_VERSION, KIND
from allranks.api.pool import KIND as POOL
from allranks.api.pool import PoolSpec
from allranks.api.validation import parse_pool
from allranks.core.facts.naming import JOB_LABEL
from allranks.core.facts.optional_kinds import RESOURCE_FLAVOR
from allranks.core.facts.rank_reports import RankReport
from allranks.kube.auth import Connection
from allranks.operator.session import Session
from allranks.operator.settings import Settings
from allranks.operator.timing import Timing
from support.scenario_runner import JOB, Refused, Unsupported, World
from support.simulator.ranks import Ranks
from support.simulator.store import Key, ended
from support.simulator.supervisors import FAULTS

from .api import ApiError, Manifest, path
from .controlplane import ControlPlane, install
from .kubelet import Hand
from .kueue_api import definitions
from .operators import Clock, RunningOperator
from .polling_supervisors import PollingSupervisors

_INSTALLING = threading.Lock()
_INSTALLED: set[str] = set()
"""Addresses of API servers that serve Kueue's kinds."""
PATIENCE_SECONDS = 300.0
PAUSE_SECONDS = 0.02
TIMING = Timing(status_min_interval=0.01, counts_min_interval=0.01, counts_debounce=0.01, progress_min_interval=0.5)
"""The world waits after each change until the status is written, in real time."""
QUOTA = "scenario"
_OTHER_KINDS = ("Pod", "Service", "ConfigMap", "Secret")
_COUNTED = {"Pod": "pods", "Service": "count/services", "ConfigMap": "count/configmaps", "Secret": "count/secrets"}
"""Kind -> its name in a ResourceQuota. `pods` does not count those that have ended."""
SETTINGS = {
    "leader_election": False,
    "address": "127.0.0.1",
    "port": 0,
    "helper_image": "example.org/allranks:1",
    "data_claim": "allranks-data",
    "report_port": 0,
    "report_url": "http://reports.example.org:8081/v1/report",
}


class KubernetesWorld(World):
    """Must be closed."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self.namespace = namespace
        self._api = control_plane.api
        self._connection = Connection(control_plane.url, str(control_plane.ca_file), control_plane.admin_token)
        self.clock = Clock(datetime.now(UTC).replace(microsecond=0))
        self._hand = Hand(
            self._api, namespace, self.clock.now, lambda pod: self.clock.deletion_requested(pod["metadata"]["uid"])
        )
        self._limits: dict[str, str] = {}
        self._room = ""
        """resourceVersion of the quota when the operator last retried rejected creates."""
        self._events: dict[str, tuple[str, str]] = {}
        """Name -> (reason, message), in order of their first observation."""
        self._pools: dict[str, PoolSpec | None] = {}
        """Pools of this world; None: deleted."""
        self._control_plane = control_plane
        self._queues = False
        """The scenario uses Kueue's API."""
        self._flavors: set[str] = set()
        self._operator: RunningOperator | None = None
        self._ranks = Ranks(self.clock.now)
        self._supervisors = PollingSupervisors(self.clock.now, self._end_with_program)
        self._ranks.number_of = self._supervisors.simulated.number_of
        self._asked: set[str] = set()
        self._informed: Session | None = None
        """The operator's session to which all reports of the ranks were sent."""
        self.start_operator()

    def close(self) -> None:
        self.stop_operator()
        for name in self._pools:
            if self._api.find(POOL, None, name):
                self._api.delete(POOL, None, name)
        for name in self._flavors:
            self._api.delete("ResourceFlavor", None, name)

    # Changes by users

    def create(self, manifest: Manifest) -> None:
        self._ask(lambda: self._api.create(manifest, self.namespace))

    def patch_job(self, change: Manifest) -> None:
        self._ask(lambda: self._api.patch(KIND, self.namespace, JOB, change))

    def delete_job(self, foreground: bool) -> None:
        how = "Foreground" if foreground else "Background"
        self._ask(lambda: self._api.delete(KIND, self.namespace, JOB, propagation=how))

    def pool_name(self, name: str) -> str:
        return f"{name}-{self.namespace}"

    def apply_pool(self, name: str, spec: Manifest) -> None:
        manifest = {"apiVersion": API_VERSION, "kind": POOL, "metadata": {"name": name}, "spec": spec}

        def apply() -> None:
            before = self._api.find(POOL, None, name)
            if before:
                manifest["metadata"] = {"name": name, "resourceVersion": before["metadata"]["resourceVersion"]}
                after = self._api.request("PUT", path(POOL, None, name), manifest)
            else:
                after = self._api.create(manifest)
            self._pools[name] = parse_pool({**manifest, "metadata": {"name": name}, "spec": after.get("spec", {})}).spec

        self._ask(apply)

    def delete_pool(self, name: str) -> None:
        def delete() -> None:
            self._api.delete(POOL, None, name)
            self._pools[name] = None

        self._ask(delete)

    def kueue(self, installed: bool) -> None:
        """Other worlds use the same API server, so the API stays."""
        if not installed:
            raise Unsupported("removal of Kueue's API")
        with _INSTALLING:
            if self._api.address not in _INSTALLED:  # one definition may exist without the others
                with tempfile.TemporaryDirectory() as folder:
                    install(self._api, definitions(Path(folder)))
                _INSTALLED.add(self._api.address)
        self.stop_operator()
        self._queues = True
        self.start_operator()

    def cluster_name(self, name: str) -> str:
        return f"{name}-{self.namespace}"

    def apply(self, manifest: Manifest) -> None:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind == "ResourceFlavor":
            self._flavors.add(name)
        namespace = None if kind == "ResourceFlavor" else self.namespace
        self._ask(lambda: self._api.create(manifest, namespace))

    def change_workload(self, spec: Manifest, status: Manifest) -> None:
        workload = self.workload()
        assert workload
        name = workload["metadata"]["name"]
        if spec:
            self._ask(lambda: self._api.patch("Workload", self.namespace, name, {"spec": spec}))
        if status:
            self._ask(lambda: self._api.patch("Workload", self.namespace, name, {"status": status}, "status"))

    def delete_workload(self) -> None:
        workload = self.workload()
        assert workload
        self._ask(lambda: self._api.delete("Workload", self.namespace, workload["metadata"]["name"]))

    def delete_pod(self, pod: str, force: bool) -> None:
        self._ask(lambda: self._api.delete("Pod", self.namespace, pod, grace=0 if force else None))

    def quota(self, kind: str, limit: int | None) -> None:
        self._limits.pop(_COUNTED[kind], None)
        if limit is not None:
            self._limits[_COUNTED[kind]] = str(limit)
        with contextlib.suppress(ApiError):
            self._api.delete("ResourceQuota", self.namespace, QUOTA)
        if self._limits:
            spec = {"hard": self._limits}
            self._api.create(
                {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": QUOTA}, "spec": spec}, self.namespace
            )
        self._settle()

    # Changes by nodes

    def run(self, pod: str, node: str) -> None:
        self._place(pod, node)
        self._play(lambda: self._hand.start(pod))

    def _place(self, pod: str, node: str) -> None:
        self.clock.placed(self._api.get("Pod", self.namespace, pod)["metadata"]["uid"])
        self._hand.place(pod, node)

    def end(self, pod: str, code: int, reason: str, message: str, container: str, others: int | None) -> None:
        self._play(lambda: self._hand.end(pod, code, reason, message, container, others))

    def wait(self, pod: str, reason: str, message: str, container: str) -> None:
        self._place(pod, "somewhere")
        self._play(lambda: self._hand.wait(pod, reason, message, container))

    def initialize(self, pod: str, container: str) -> None:
        self._place(pod, "somewhere")
        self._play(lambda: self._hand.initialize(pod, container))

    def unmount(self, pod: str) -> None:
        self._place(pod, "somewhere")
        self._play(lambda: self._hand.unmount(pod))

    def cannot_place(self, pod: str, message: str) -> None:
        self._play(lambda: self._hand.cannot_place(pod, message))

    def fail_init(self, pod: str, code: int, message: str) -> None:
        self._place(pod, "somewhere")
        self._play(lambda: self._hand.fail_init(pod, code, message))

    def evict(self, pod: str) -> None:
        self._play(lambda: self._hand.evict(pod))

    def kubelet(self, pod: str, node: str, status: Callable[[Manifest, datetime], Manifest]) -> None:
        self._place(pod, node)
        self._play(lambda: self._hand.set_status(pod, status))

    def disrupt(self, pod: str, reason: str) -> None:
        self._play(lambda: self._hand.disrupt(pod, reason))

    def lose_node(self, node: str) -> None:
        self._play(lambda: self._hand.lose(node))

    def recover_node(self, node: str) -> None:
        self._play(lambda: self._hand.recover(node))

    def remove_node(self, node: str) -> None:
        self._play(lambda: self._hand.remove(node))

    def report(self, pod: str, **said: Any) -> None:
        manifest = self._api.get("Pod", self.namespace, pod)
        if said.get("handled"):
            self._send_all()  # the rank learns of the request from an answer
        self._ranks.report(manifest, **said)
        self._play(lambda: self._send(manifest))

    def report_outage(self, begins: bool) -> None:
        self._ranks.outage(begins)
        self._play(self._send_all)

    def asked_for_stacks(self) -> int:
        """Ranks receive the request in the response to their next report."""
        self._send_all()
        return len(self._asked)

    def asked_for_checkpoint(self) -> bool:
        self._ranks.checkpoint_request = 0
        self._send_all()
        return self._ranks.checkpoint_request > 0

    def _send_all(self, resumed: bool = False) -> None:
        if not self._ranks.latest:
            return
        for pod in self._api.list("Pod", self.namespace):
            reports = self._ranks.repeats(pod["metadata"]["uid"])
            if reports and "deletionTimestamp" not in pod["metadata"]:
                self._send(pod, resumed)

    def _send(self, pod: Manifest, resumed: bool = False) -> None:
        """Sends a complete report like the pod's rank, with durations instead of times.

        `resumed`: to a new operator.
        """
        if self._operator is None or self._ranks.arrived:
            return
        said = self._ranks.latest[pod["metadata"]["uid"]]
        sender = self._supervisors.sender(pod)
        answer = self._operator.report(sender, self._message(said), said.windows if resumed else None)
        self._asked |= set(filter(None, [answer.get("stacks")]))
        self._ranks.checkpoint_request = answer.get("checkpoint", 0)

    def _message(self, said: RankReport) -> bytes:
        now = self.clock.now()

        def ago(moment: datetime | None) -> float | None:
            return None if moment is None else (now - moment).total_seconds()

        saved = {"step": said.checkpoint_step, "ago": ago(said.checkpoint_at)} if said.checkpoint_at else None
        message = {
            "rank": said.rank,
            "step": said.step,
            "totalSteps": said.total_steps,
            "metrics": said.metrics,
            "notFinite": said.not_finite,
            "stepSeconds": said.step_seconds,
            "busySeconds": said.busy_seconds,
            "checkpoint": saved,
            "savesOnRequest": said.saves_on_request,
            "handledRequest": said.handled_request,
            "idle": ago(said.stepped_at),
            "done": said.done,
            "waiting": said.waiting,
        }
        return json.dumps(message).encode()

    # Changes by supervisors

    def fail(self, pod: str, code: int, signal: int | None, message: str) -> None:
        self._play(lambda: self._supervisors.simulated.fail(self._uid(pod), code, signal, message))

    def supervisor(self, pod: str, fault: str) -> None:
        if fault == "slow":
            self._supervisors.simulated.of_pod[self._uid(pod)].stop_seconds = 10
        elif fault in FAULTS:
            self._play(lambda: self._supervisors.simulated.misbehave(self._uid(pod), fault))  # type: ignore[arg-type]
        else:
            raise AssertionError(f"unknown fault {fault}")

    def process(self, pod: str) -> str:
        found = self._api.find("Pod", self.namespace, pod)
        supervisor = self._supervisors.simulated.of_pod.get(found["metadata"]["uid"]) if found else None
        return supervisor.described if supervisor else ""

    def _uid(self, pod: str) -> str:
        uid: str = self._api.get("Pod", self.namespace, pod)["metadata"]["uid"]
        return uid

    def _end_with_program(self, pod: Key, code: int, message: str) -> None:
        """The supervisor ends with the exit code of its program."""
        with contextlib.suppress(ApiError):  # deleted in the meantime
            self._hand.end(pod[2], code, "", message, others=code)

    def advance(self, seconds: float) -> None:
        """Terminating pods end, and supervisors act, when they are due. The operator's deadlines expire only at the
        end, as after a pause."""
        until = self.clock.now() + timedelta(seconds=seconds)
        while (due := self._next_due()) and due <= until:
            self._leap(max(due, self.clock.now()))
        self._leap(until)

    def _next_due(self) -> datetime | None:
        return min(filter(None, (self._hand.next_stop(), self._supervisors.next_due())), default=None)

    def stop_operator(self) -> None:
        if self._operator:
            self._operator.kill()
        self._operator = None
        self._supervisors.disconnect()

    def start_operator(self) -> None:
        settings = Settings(namespaces=(self.namespace,), queues=self._queues, **SETTINGS)
        self._operator = RunningOperator(settings, self._connection, TIMING, self.clock)
        self._settle()

    # Observation

    def job(self) -> Manifest | None:
        return self._api.find(KIND, self.namespace, JOB)

    def objects(self) -> list[Manifest]:
        kinds = (*_OTHER_KINDS, "Workload") if self._queues else _OTHER_KINDS
        return [found for kind in kinds for found in self._api.list(kind, self.namespace)]

    def events(self) -> list[tuple[str, str]]:
        events = self._api.list("Event", self.namespace, fieldSelector=f"involvedObject.kind={KIND}")
        # Ordered by their last change, the only order that the API server keeps.
        for event in sorted(events, key=lambda e: int(e["metadata"]["resourceVersion"])):
            self._events.setdefault(event["metadata"]["name"], (event["reason"], event["message"]))
        return list(self._events.values())

    def eventually(self, differences: Callable[[], list[str]]) -> list[str]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self._settle()
            found = differences()
            if not found or time.monotonic() > deadline:
                return found + [f"still pending: {what}" for what in self._pending() if found]
            time.sleep(5 * PAUSE_SECONDS)

    # Waiting

    def _ask(self, request: Callable[[], Any]) -> None:
        try:
            request()
        except ApiError as answer:
            raise Refused(answer.message) from answer
        finally:
            self._settle()

    def _play(self, change: Callable[[], None]) -> None:
        self._at_once(change)
        self._settle()

    def _at_once(self, change: Callable[[], None]) -> None:
        """A subclass may pause the operator between the steps of a change."""
        change()

    def _leap(self, moment: datetime) -> None:
        if self._operator:
            self._operator.leap(
                lambda: self.clock.set(moment),
                repeat_reports=not self._ranks.arrived,
                ranks_report=bool(self._ranks.latest),
            )
        else:
            self.clock.set(moment)
        self._at_once(self._hand.stop_due)
        if self._operator:
            self._operator.enqueue_all(repeat_reports=not self._ranks.arrived)
        self._settle()

    def _settle(self) -> None:
        """Waits until nothing is pending, twice in a row, or until a timeout, which `eventually` reports."""
        deadline, quiet = time.monotonic() + PATIENCE_SECONDS, 0
        while quiet < 2 and time.monotonic() < deadline:
            quiet = 0 if any(True for _ in self._pending()) else quiet + 1
            session = self._operator.operator.session if self._operator else None
            if quiet and session is not self._informed:
                self._informed, quiet = session, 0
                self._send_all(resumed=True)
            if quiet == 0:
                time.sleep(PAUSE_SECONDS)
        self.events()

    def _pending(self) -> Iterator[str]:
        if self._operator and not self._operator.state()[0]:
            yield "the operator is not idle"  # before requests, which take time that it needs
        jobs, pods = self._api.list(KIND, self.namespace), self._api.list("Pod", self.namespace)
        for pod in pods:
            self.clock.observe(pod["metadata"])
        ours = [pod for pod in pods if _owner(pod)]
        if self._supervisors.continue_(ours, self._operator, self._operator_lives):
            yield "a supervisor has just said or done something"
        kueue = ("Workload", "LocalQueue") if self._queues else ()
        others = [each for kind in kueue for each in self._api.list(kind, self.namespace)]
        yield from self._behind([*jobs, *others, *(p for p in pods if JOB_LABEL in p["metadata"].get("labels", {}))])
        yield from self._uncounted(pods)
        yield from self._garbage(jobs, pods)

    def _operator_lives(self) -> bool:
        """Whether it still receives and sends messages."""
        return self._operator is not None

    def _behind(self, watched: list[Manifest]) -> Iterator[str]:
        """Changes that the operator has not observed or not handled."""
        if self._operator is None:
            return
        for name, pool in self._pools.items():
            if self._operator.pool(name) != pool:
                yield f"the operator has an old version of pool {name}"
        for name in self._flavors:
            if not self._operator.has(RESOURCE_FLAVOR, name):
                yield f"the operator has not observed ResourceFlavor {name}"
        idle, cached = self._operator.state()
        present = {(o["kind"], self.namespace, o["metadata"]["name"]): o["metadata"] for o in watched}
        for key, metadata in present.items():
            if cached.get(key) != metadata["resourceVersion"]:
                yield f"the operator has an old version of {key[0]} {key[2]}"
        # Pods without the label are cached if a create found them by name.
        ours = {key for key in cached if key[0] == KIND or key in present or not self._exists(key)}
        for key in ours - set(present):
            yield f"the operator still has {key[0]} {key[2]}, which is deleted"
        if not idle:
            yield "the operator is not idle"

    def _exists(self, key: tuple[str, str, str]) -> bool:
        return self._api.find(*key) is not None

    def _uncounted(self, pods: list[Manifest]) -> Iterator[str]:
        """While the usage of the quota is outdated, creates are rejected that should succeed."""
        if not self._limits:
            return
        quota = self._api.find("ResourceQuota", self.namespace, QUOTA) or {}
        status = quota.get("status", {})
        if status.get("hard") != self._limits:
            yield "the quota is not in force"
        living = sum(1 for pod in pods if not ended(pod["status"]))
        if "pods" in self._limits and status.get("used", {}).get("pods") != str(living):
            yield "the usage of the quota is outdated"
        elif self._operator and living < int(self._limits.get("pods", 0)) and _version(quota) != self._room:
            # Rejected creates are retried after a backoff in real time.
            self._room = _version(quota)
            self._operator.enqueue_all()
            yield "rejected creates may succeed now"

    def _garbage(self, jobs: list[Manifest], pods: list[Manifest]) -> Iterator[str]:
        """Objects that the garbage collector has still to delete."""
        staying = {job["metadata"]["uid"] for job in jobs if "deletionTimestamp" not in job["metadata"]}
        if staying and all(_owner(pod) in staying for pod in pods if _owner(pod)):
            return
        others = [found for found in self.objects() if found["kind"] != "Pod"]
        for manifest in [*pods, *others]:
            metadata = manifest["metadata"]
            if _owner(manifest) and _owner(manifest) not in staying and "deletionTimestamp" not in metadata:
                yield f"{manifest['kind']} {metadata['name']} is garbage"
        uids = {job["metadata"]["uid"] for job in jobs} - staying
        if uids and not any(_owner(manifest) in uids for manifest in [*pods, *others]):
            yield "the garbage collector has still to delete the job"


def _owner(manifest: Manifest) -> str | None:
    """UID of its job."""
    references = manifest["metadata"].get("ownerReferences", ())
    return next((r["uid"] for r in references if r["kind"] == KIND), None)


def _version(manifest: Manifest) -> str:
    return str(manifest["metadata"]["resourceVersion"])
