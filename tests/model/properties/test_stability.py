"""Eventual stability: when the world stops, every job runs, has a verdict, or names what it waits for.

The world has sidecars, native sidecars and init containers, pods that do not start for every reason a kubelet has,
rejections at admission, evictions, and finished pods that somebody deletes. What must hold is read from the pods, not
from the operator.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.core.facts.naming import ATTEMPT_LABEL, INDEX_LABEL, RESTART_LABEL, ROLE_LABEL, TRAINER
from support.simulator import Cluster, Lag, Node, Obstacle, Program, Workload
from support.simulator.store import Change

from .budget import note, share
from .invariants import hold
from .jobs import KEY, Spec, manifest

Manifest = dict[str, Any]
Wave = list[Program]
"""What happens to the pods of one attempt, by the number of the replica."""
Place = tuple[str, int]

FETCH = {"name": "fetch", "image": "example.org/fetch:1"}
PROXY = {"name": "proxy", "image": "example.org/proxy:1", "restartPolicy": "Always"}
LOGS = {"name": "logs", "image": "example.org/logs:1"}
TEMPLATE = {"spec": {"initContainers": [PROXY, FETCH], "containers": [LOGS]}}
INIT = ("allranks-helper", "proxy", "fetch")
CONTAINERS = (TRAINER, "logs", *INIT)
ROLES: list[tuple[str, dict[str, int]]] = [
    ("pytorch", {"worker": 2}),
    ("pytorch", {"master": 1, "worker": 1}),
    ("tensorflow", {"chief": 1, "worker": 1, "ps": 1}),
    ("horovod", {"worker": 2}),
    ("jax", {"worker": 2}),
    ("mpi", {"launcher": 1, "worker": 1}),
    ("ray", {"head": 1, "worker": 1}),
    ("spmd", {"worker": 1, "data": 1}),
]

RUNS = Program()
COMPLETES = Program(seconds=100)
REJECTIONS = ("OutOfcpu", "UnexpectedAdmissionError", "NodeAffinity", "NodeShutdown")
OBSTACLES = [
    *(
        Obstacle("waits", name, reason)
        for name in CONTAINERS
        for reason in ("ImagePullBackOff", "CreateContainerError")
    ),
    Obstacle("waits", TRAINER, "ContainerCreating"),
    Obstacle("unmounted"),
    *(Obstacle("initializes", name) for name in INIT),
]
LASTING = st.sampled_from([RUNS, RUNS, COMPLETES, *(Program(obstacle=obstacle) for obstacle in OBSTACLES)])
"""Nothing more happens to these pods by itself, except that some complete."""
ENDING = [
    ("waits", TRAINER, "ImagePullBackOff"),
    ("waits", "allranks-helper", "ErrImagePull"),
    ("waits", "logs", "ErrImagePull"),
    ("initializes", "fetch", ""),
    ("unmounted", TRAINER, ""),
]
TEMPORARY = st.sampled_from(
    [Program(100, obstacle=Obstacle(*what, seconds)) for seconds in (30, 3000) for what in ENDING]  # type: ignore[arg-type]
)
FAILURES = st.sampled_from(
    [
        Program(seconds=5, code=1),
        Program(seconds=200, code=1, when_peer_is_lost="crashes"),
        Program(seconds=200, code=137),
        Program(seconds=50, ending="evicted"),
        *(Program(obstacle=Obstacle("rejected", reason=reason)) for reason in REJECTIONS),
    ]
)
STAYING = Program(seconds=20, code=1, sidecars_stay=True)
"""The trainer fails, and a sidecar keeps its pod Running."""
STAYS_DONE = Program(seconds=20, sidecars_stay=True)
COLLECTED = Program(seconds=20, collected_seconds=30)
"""The rank completes, and somebody deletes its pod."""
OVER_LIMIT = Program(seconds=20, ending="over limit")
BESIDE_SIDECARS = st.sampled_from([STAYING, COLLECTED, OVER_LIMIT])
WAVES = st.lists(
    st.lists(st.one_of(FAILURES, FAILURES, TEMPORARY, st.just(RUNS), st.just(STAYS_DONE)), min_size=3, max_size=3),
    max_size=3,
)
LAST = st.lists(LASTING, min_size=3, max_size=3)


class World:
    """One job, whose pods of attempt n do what wave n says; those after the last wave do what it says."""

    def __init__(self, job: Spec, waves: list[Wave], seed: int, lag: Lag | None = None, room: int = 9) -> None:
        self.roles = {role: of["replicas"] for role, of in job["roles"].items()}
        self._waves = waves
        self._places = [(role, index) for role, count in self.roles.items() for index in range(count)]
        self.completed: set[tuple[Place, int]] = set()
        """(replica, attempt) of trainers that exited with code 0."""
        self.created = 0
        nodes = [Node("a", {"pods": 1}), Node("b", {"pods": room})]
        self.cluster = Cluster(seed, nodes=nodes, workload=Workload(self._program), lag=lag)
        self.cluster.store.watchers.append(self._changed)
        self.cluster.create_job(manifest(job))

    def _program(self, pod: Manifest) -> Program:
        place, attempt, restart = _of(pod)
        wave = self._waves[min(attempt + restart, len(self._waves) - 1)]
        program = wave[self._places.index(place) % len(wave)]
        spec = pod["spec"]
        names = {container["name"] for container in (*spec["containers"], *spec.get("initContainers", ()))}
        if program.obstacle and program.obstacle.container and program.obstacle.container not in names:
            return RUNS  # workers of an MPI job have no helper
        return program

    def _changed(self, change: Change) -> None:
        if change.key[0] != "Pod":
            return
        place, attempt, _ = _of(change.object)
        self.created += change.kind == "ADDED"
        if _code(change.object) == 0:
            self.completed.add((place, attempt))

    @property
    def status(self) -> Manifest:
        job = self.cluster.job(KEY)
        assert job is not None
        status: Manifest = job["status"]
        return status

    def stop(self) -> None:
        """Time passes until nothing more is due."""
        for seconds in (60, 600, 3600, 3600, 7200):
            self.cluster.advance(seconds)

    def check(self) -> None:
        """The state of each replica, from its pod, agrees with the job's status."""
        status = self.status
        if status["phase"] in ("Succeeded", "Failed"):
            return
        states = {place: self._state(place, status) for place in self._places}
        ignored = status.get("ignored", ())
        states = {place: state for place, state in states.items() if f"{place[0]}-{place[1]}" not in ignored}
        story = f"{states}, but {status['phase']}: {status['conditions']}"
        hold("failed" not in states.values(), f"a rank failed, and nothing is done about it: {story}")
        hold("missing" not in states.values(), f"a pod is missing: {story}")
        hold(set(states.values()) != {"done"}, f"all ranks completed: {story}")
        waiting = [place for place, state in states.items() if state == "waits"]
        [running] = [c for c in status["conditions"] if c["type"] == "Running"]
        if not waiting:
            hold(status["phase"] == "Running", f"all ranks run: {story}")
            hold(running["reason"] == "AllRanksRunning", f"nothing is waited for: {story}")
            return
        names = [f"demo-{role}-{index}-" for role, index in waiting]
        hold(any(name in running["message"] for name in names), f"what the job waits for is not named: {story}")
        hold(running["reason"] != "PodsPending", f"the reason says nothing: {story}")

    def _state(self, place: Place, status: Manifest) -> str:
        restarts = status.get("replicaRestarts", {}).get(f"{place[0]}-{place[1]}", {}).get("count", 0)
        current = (place, status["attempt"], restarts)
        pod = next((pod for pod in self.cluster.pods() if _of(pod) == current), None)
        if pod is None:
            return "done" if (place, status["attempt"]) in self.completed else "missing"
        code = _code(pod)
        if code is not None or pod["status"]["phase"] == "Failed":
            return "done" if code == 0 else "failed"
        return "runs" if pod["status"]["phase"] == "Running" else "waits"


def _of(pod: Manifest) -> tuple[Place, int, int]:
    labels = pod["metadata"]["labels"]
    place = labels[ROLE_LABEL], int(labels[INDEX_LABEL])
    return place, int(labels[ATTEMPT_LABEL]), int(labels.get(RESTART_LABEL, 0))


def _code(pod: Manifest) -> int | None:
    """The trainer's exit code."""
    for container in pod["status"].get("containerStatuses", ()):
        if container["name"] == TRAINER and "terminated" in container["state"]:
            code: int = container["state"]["terminated"]["exitCode"]
            return code
    return None


def _job(framework: str, roles: dict[str, int], **spec: Any) -> Spec:
    return {
        "framework": framework,
        "image": "example.org/train:1",
        "command": ["python", "train.py"],
        "roles": {role: {"replicas": count} for role, count in roles.items()},
        "template": TEMPLATE,
        "progress": {},
        "cleanPodPolicy": "Running",
        **spec,
    }


@st.composite
def jobs(draw: st.DrawFn) -> Spec:
    framework, roles = draw(st.sampled_from(ROLES))
    restart: Spec = {
        "maxRestarts": draw(st.sampled_from([3, 0, 9])),
        "backoffSeconds": draw(st.sampled_from([10, 100])),
    }
    if draw(st.integers(0, 3)) == 3:
        restart["rules"] = [{"exitCodes": [1], "action": "Ignore"}]
    return _job(framework, roles, restart=restart, startupDeadlineSeconds=draw(st.sampled_from([600, 60])))


def stable(job: Spec, waves: list[Wave], seed: int = 0, lag: Lag | None = None, room: int = 9) -> World:
    """Runs the job until the world has stopped, and checks it."""
    world = World(job, waves, seed, lag, room)
    world.stop()
    note(f"{job}\n{waves}\n{world.status}")
    world.check()
    hold(world.status["attempt"] <= len(waves), f"restarted without a cause: {world.status['attempt']} {waves}")
    return world


@share(0.075)
@given(
    job=jobs(),
    waves=WAVES,
    last=LAST,
    seed=st.integers(0, 2**16),
    lag=st.sampled_from([None, Lag(seconds=5.0, lost=0.3), Lag(own_writes=False)]),
    room=st.sampled_from([9, 9, 1]),
)
def test_when_the_world_stops_every_job_runs_has_a_verdict_or_names_what_it_waits_for(
    job: Spec, waves: list[Wave], last: Wave, seed: int, lag: Lag | None, room: int
) -> None:
    stable(job, [*waves, last], seed, lag, room)


PYTORCH = _job("pytorch", {"worker": 2})


@pytest.mark.parametrize("obstacle", OBSTACLES, ids=str)
def test_each_obstacle_is_named_or_fails_the_job(obstacle: Obstacle) -> None:
    status = stable(PYTORCH, [[Program(obstacle=obstacle), RUNS]]).status
    harmless = obstacle.kind == "initializes" or obstacle.reason == "ContainerCreating"
    assert status["phase"] == ("Pending" if harmless else "Failed")
    named = next(c for c in status["conditions"] if c["type"] == ("Running" if harmless else "Failed"))["message"]
    assert (
        "its volumes" if obstacle.kind == "unmounted" else obstacle.container
    ) in named or obstacle.container == TRAINER


@pytest.mark.parametrize("obstacle", OBSTACLES, ids=str)
def test_each_obstacle_of_a_later_attempt_is_named_and_waited_for(obstacle: Obstacle) -> None:
    status = stable(PYTORCH, [[Program(seconds=200, code=1), RUNS], [Program(obstacle=obstacle), RUNS]]).status
    assert (status["phase"], status["attempt"]) == ("Restarting", 1)


# A sidecar that outlives a failed trainer, completed pods that are deleted, and restarts without a backoff.


@share(0.04)
@given(
    job=jobs(),
    waves=st.lists(
        st.lists(st.one_of(FAILURES, BESIDE_SIDECARS, st.just(RUNS)), min_size=3, max_size=3), min_size=1, max_size=3
    ),
    last=LAST,
    seed=st.integers(0, 2**16),
)
def test_it_holds_beside_sidecars_that_stay_own_limits_and_collected_pods(
    job: Spec, waves: list[Wave], last: Wave, seed: int
) -> None:
    stable(job, [*waves, last], seed)


def test_a_trainer_that_fails_beside_a_sidecar_that_stays_is_a_failure() -> None:
    assert stable(PYTORCH, [[STAYING, RUNS], [RUNS]]).status["restarts"]["counted"] == 1


def test_a_completed_pod_that_somebody_deletes_stays_done() -> None:
    status = stable(_job("pytorch", {"worker": 2}, success="All"), [[RUNS, COLLECTED], [RUNS]]).status
    assert (status["phase"], status["attempt"]) == ("Running", 0)


STORMS = [
    Program(seconds=5, code=1),
    Program(seconds=5, ending="evicted"),
    OVER_LIMIT,
    *(Program(obstacle=Obstacle("rejected", reason=reason)) for reason in REJECTIONS),
]
HOURS = 2
MOST = 2 * 3600 // 300 + 16
"""Attempts within two hours: one every five minutes, the longest backoff, and those before it has grown."""


@pytest.mark.parametrize("storm", STORMS, ids=str)
def test_restarts_without_progress_are_bounded_whatever_their_reason(storm: Program) -> None:
    world = World(PYTORCH, [[storm, RUNS]], 0)
    for minute in range(HOURS * 60):
        world.cluster.advance(60)
        hold(world.status["attempt"] <= MOST, f"{world.status['attempt']} attempts in {minute + 1} minutes")
