"""Jobs that hold nodes for a part of their pods: which of them gives them up, and when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from allranks.api.status import PastAttempt, ProgressStatus, Status
from allranks.core.diagnosis import contention
from allranks.core.diagnosis.contention import gives_up_at
from allranks.core.facts.contenders import Contender, Contention, NodeDemand
from allranks.core.facts.model import Plan, Pod, RejectedCreate
from allranks.core.facts.policy import Policy
from allranks.core.reconcile import reconcile
from allranks.core.snapshot import Snapshot
from support.builders import CLUSTER, Life, at, failure, job, pending, pod, table

NO_ROOM = "Unschedulable"


def rival(name: str = "rival", created: float = -100, priority: int = 0, placed: float = 0, **fields: Any) -> Contender:
    return Contender(("team", name), priority, at(created), at(placed), fields.pop("timeout", 300), **fields)


def half_placed(*pods: Pod, **spec: Any) -> Life:
    """A job whose worker 0 has had a node since 10 s, and worker 1 none."""
    life = Life(job(creation_timestamp=at(0), **spec))
    life.settle(0)
    life.put(*(pods or (pod(placed_at=at(10)), pending(index=1, waiting_reason=NO_ROOM))))
    life.settle(20)
    return life


def plan_of(life: Life, now: float, others: Iterable[Contender] = (), given_up: float | None = None) -> Plan:
    state = Contention(tuple(others), None if given_up is None else at(given_up))
    return reconcile(replace(life.look(now), contention=state))


def contender_of(life: Life, **changes: Any) -> Contender | None:
    look = replace(life.look(30), **changes)
    return contention.contender(look, Snapshot(look).pods)


OWN = rival("own", created=0, placed=10)
GPUS = NodeDemand(frozenset({"nvidia.com/gpu"}))
A, B = frozenset({"a"}), frozenset({"b"})
SPOT, LARGE = (frozenset({NodeDemand(labels=(("pool", frozenset({name})),))}) for name in ("spot", "large"))


def foreign(**fields: Any) -> Contender:
    return replace(rival(**fields), job=("other", "rival"))


def in_vain(*times: float) -> Contender:
    """A job that has given its pods up at these times."""
    return replace(OWN, gave_up_at=tuple(map(at, times)))


@table(
    ("a job without a rival keeps its pods", OWN, [], None, None),
    ("the younger one gives its pods up, counted from its last placement", OWN, [rival()], None, 310),
    ("the older one keeps them", OWN, [rival(created=50)], None, None),
    ("a higher priority wins over age", replace(OWN, priority=5), [rival()], None, None),
    ("a lower priority loses, however old", replace(OWN, created_at=at(-900), priority=-1), [rival()], None, 310),
    ("of jobs of the same age the first by name keeps its pods", OWN, [rival("a", created=0)], None, 310),
    ("the weakest of three goes first", OWN, [rival(), rival("weak", created=80)], None, None),
    ("one whose turn is later goes before a stronger one", OWN, [rival(), rival("weak", 80, placed=900)], None, None),
    ("no job waits for a weaker one with a longer timeout", OWN, [rival(), rival("w", 80, timeout=900)], None, 310),
    (
        "jobs of other pools are no rivals",
        replace(OWN, pools=A),
        [rival(pools=B)],
        None,
        None,
    ),
    ("a job without a pool may need the same nodes", replace(OWN, pools=A), [rival()], None, 310),
    ("a job of another namespace is no rival", OWN, [foreign()], None, None),
    ("nor is it if only one has a pool", OWN, [foreign(pools=A)], None, None),
    ("it is if they share a pool", replace(OWN, pools=A), [foreign(pools=A)], None, 310),
    (
        "a job that waits for a quota is none in a pool",
        replace(OWN, pools=A),
        [foreign(pools=A, by_quota=True)],
        0,
        None,
    ),
    ("a job that waits for a quota of the namespace is one", OWN, [rival(by_quota=True)], None, 310),
    ("a job that no other job can help is none", OWN, [rival(placeable=False)], None, None),
    ("a job that waits for another resource is none", OWN, [rival(lacking=frozenset({GPUS}))], None, None),
    ("a job that waits for other nodes is none", replace(OWN, held=SPOT), [rival(lacking=LARGE)], None, None),
    ("pods without a selector may be on any node", replace(OWN, held=SPOT), [rival()], None, 310),
    ("a job that got no node after two restarts is none", in_vain(100, 200), [rival(placed=50)], None, None),
    ("one restart for it may not have been enough", in_vain(100), [rival(placed=50)], None, 310),
    ("a job that got a node after them is one", in_vain(100, 200), [rival(placed=150)], None, 310),
    (
        "a new placement of the same pods is no progress",
        in_vain(1, 2),
        [rival(placed=9, progress_at=at(0))],
        None,
        None,
    ),
    (
        "no job waits for a weaker job that keeps its pods",
        OWN,
        [rival(), rival("w", 80, held=frozenset({GPUS}))],
        0,
        310,
    ),
    ("room that was just given up is waited for", OWN, [rival()], 200, 500),
    ("with 0 it never gives up", replace(OWN, timeout_seconds=0), [rival()], None, None),
)
def test_who_gives_up_and_when(case: tuple[Contender, list[Contender], float | None, float | None]) -> None:
    own, others, given_up, expected = case
    state = Contention(tuple(others), None if given_up is None else at(given_up))
    assert gives_up_at(own, state) == (None if expected is None else at(expected))


def test_the_pods_are_given_up_by_a_new_attempt_after_a_backoff() -> None:
    life = half_placed()
    assert plan_of(life, 309, [rival()]).wake_at == at(310)
    plan = plan_of(life, 310, [rival()])
    assert plan.write_ahead
    assert plan.next
    assert (plan.next.phase, plan.next.attempt, plan.next.restart_time) == ("Restarting", 1, at(370))
    assert [(past.reason, past.counted) for past in plan.next.history] == [("GangTimeout", False)]
    assert (plan.next.restarts.counted, plan.next.restarts.disruptions) == (0, 0)
    [event] = plan.events
    assert "only 1 of 2 pods had nodes for 300 s, and job rival, which is older, waits" in event.message


def test_the_message_names_no_job_of_another_namespace() -> None:
    stronger = replace(rival(priority=3), job=("other", "big"), pools=frozenset({"a100"}))
    platform = replace(CLUSTER, policy=Policy(default_pool="a100"))
    look = replace(half_placed().look(310), platform=platform, contention=Contention((stronger,)))
    [event] = reconcile(look).events
    assert "a job of another namespace with the same TrainingPool, which has a higher priority, waits" in event.message
    assert "big" not in event.message


def test_each_time_in_a_row_doubles_the_backoff_up_to_half_an_hour() -> None:
    def after(*reasons: str) -> float:
        history = [PastAttempt(attempt=n, end_time=at(n), reason=reason) for n, reason in enumerate(reasons)]
        return contention.backoff(Status(history=history)).total_seconds()

    assert [after(), after("GangTimeout"), after("GangTimeout", "GangTimeout")] == [60, 120, 240]
    assert after("GangTimeout", "Error") == 60
    assert after(*["GangTimeout"] * 9) == 1800


def test_the_time_of_an_attempt_that_gave_up_is_not_lost() -> None:
    life = half_placed()
    life.status = plan_of(life, 310, [rival()]).next or life.status
    life.settle(311)
    life.settle(400)
    assert life.status.times
    assert life.status.times.lost == 0
    assert life.status.times.category == "Queued"


def test_when_a_job_is_placed_in_part() -> None:
    assert contender_of(half_placed()) == Contender(("team", "job"), 0, at(0), at(10), 300, progress_at=at(10))
    with_priority = [replace(each, priority=7) for each in (pod(), pending(index=1, waiting_reason=NO_ROOM))]
    found = contender_of(half_placed(*with_priority))
    assert found
    assert found.priority == 7
    assert contender_of(half_placed(pod(), pending(index=1))) is None, "the scheduler has not tried yet"
    nothing = [pending(index=index, waiting_reason=NO_ROOM) for index in (0, 1)]
    assert contender_of(half_placed(*nothing)) is None, "it holds no node"
    assert contender_of(half_placed(pod(), pod(index=1))) is None, "all have nodes"


def test_a_quota_that_admits_a_part_of_the_pods_is_contention_as_well() -> None:
    life = half_placed(pod(placed_at=at(10)), pod(index=1))
    del life.pods["job-worker-1-0"]
    refused = (RejectedCreate("Pod", "job-worker-1-0", "Forbidden", "exceeded quota"),)
    life.status = replace(life.status, running_time=None, launched=False, phase="Pending")
    assert contender_of(life, refused=refused)


def test_a_job_that_ran_or_made_progress_is_no_contender() -> None:
    life = half_placed()
    trained = replace(life.status, progress=ProgressStatus(first_step_time=at(15), reporting=1))
    assert contender_of(life, persisted=trained) is None
    assert contender_of(life, persisted=replace(life.status, running_time=at(15))) is None


def test_workers_of_parameter_servers_may_come_later_but_not_the_servers() -> None:
    def parts(waits: str) -> Life:
        roles = {"chief": 1, "worker": 1, "ps": 1}
        pods = [(pending if role == waits else pod)(role) for role in roles]
        pods = [replace(each, waiting_reason=NO_ROOM) if each.role == waits else each for each in pods]
        return half_placed(*pods, framework="tensorflow", roles=roles)

    assert contender_of(parts("worker")) is None
    assert contender_of(parts("ps"))


def test_an_elastic_job_that_can_run_with_fewer_workers_is_no_contender() -> None:
    def elastic(least: int) -> Life:
        pods = [pod(), pod(index=1), pending(index=2, waiting_reason=NO_ROOM)]
        bounds = {"minReplicas": least, "maxReplicas": 3, "waitSeconds": 900}
        return half_placed(*pods, roles={"worker": 3}, elastic=bounds)

    assert contender_of(elastic(2)) is None
    assert contender_of(elastic(3))


@table(
    ("no node is large enough", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. {}2 {useless}.", False),
    ("no node has the label", "0/2 nodes are available: 2 node(s) didn't match the selector. {}2 {useless}.", False),
    ("one node is full", "0/3 nodes are available: 3 Insufficient cpu. {}1 {useless}, 2 No preemption victims.", True),
    ("the scheduler says nothing about it", "0/2 nodes are available: 2 Insufficient cpu.", True),
    ("the pod preempts no other", "0/2 nodes are available: 2 Insufficient cpu. preemption: not eligible.", True),
)
def test_a_pod_that_fits_on_no_node_makes_its_job_no_rival(case: tuple[str, bool]) -> None:
    template, expected = case
    message = template.replace("{}", "preemption: 0/3 nodes are available: ").replace(
        "{useless}", "Preemption is not helpful for scheduling"
    )
    own = contender_of(half_placed(pod(), pending(index=1, waiting_reason=NO_ROOM, waiting_message=message)))
    assert own
    assert own.placeable is expected


@table(
    ("a pod that never fits into the quota", "exceeded quota: gpus, requested: {}=9, used: {}=0, limited: {}=8", False),
    (
        "one that fits later",
        "exceeded quota: gpus, requested: pods=1,{}=8, used: pods=1,{}=4, limited: pods=2,{}=8",
        True,
    ),
    ("a policy that refuses the pod", 'admission webhook "policy" denied the request: no', False),
)
def test_a_refused_pod_makes_its_job_a_rival_only_if_the_quota_may_have_room_later(case: tuple[str, bool]) -> None:
    message, expected = case
    life = half_placed(pod(placed_at=at(10)), pod(index=1))
    del life.pods["job-worker-1-0"]
    refusal = RejectedCreate("Pod", "job-worker-1-0", "Forbidden", message.replace("{}", "requests.nvidia.com/gpu"))
    waits = replace(life.status, running_time=None, launched=False, phase="Pending")
    own = contender_of(life, refused=(refusal,), persisted=waits)
    assert own
    assert (own.by_quota, own.placeable) == (True, expected)


def test_what_pods_demand_of_nodes_is_read_from_their_template() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    spec = {"nodeSelector": {"pool": "spot"}, "affinity": affinity}
    own = contender_of(half_placed(template={"spec": spec}, resources={"limits": {"nvidia.com/gpu": 1, "cpu": 2}}))
    assert own
    labels = (("pool", frozenset({"spot"})), ("zone", frozenset({"a", "b"})))
    assert own.held == own.lacking == {NodeDemand(frozenset({"nvidia.com/gpu"}), labels)}
    assert not NodeDemand(labels=labels).meets(NodeDemand(labels=(("zone", frozenset({"c"})),)))
    assert NodeDemand(labels=labels).meets(NodeDemand(labels=(("zone", frozenset({"b", "c"})),)))


def test_restarts_by_failures_are_no_progress_of_a_job_that_never_had_all_its_nodes() -> None:
    def progress(*history: PastAttempt) -> float:
        life = half_placed()
        life.status = replace(life.status, history=list(history))
        own = contender_of(life)
        assert own
        assert own.progress_at
        return (own.progress_at - at(0)).total_seconds()

    failed = PastAttempt(attempt=1, end_time=at(8), reason="Error", failure=failure())
    ran = PastAttempt(attempt=0, end_time=at(5), reason="Error", failure=failure(), running_time=at(3))
    gave_up = PastAttempt(attempt=0, end_time=at(4), reason="GangTimeout")
    assert [progress(), progress(failed, failed), progress(ran, failed), progress(gave_up, failed)] == [10, 0, 5, 4]
    assert [progress(failed, ran), progress(failed, gave_up)] == [10, 10]
