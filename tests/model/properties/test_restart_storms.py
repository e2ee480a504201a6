"""Restarts without progress are few, whatever the reasons of the failures: a broken node, volume or program does not
fill the cluster with pods. A job that makes progress restarts at once, and for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.simulator import Cluster, Node, pod_status
from support.simulator.store import Key, controller_of, key_of

from .budget import share
from .jobs import KEY, Spec, manifest

Manifest = dict[str, Any]
Fate = Callable[[Cluster, Key], None]

HOUR = 3600


def _exit(code: int, reason: str = "") -> Fate:
    # Different last lines: the same failure twice would count as a bug of the program.
    return lambda cluster, key: cluster.kubelets.end(key, code, reason, "boom " + "!" * (cluster.store.version % 97))


def _status(status: Callable[..., Manifest], *how: Any) -> Fate:
    return lambda cluster, key: cluster.store.write_status(key, status(cluster.store.get(key), *how))


def _limit(cluster: Cluster, key: Key) -> None:
    cluster.store.write_status(key, pod_status.limit_exceeded(cluster.store.get(key), cluster.now))


RAN: dict[str, Fate] = {
    "exit 1": _exit(1),
    "exit 137": _exit(137),
    "exit 138": _exit(138),
    "reboot": _exit(255, "Unknown"),
    "limit": _limit,
    "evicted": lambda cluster, key: cluster.kubelets.evict(key),
    "preempted": lambda cluster, key: cluster.kubelets.disrupt(key),
    "new disruption": lambda cluster, key: cluster.kubelets.disrupt(key, "SomethingNew"),
    "node lost": lambda cluster, key: cluster.kubelets.disrupt(key, "DeletionByTaintManager"),
    "deleted": lambda cluster, key: cluster.store.delete(key, grace=0),
}
"""Fates of pods that ran for some seconds."""
REJECTED: dict[str, Fate] = {
    reason: _status(pod_status.rejected, reason, "")
    for reason in (
        "OutOfcpu",
        "OutOfnvidia.com/gpu",
        "UnexpectedAdmissionError",
        "NodeAffinity",
        "NodeShutdown",
        "Evicted",
    )
}
FATES = {**RAN, **REJECTED, "init": lambda cluster, key: cluster.kubelets.fail_init(key, 1)}

JOBS: dict[str, Spec] = {
    "group": {"framework": "pytorch", "roles": {"master": {"replicas": 1}, "worker": {"replicas": 1}}},
    "alone": {"framework": "horovod", "roles": {"worker": {"replicas": 2}}, "restart": {"scope": "Pod"}},
    "both": {"framework": "tensorflow", "roles": {"chief": {"replicas": 1}, "ps": {"replicas": 1}}},
    "elastic": {
        "framework": "horovod",
        "roles": {"worker": {"replicas": 2}},
        "elastic": {"minReplicas": 1, "maxReplicas": 2},
    },
}


def _job(kind: str, **restart: Any) -> Manifest:
    spec = {"image": "example.org/train:1", "command": ["python", "train.py"], **JOBS[kind]}
    return manifest({**spec, "restart": {"maxRestarts": 9_999, **spec.get("restart", {}), **restart}})


def _live(cluster: Cluster, seconds: int, fate: Callable[[Manifest], Fate], ran: int = 5) -> None:
    """All pods start at once, and meet their fate after `ran` seconds."""
    for _ in range(seconds // ran):
        for pod in cluster.pods():
            if "deletionTimestamp" not in pod["metadata"] and cluster.store.find(key_of(pod)):
                _next(cluster, pod, fate)
        cluster.advance(ran)


def _next(cluster: Cluster, pod: Manifest, fate: Callable[[Manifest], Fate]) -> None:
    key, phase = key_of(pod), pod["status"]["phase"]
    meets = fate(pod)
    if phase == "Running":
        meets(cluster, key)
    elif phase == "Pending":
        node = cluster.kubelets.nodes.setdefault("node", Node("node"))
        cluster.kubelets.place(key, node.name)
        if meets in RAN.values():
            cluster.kubelets.start(key)
        else:
            meets(cluster, key)
    cluster.settle()


def _storm(kind: str, fates: list[str], seed: int, **restart: Any) -> tuple[Manifest, Counter[str]]:
    """The job's status after an hour, and the number of pods of each replica."""
    cluster = Cluster(seed, nodes=())
    cluster.create_job(_job(kind, **restart))
    cluster.settle()
    created: Counter[str] = Counter()
    uid = (cluster.job(KEY) or {})["metadata"]["uid"]
    cluster.store.watchers.append(
        lambda change: created.update(
            ["-".join(change.key[2].split("-")[1:3])]
            if change.kind == "ADDED" and change.key[0] == "Pod" and controller_of(change.object) == uid
            else []
        )
    )
    _live(cluster, HOUR, lambda pod: FATES[fates[sum(map(ord, pod["metadata"]["name"])) % len(fates)]])
    return (cluster.job(KEY) or {})["status"], created


@share(0.005, least=10)
@given(
    kind=st.sampled_from(sorted(JOBS)),
    fates=st.lists(st.sampled_from(sorted(FATES)), min_size=1, max_size=4),
    seed=st.integers(0, 2**16),
)
def test_an_hour_without_progress_has_few_restarts_whatever_the_reasons(kind: str, fates: list[str], seed: int) -> None:
    _check(kind, fates, seed)


@pytest.mark.parametrize("fate", sorted(FATES))
@pytest.mark.parametrize("kind", ["group", pytest.param("alone", marks=pytest.mark.nightly)])
def test_an_hour_without_progress_has_few_restarts_for_each_reason(kind: str, fate: str) -> None:
    _check(kind, [fate], 0)


def _check(kind: str, fates: list[str], seed: int) -> None:
    status, created = _storm(kind, fates, seed)
    assert status["attempt"] <= 20, status["restarts"]
    # A new attempt begins with a new backoff of the replicas that restart individually within it.
    assert max(created.values(), default=0) <= (20 if kind in ("group", "alone") else 120), created


@pytest.mark.parametrize("fate", ["evicted", "deleted", "OutOfcpu"])
def test_without_a_backoff_of_counted_restarts_the_others_still_have_one(fate: str) -> None:
    status, created = _storm("group", [fate], 0, backoffSeconds=0, maxRestarts=0)
    assert status["phase"] == "Restarting"
    assert max(created.values()) <= 25


def test_a_day_of_restarts_without_progress_fails_the_job() -> None:
    cluster = Cluster(nodes=())
    cluster.create_job(_job("group", maxRestarts=0))
    cluster.settle()
    begun = cluster.now
    while (status := (cluster.job(KEY) or {})["status"])["phase"] != "Failed":
        _live(cluster, 5, lambda pod: RAN["evicted"])
        _live(cluster, 5, lambda pod: RAN["evicted"])
        cluster.advance(300)
        assert status["attempt"] <= 300
    failed = next(c for c in status["conditions"] if c["type"] == "Failed")
    assert (failed["reason"], status["restarts"]["disruptions"]) == ("NoProgress", 300)
    assert "300 restarts in a row without progress" in failed["message"]
    assert (cluster.now - begun).total_seconds() > 24 * HOUR


@pytest.mark.nightly
def test_a_job_on_spot_instances_that_steps_between_disruptions_is_restarted_at_once_and_for_ever() -> None:
    cluster = Cluster(nodes=())
    cluster.create_job(_job("group", maxRestarts=0))
    cluster.settle()
    for attempt in range(310):
        _live(cluster, 5, lambda pod: RAN["preempted"])
        cluster.report(("Pod", "default", f"demo-master-0-{attempt}"), step=attempt + 1)
        _live(cluster, 5, lambda pod: RAN["preempted"])
        status = (cluster.job(KEY) or {})["status"]
        assert (status["attempt"], status["restarts"].get("withoutProgress")) == (attempt + 1, None)


def test_a_job_that_repeats_its_first_step_in_each_attempt_makes_no_progress() -> None:
    cluster = Cluster(nodes=())
    cluster.create_job(_job("group", maxRestarts=0))
    cluster.settle()
    for _ in range(HOUR // 5):
        for pod in cluster.pods():
            if pod["status"]["phase"] == "Running" and "-master-" in pod["metadata"]["name"]:
                cluster.report(key_of(pod), step=1)
        _live(cluster, 5, lambda pod: RAN["evicted"])
    assert (cluster.job(KEY) or {})["status"]["attempt"] <= 20
