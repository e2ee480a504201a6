"""What a reconcile leaves to the queue: the backoff of errors, and objects that are gone."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from allranks.kube.errors import ApiError, Fenced, Unavailable
from allranks.operator.event_recorder import Recorder
from allranks.operator.reconciler import Reconciler, Result, State
from allranks.operator.timing import Clock, Timing
from allranks.operator.workqueue import WorkQueue
from support.builders import table

KEY = ("team", "penguins")


class Scripted(Reconciler[State]):
    kind, logger = "thing", logging.getLogger("allranks.things")

    def __init__(self, *answers: Result | Exception) -> None:
        clock = Clock()
        recorder: Any = Recorder(None)  # type: ignore[arg-type]
        super().__init__(WorkQueue(clock, lambda failures: 60.0), recorder, State, timing=Timing(), clock=clock)
        self.answers, self.present, self.forgotten = list(answers), True, 0

    async def _reconcile(self, key: tuple[str, str], state: State) -> Result:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _exists(self, key: tuple[str, str]) -> bool:
        return self.present

    def _forget(self, key: tuple[str, str]) -> None:
        self.forgotten += 1

    def _invalid_patch(self, *_: Any) -> None:
        raise AssertionError

    async def _patch_status(self, *_: Any) -> bool:
        raise AssertionError


def work(reconciler: Scripted) -> None:
    async def main() -> None:
        while reconciler.answers:
            reconciler.queue.add(KEY)
            await reconciler._work(await reconciler.queue.get())
        await reconciler.close()

    asyncio.run(main())


@table(
    ("a lost Lease", Fenced("not the leader"), 60.0, []),
    ("an API server that is unavailable", Unavailable("no answer"), Timing().unavailable_retry_max, ["WARNING"]),
    ("a rejected request", ApiError("no", 422), 60.0, ["ERROR"]),
    ("a bug", ValueError("negative learning rate"), 60.0, ["ERROR"]),
    ("a conflict", Result.RETRY, 60.0, []),
)
def test_errors_are_retried_with_a_backoff(case: Any, caplog: pytest.LogCaptureFixture) -> None:
    answer, longest, levels = case
    reconciler = Scripted(answer)
    before = reconciler._clock.monotonic()
    work(reconciler)
    retry_at = reconciler._states[KEY].retry_at
    assert retry_at is not None
    assert before + longest / 2 <= retry_at <= reconciler._clock.monotonic() + longest
    assert [record.levelname for record in caplog.records] == levels
    assert [record.thing for record in caplog.records] == ["team/penguins"] * len(levels)  # type: ignore[attr-defined]
    assert reconciler.queue.failures(KEY) == 1


@pytest.mark.parametrize(("result", "failures"), [(Result.WAIT, 1), (Result.DONE, 0)])
def test_a_success_ends_the_backoff_unless_an_earlier_retry_is_due(result: Result, failures: int) -> None:
    reconciler = Scripted(Result.RETRY, result)
    work(reconciler)
    assert reconciler.queue.failures(KEY) == failures


def test_an_object_that_is_gone_is_forgotten() -> None:
    reconciler = Scripted(Result.RETRY)
    reconciler.present = False
    work(reconciler)
    assert (reconciler._states, reconciler.forgotten, reconciler.queue.failures(KEY)) == ({}, 1, 0)


class Slow(Scripted):
    """Reconciles until it is cancelled, and takes some turns of the event loop to end."""

    started = ended = 0

    async def _reconcile(self, key: tuple[str, str], state: State) -> Result:
        self.started += 1
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            self.ended += 1
        raise AssertionError


def test_close_waits_for_the_workers_and_starts_none_for_queued_objects() -> None:
    async def scenario() -> None:
        reconciler = Slow()
        reconciler.queue.add(KEY)
        run = asyncio.create_task(reconciler.run())
        while not reconciler.started:
            await asyncio.sleep(0)
        reconciler.queue.add(("team", "birds"))
        await reconciler.close()
        assert (reconciler.started, reconciler.ended, reconciler._workers) == (1, 1, set())
        await run
        assert reconciler.started == 1

    asyncio.run(scenario())
