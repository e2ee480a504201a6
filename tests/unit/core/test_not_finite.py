"""Metrics that become NaN or infinite, with each value of `progress.onNotFinite`."""

from __future__ import annotations

from dataclasses import replace

from allranks.core.facts.rank_reports import Reports
from allranks.core.reconcile import reconcile
from support.builders import NOW, at, job, rank, started, table

LOSS, NORM = {"loss": 20}, {"grad_norm": 20}
SENTENCE = "loss is not finite since step 20"


@table(
    ("by default, an Event", {}, LOSS, "Running", ["NotFinite"]),
    ("Warn", {"onNotFinite": "Warn"}, LOSS, "Running", ["NotFinite"]),
    ("Ignore", {"onNotFinite": "Ignore"}, LOSS, "Running", []),
    ("Fail", {"onNotFinite": "Fail"}, LOSS, "Failed", ["NotFinite"]),
    ("Fail, another metric", {"onNotFinite": "Fail"}, NORM, "Running", ["NotFinite"]),
)
def test_what_follows_when_a_metric_is_not_finite(case):
    fields, not_finite, phase, events = case
    life = started(job(roles={"worker": 1}, progress=fields))
    life.run(1)
    before = Reports(NOW, (rank(0, 19, metrics={"loss": 0.5, "grad_norm": 3.0}, received_at=at(90)),))
    plan = reconcile(replace(life.look(100), reports=before))
    assert plan.next is not None
    life.status = plan.next
    metrics = {"loss": 0.5, "grad_norm": 3.0}
    present = {name: value for name, value in metrics.items() if name not in not_finite}
    after = Reports(NOW, (rank(0, 21, metrics=present, not_finite=not_finite, received_at=at(105)),))
    plan = reconcile(replace(life.look(110), reports=after))
    assert plan.next is not None
    assert (plan.next.phase, [event.reason for event in plan.events]) == (phase, events)
    if phase == "Failed":
        condition, cause = plan.next.condition("Failed"), plan.next.last_failure
        assert condition is not None
        assert (condition.reason, condition.message) == ("NotFinite", f"{SENTENCE} (progress.onNotFinite: Fail)")
        assert cause is not None
        assert (cause.role, cause.message, cause.verdict) == ("", SENTENCE, "Unknown")


def test_a_loss_that_was_never_finite_fails_the_job_too():
    life = started(job(roles={"worker": 1}, progress={"onNotFinite": "Fail"}))
    life.run(1)
    reports = Reports(NOW, (rank(0, 2, not_finite={"accuracy": 1, "loss": 1}, received_at=at(90)),))
    plan = reconcile(replace(life.look(100), reports=reports))
    assert plan.next is not None
    assert plan.next.last_failure is not None
    assert plan.next.last_failure.message == "loss is not finite since step 1"
