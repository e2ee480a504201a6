"""`checkpoint.everySeconds`: how long the interval is, and after which step all ranks store a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allranks.api.status import CheckpointSchedule, RestartCounts, Status, Times
from allranks.core import transitions
from allranks.core.accounting.checkpoint_schedule import interval_of
from allranks.core.facts.model import Observed
from allranks.core.facts.rank_reports import CheckpointDue, RankReport, Reports
from allranks.core.reconcile import reconcile
from support.builders import NOW, Life, at, job, rank, started

DAY = 86_400.0


def every(seconds: Any) -> dict[str, Any]:
    return {"checkpoint": {"claim": "checkpoints", "everySeconds": seconds}, "progress": {}}


class Training(Life):
    """A job of two ranks that make a step in a second, and ask after each step."""

    reports: Reports | None = None

    def look(self, now: float) -> Observed:
        return replace(super().look(now), reports=self.reports)

    def hear(self, now: float, *ranks: RankReport) -> CheckpointDue | None:
        """Reconcile with these reports, and return what the answers say then."""
        self.reports = Reports(NOW, tuple(replace(one, received_at=at(now)) for one in ranks))
        self.step(now)
        return self.step(now).checkpoint_due

    @property
    def schedule(self) -> CheckpointSchedule:
        assert self.status.checkpoint_schedule
        return self.status.checkpoint_schedule


def asking(number: int, step: int, due: int | None = 0, **fields: Any) -> RankReport:
    return rank(number, step, **{"due_step": due, "step_seconds": 1.0} | fields)


def training(seconds: Any = 100, workers: int = 2) -> Training:
    of = job(roles={"worker": workers}, **every(seconds))
    life = started(of)
    life.__class__ = Training
    assert isinstance(life, Training)
    return life


def test_the_step_of_a_checkpoint_counts_when_all_ranks_have_received_it() -> None:
    life = training()
    assert life.hear(10, asking(0, 10), asking(1, 10)) == CheckpointDue(100, False), "not for a whole interval yet"
    assert life.hear(15, asking(0, 15, 100), asking(1, 15)) == CheckpointDue(100, False)
    assert life.hear(20, asking(0, 20, 100), asking(1, 20, 100)) == CheckpointDue(100, True)


def test_a_step_that_all_ranks_have_received_never_changes() -> None:
    life = training()
    life.hear(10, asking(0, 10), asking(1, 10))
    life.hear(20, asking(0, 20, 100), asking(1, 20, 100))
    for step, seconds in ((30, 9.0), (99, 0.001), (101, 1.0)):
        ranks = (asking(number, step, 100, step_seconds=seconds) for number in (0, 1))
        assert life.hear(step, *ranks) == CheckpointDue(100, True)


def test_a_rank_that_receives_no_answers_lets_no_other_rank_store_a_checkpoint() -> None:
    """The step moves on before any rank reaches it."""
    life = training()
    for now in range(10, 400, 5):
        answer = life.hear(now, asking(0, now, life.schedule.step if now > 10 else 0), asking(1, now))
        assert answer
        assert not answer.agreed
        assert answer.step > now


def test_after_a_faster_pace_there_is_still_time_for_all_ranks_to_receive_it() -> None:
    life = training()
    answer = life.hear(10, asking(0, 10), asking(1, 10))
    assert answer
    near = answer.step - 10
    answer = life.hear(20, *(asking(number, near, answer.step, step_seconds=0.1) for number in (0, 1)))
    assert answer
    assert not answer.agreed
    assert answer.step >= near + 2 * 15 / 0.1, "twice the time of three reports"


def test_the_next_step_is_chosen_when_the_checkpoint_is_stored_and_no_rank_is_behind() -> None:
    life = training()
    life.hear(10, asking(0, 10), asking(1, 10))
    life.hear(20, asking(0, 20, 100), asking(1, 20, 100))
    stored = {"checkpoint_step": 100, "checkpoint_at": at(105), "save_seconds": 5.0}
    assert life.hear(106, asking(0, 100, 100, **stored), asking(1, 99, 100)) == CheckpointDue(100, True)
    assert life.hear(110, asking(0, 105, 100, **stored), asking(1, 105, 100)) == CheckpointDue(200, False)
    assert life.schedule.save_seconds == 5.0


def test_if_no_checkpoint_is_stored_for_an_interval_the_next_one_is_due() -> None:
    life = training()
    life.hear(10, asking(0, 10), asking(1, 10))
    life.hear(20, asking(0, 20, 100), asking(1, 20, 100))
    assert life.hear(199, asking(0, 199, 100), asking(1, 199, 100)) == CheckpointDue(100, True)
    assert life.hear(200, asking(0, 200, 100), asking(1, 200, 100)) == CheckpointDue(230, False)


def test_a_restarted_operator_waits_for_as_many_ranks_as_had_asked() -> None:
    life = training()
    life.hear(10, asking(0, 10), asking(1, 10))
    assert life.hear(20, asking(0, 20, 100)) == CheckpointDue(100, False), "rank 1 may have received nothing"
    assert life.hear(21, asking(0, 21, 100), asking(1, 21, 100)) == CheckpointDue(100, True)


def test_only_ranks_that_ask_must_receive_it() -> None:
    """`if rank == 0 and checkpoint_due():`"""
    life = training()
    life.hear(10, asking(0, 10), asking(1, 10, None))
    assert life.hear(20, asking(0, 20, 100), asking(1, 20, None)) == CheckpointDue(100, True)


@pytest.mark.parametrize("ranks", [(asking(0, 10, None),), (rank(0, due_step=0),), (asking(0, 10, step_seconds=None),)])
def test_nothing_is_due_before_a_rank_asks_and_the_pace_is_measured(ranks: tuple[RankReport, ...]) -> None:
    life = training(workers=1)
    assert life.hear(10, *ranks) is None
    assert life.status.checkpoint_schedule is None


def test_the_ranks_of_the_next_attempt_learn_nothing_of_the_step_before() -> None:
    schedule = CheckpointSchedule(interval_seconds=100, save_seconds=2.0, step=50, agreed=True, ranks=2)
    status = transitions.begin(job(**every("Auto")), replace(Status(), checkpoint_schedule=schedule), NOW)
    assert status.checkpoint_schedule == CheckpointSchedule(interval_seconds=100, save_seconds=2.0)


def test_without_the_field_there_is_no_schedule() -> None:
    life = training()
    life.hear(10, asking(0, 10), asking(1, 10))
    life.job = job(roles={"worker": 2}, progress={})
    assert life.hear(20, asking(0, 20), asking(1, 20)) is None
    assert life.status.checkpoint_schedule is None
    assert reconcile(life.look(21)).next is None


# --- the interval -----------------------------------------------------------------------------------------------------


def auto(save_seconds: float | None, days: float = 0.0, failures: int = 0) -> tuple[float, float | None]:
    times = Times(category="Finished", since=NOW, productive=days * DAY)
    restarts = RestartCounts(counted=failures // 2, disruptions=failures - failures // 2)
    return interval_of(job(**every("Auto")), Status(times=times, restarts=restarts), save_seconds, NOW)


def test_auto_is_the_interval_of_daly_from_the_duration_of_a_save_and_the_failures() -> None:
    assert auto(None) == (600.0, DAY), "nothing is measured yet"
    assert auto(10.0) == (round((2 * 10 * DAY) ** 0.5 - 10), DAY)
    assert auto(10.0, days=1, failures=7) == (round((2 * 10 * DAY / 4) ** 0.5 - 10), DAY / 4)
    assert auto(10.0, days=9)[0] > auto(10.0)[0] > auto(10.0, days=1, failures=7)[0] > auto(1.0, 1, 7)[0]


def test_auto_has_bounds() -> None:
    assert auto(0.0)[0] == 60.0
    assert auto(3600.0, days=100)[0] == 6 * 3600.0
    assert auto(500.0, days=0.01, failures=99)[0] == round(1.01 * DAY / 100), "a save takes more than half of it"


def test_a_number_is_the_interval() -> None:
    assert interval_of(job(**every(90)), Status(), 10.0, NOW) == (90.0, None)
