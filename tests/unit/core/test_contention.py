"""Jobs that hold nodes for a part of their pods: which of them gives them up, and when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from allranks.api.status import PastAttempt, ProgressStatus, Status
from allranks.core.diagnosis import contention
from allranks.core.diagnosis.contention import gives_up_at
from allranks.core.facts.contenders import Contender, Contention
from allranks.core.facts.model import Plan, Pod, RejectedCreate
from allranks.core.reconcile import reconcile
from allranks.core.snapshot import Snapshot
from support.builders import Life, at, job, pending, pod, table

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
    ("jobs of other pools are no rivals", replace(OWN, pool="a"), [rival(pool="b")], None, None),
    ("a job without a pool may need the same nodes", replace(OWN, pool="a"), [rival()], None, 310),
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


def test_a_rival_of_another_namespace_is_named_with_it() -> None:
    stronger = replace(rival(priority=3), job=("other", "big"))
    [event] = plan_of(half_placed(), 310, [stronger]).events
    assert "job other/big, which has a higher priority" in event.message


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
    assert contender_of(half_placed()) == Contender(("team", "job"), 0, at(0), at(10), 300)
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
