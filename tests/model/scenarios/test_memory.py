"""Runs every scenario on the simulated cluster: plain, with an unreliable watch, and with the operator killed after
every write."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from allranks.api.crd import RESOURCES
from allranks.api.job import KIND
from allranks.core.facts.optional_kinds import QUEUES
from allranks.kube import merge_patch
from support.scenario_runner import JOB, Manifest, Refused, Scenario, World, load, run
from support.simulator import Cluster, Lag, Node
from support.simulator.admission import admit
from support.simulator.store import ApiError, key_of
from support.simulator.supervisors import FAULTS

HERE = Path(__file__).parent
SCENARIOS = [scenario for path in sorted(HERE.glob("*.yaml")) for scenario in load(path)]


class MemoryWorld(World):
    """A world without delays: all effects have happened when `eventually` compares."""

    def __init__(self, lag: Lag | None = None, seed: int = 0) -> None:
        self.cluster = Cluster(seed, nodes=(), lag=lag, admit=_admit_once)
        self._key = (KIND, self.namespace, JOB)

    def create(self, manifest: Manifest) -> None:
        metadata = {"namespace": self.namespace, **manifest["metadata"]}
        self._ask(lambda: self.cluster.store.create({**manifest, "metadata": metadata}))

    def patch_job(self, change: Manifest) -> None:
        self._ask(lambda: self.cluster.store.patch(self._key, change))

    def delete_job(self, foreground: bool) -> None:
        self._ask(lambda: self.cluster.delete_job(self._key, foreground))

    def apply_pool(self, name: str, spec: Manifest) -> None:
        self._ask(lambda: self.cluster.apply_pool(name, spec))

    def delete_pool(self, name: str) -> None:
        self._ask(lambda: self.cluster.delete_pool(name))

    def kueue(self, installed: bool) -> None:
        (self.cluster.serve if installed else self.cluster.withdraw)(QUEUES)
        self.cluster.settle()

    def apply(self, manifest: Manifest) -> None:
        metadata = {"namespace": self.namespace, **manifest["metadata"]}
        self._ask(lambda: self.cluster.store.apply({**manifest, "metadata": metadata}))

    def change_workload(self, spec: Manifest, status: Manifest) -> None:
        workload = self.workload()
        assert workload
        key = key_of(workload)
        if spec:
            self._ask(lambda: self.cluster.store.patch(key, {"spec": spec}))
        before = self.cluster.store.get(key).get("status", {})
        self._ask(lambda: self.cluster.store.write_status(key, merge_patch.apply(status, before)))

    def delete_workload(self) -> None:
        workload = self.workload()
        assert workload
        self._ask(lambda: self.cluster.store.delete(key_of(workload)))

    def delete_pod(self, pod: str, force: bool) -> None:
        self._ask(lambda: self.cluster.store.delete(self._pod(pod), grace=0 if force else None))

    def quota(self, kind: str, limit: int | None) -> None:
        if limit is None:
            self.cluster.store.quota.pop(kind, None)
        else:
            self.cluster.store.quota[kind] = limit

    def run(self, pod: str, node: str) -> None:
        self._place(pod, node)
        self.cluster.kubelets.start(self._pod(pod))
        self.cluster.settle()

    def end(self, pod: str, code: int, reason: str, message: str, container: str, others: int | None) -> None:
        self.cluster.kubelets.end(self._pod(pod), code, reason, message, container, others)
        self.cluster.settle()

    def wait(self, pod: str, reason: str, message: str, container: str) -> None:
        self._place(pod, "somewhere")
        self.cluster.kubelets.wait(self._pod(pod), reason, message, container)
        self.cluster.settle()

    def initialize(self, pod: str, container: str) -> None:
        self._place(pod, "somewhere")
        self.cluster.kubelets.initialize(self._pod(pod), container)
        self.cluster.settle()

    def unmount(self, pod: str) -> None:
        self._place(pod, "somewhere")
        self.cluster.kubelets.unmount(self._pod(pod))
        self.cluster.settle()

    def cannot_place(self, pod: str, message: str) -> None:
        self.cluster.kubelets.cannot_place(self._pod(pod), message)
        self.cluster.settle()

    def fail_init(self, pod: str, code: int, message: str) -> None:
        self._place(pod, "somewhere")
        self.cluster.kubelets.fail_init(self._pod(pod), code, message)
        self.cluster.settle()

    def evict(self, pod: str) -> None:
        self.cluster.kubelets.evict(self._pod(pod))
        self.cluster.settle()

    def kubelet(self, pod: str, node: str, status: Callable[[Manifest, datetime], Manifest]) -> None:
        self._place(pod, node)
        key = self._pod(pod)
        self.cluster.store.write_status(key, status(self.cluster.store.get(key), self.cluster.now))
        self.cluster.settle()

    def disrupt(self, pod: str, reason: str) -> None:
        self.cluster.kubelets.disrupt(self._pod(pod), reason)
        self.cluster.settle()

    def lose_node(self, node: str) -> None:
        self.cluster.kubelets.lose(node)
        self.cluster.settle()

    def recover_node(self, node: str) -> None:
        self.cluster.kubelets.recover(node)
        self.cluster.settle()

    def remove_node(self, node: str) -> None:
        self.cluster.kubelets.remove(node)
        self.cluster.settle()

    def report(self, pod: str, **said: Any) -> None:
        self.cluster.report(self._pod(pod), **said)

    def report_outage(self, begins: bool) -> None:
        self.cluster.ranks.outage(begins)
        self.cluster.enqueue_jobs()

    def asked_for_stacks(self) -> int:
        return len(self.cluster.ranks.stack_requests)

    def asked_for_checkpoint(self) -> bool:
        return self.cluster.ranks.checkpoint_request > 0

    def fail(self, pod: str, code: int, signal: int | None, message: str) -> None:
        self.cluster.supervisors.fail(self._uid(pod), code, signal, message)
        self.cluster.settle()

    def supervisor(self, pod: str, fault: str) -> None:
        if fault == "slow":
            self.cluster.supervisors.of_pod[self._uid(pod)].stop_seconds = 10
        elif fault in FAULTS:
            self.cluster.supervisors.misbehave(self._uid(pod), fault)
        else:
            raise AssertionError(f"unknown fault {fault}")
        self.cluster.settle()

    def process(self, pod: str) -> str:
        found = self.cluster.store.find(self._pod(pod))
        supervisor = self.cluster.supervisors.of_pod.get(found["metadata"]["uid"]) if found else None
        return supervisor.described if supervisor else ""

    def _uid(self, pod: str) -> str:
        uid: str = self.cluster.store.get(self._pod(pod))["metadata"]["uid"]
        return uid

    def advance(self, seconds: float) -> None:
        self.cluster.advance(seconds)

    def stop_operator(self) -> None:
        self.cluster.stop_operator()

    def start_operator(self) -> None:
        self.cluster.start_operator()

    def job(self) -> Manifest | None:
        return self.cluster.job(self._key)

    def objects(self) -> list[Manifest]:
        return [o for o in self.cluster.store.all() if o["kind"] != KIND]

    def events(self) -> list[tuple[str, str]]:
        return [(event.reason, event.message) for _, event, _ in self.cluster.audit.events]

    def eventually(self, differences: Callable[[], list[str]]) -> list[str]:
        self.cluster.settle()
        return differences()

    def _pod(self, name: str) -> tuple[str, str, str]:
        return ("Pod", self.namespace, name)

    def _place(self, pod: str, node: str) -> None:
        self.cluster.kubelets.nodes.setdefault(node, Node(node))
        if "nodeName" not in self.cluster.store.get(self._pod(pod))["spec"]:
            self.cluster.kubelets.place(self._pod(pod), node)

    def _ask(self, request: Callable[[], Any]) -> None:
        try:
            request()
        except ApiError as answer:
            raise Refused(str(answer)) from answer
        finally:
            self.cluster.settle()


_ADMITTED: set[str] = set()


def _admit_once(before: Manifest | None, after: Manifest) -> None:
    """Caches admission: the same job is created a thousand times, and its CEL rules cost more than its simulation."""
    if after["kind"] not in RESOURCES:
        return
    question = repr((after["kind"], before and before["spec"], after["metadata"]["name"], after["spec"]))
    if question not in _ADMITTED:
        admit(before, after)
        _ADMITTED.add(question)


def _id(scenario: Scenario) -> str:
    return f"{scenario.name} {scenario.case}".strip()


def test_every_scenario_has_a_name_of_its_own() -> None:
    assert len({_id(scenario) for scenario in SCENARIOS}) == len(SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=_id)
def test_scenario(scenario: Scenario) -> None:
    run(scenario, MemoryWorld())


@pytest.mark.parametrize("scenario", SCENARIOS, ids=_id)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 5))])
def test_scenario_with_an_unreliable_watch(scenario: Scenario, seed: int) -> None:
    """Events are repeated, in another order for each seed, and the driver's own creations are not cached."""
    run(scenario, MemoryWorld(Lag(repeated=0.5, own_writes=False), seed))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=_id)
def test_scenario_with_the_operator_killed_after_one_of_four_writes(scenario: Scenario) -> None:
    """Other scenarios begin with another write, so that all stages of a job are covered."""
    _kill_after(scenario, range(1 + zlib.crc32(_id(scenario).encode()) % 4, 200, 4))


@pytest.mark.nightly
@pytest.mark.parametrize("scenario", SCENARIOS, ids=_id)
def test_scenario_with_the_operator_killed_after_every_write(scenario: Scenario) -> None:
    _kill_after(scenario, range(1, 200))


def _kill_after(scenario: Scenario, numbers: Iterable[int]) -> None:
    """Runs the scenario once for each of these numbers of writes, until it ends with fewer writes. All runs have the
    same seed: the order of requests, and so the Nth write, would differ between seeds."""
    for writes in numbers:
        world = MemoryWorld()
        world.cluster.kill_operator_after(writes)
        run(scenario, world, events=False)
        if world.cluster.audit.writes < writes:
            return
