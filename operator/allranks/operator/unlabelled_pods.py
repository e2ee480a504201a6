"""Deletes pods that lost the label by which the watch selects them: they look deleted, and would run unattended."""

from __future__ import annotations

import asyncio
import logging

from allranks.core.facts.model import Event, PodRef
from allranks.core.facts.naming import JOB_LABEL
from allranks.kube.errors import ApiError
from allranks.operator.apply import Executor
from allranks.operator.cache import JobCache, JobKey
from allranks.operator.event_recorder import Recorder
from allranks.operator.timing import Clock

logger = logging.getLogger("allranks.jobs")


class UnlabelledPods:
    """`delete` starts a task; `close` cancels those that are left."""

    def __init__(self, executor: Executor, recorder: Recorder, jobs: JobCache, clock: Clock) -> None:
        self._executor, self._recorder, self._jobs, self._clock = executor, recorder, jobs, clock
        self._tasks: set[asyncio.Task[None]] = set()

    def delete(self, key: JobKey, uid: str, pod: PodRef) -> None:
        """Delete a pod of the job with that UID, unless it is gone already."""
        if (self._jobs.get(key) or {"metadata": {}})["metadata"].get("uid") != uid:
            return
        task = asyncio.create_task(self._delete(key, pod), name=f"delete {pod.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _delete(self, key: JobKey, pod: PodRef) -> None:
        try:
            if not await self._executor.delete_unlabelled(key[0], pod):
                return
        except ApiError as error:
            logger.error("cannot delete pod %s/%s, which has lost its label: %s", key[0], pod.name, error)
            return
        if raw := self._jobs.get(key):
            message = f"someone removed the label {JOB_LABEL} of pod {pod.name}, so it is deleted"
            self._recorder.record(raw, Event("PodUnlabelled", message, warning=True), self._clock.now(), 0)
