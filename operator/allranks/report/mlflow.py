"""Gives the ranks and attempts of a job one MLflow run: `mlflow.start_run(run_id=job_run_id())`, or for a program that
is not changed, the variable `MLFLOW_RUN_ID: $(ALLRANKS_JOB_UID)`.

The tracking server chooses the IDs of runs, so the variable gets the one of the run when the program starts it.
Steps that an attempt repeats are not logged a second time, and the second value of a parameter becomes a tag.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from allranks.report.state import ATTEMPT, RANK, number_in

TAG = "allranks.job_uid"
RUN_ID, UID = "MLFLOW_RUN_ID", "ALLRANKS_JOB_UID"
SEARCH_SECONDS = 1.0
EXPERIMENT_SECONDS = 60.0


def job_run_id(timeout: float = 120.0) -> str | None:
    """Return the ID of the job's run in the current experiment; None outside a job, so that MLflow begins a new run.

    Rank 0 creates the run in the first attempt, with the UID of the job as a tag. The other ranks wait for it. Raises
    TimeoutError if it does not exist after `timeout` seconds.
    """
    uid = os.environ.get(UID)
    if not uid:
        return None
    import mlflow
    from mlflow.tracking.fluent import _get_experiment_id

    client, experiment = mlflow.MlflowClient(), _get_experiment_id()
    end = time.monotonic() + timeout
    while True:
        if run_id := _search(client, experiment, uid):
            return run_id
        if not number_in(RANK):
            name = os.environ.get("ALLRANKS_JOB")
            return str(client.create_run(experiment, tags={TAG: uid}, run_name=name).info.run_id)
        if time.monotonic() > end:
            raise TimeoutError(f"rank 0 has created no MLflow run with the tag {TAG} within {timeout:g} s")
        time.sleep(SEARCH_SECONDS)


def is_requested() -> bool:
    """Return whether MLFLOW_RUN_ID has the UID of the job, which stands for the run of the job."""
    return bool(os.environ.get(UID)) and os.environ.get(RUN_ID) == os.environ[UID]


def share_run(fluent: Any) -> None:
    """Let the first run that a program starts be the run of the job. `fluent`: `mlflow.tracking.fluent`."""
    run = JobRun()
    run.extend(fluent.MlflowClient)
    fluent.start_run = _preceded_by(run.use, fluent.start_run)
    fluent.set_experiment = _preceded_by(_await_experiment, fluent.set_experiment)


def _preceded_by(before: Callable[..., None], function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        return function(*args, **kwargs)

    return call


class JobRun:
    """The run of the job in a program that is not changed."""

    def __init__(self) -> None:
        self.run_id: str | None = None
        self._begun = time.time() * 1000
        self._last_steps: dict[str, int] = {}
        """Of metrics, in earlier attempts."""

    def use(self, *args: Any, **kwargs: Any) -> None:
        if is_requested():  # MLflow takes the variable once, and deletes it
            self.run_id = os.environ[RUN_ID] = str(job_run_id())

    def extend(self, client: Any) -> None:
        """Replace the methods of a class of clients by which all of MLflow logs metrics and parameters."""
        log_metric, log_param, log_batch = client.log_metric, client.log_param, client.log_batch

        @wraps(log_metric)
        def metric(
            client_: Any,
            run_id: str,
            key: str,
            value: Any,
            timestamp: Any = None,
            step: Any = None,
            *args: Any,
            **rest: Any,
        ) -> Any:
            if self._is_repeated(client_, run_id, key, step):
                return log_batch(client_, run_id, synchronous=rest.get("synchronous"))
            return log_metric(client_, run_id, key, value, timestamp, step, *args, **rest)

        @wraps(log_param)
        def param(client_: Any, run_id: str, key: str, value: Any, *args: Any, **rest: Any) -> Any:
            if tags := self._second_values(client_, run_id, {key: value}):
                return log_batch(client_, run_id, tags=list(tags.values()), **rest) or value
            return log_param(client_, run_id, key, value, *args, **rest)

        @wraps(log_batch)
        def batch(
            client_: Any, run_id: str, metrics: Any = (), params: Any = (), tags: Any = (), *args: Any, **rest: Any
        ) -> Any:
            metrics = [item for item in metrics if not self._is_repeated(client_, run_id, item.key, item.step)]
            second = self._second_values(client_, run_id, {item.key: item.value for item in params})
            params = [item for item in params if item.key not in second]
            return log_batch(client_, run_id, metrics, params, [*tags, *second.values()], *args, **rest)

        client.log_metric, client.log_param, client.log_batch = metric, param, batch

    def _is_repeated(self, client: Any, run_id: str, key: str, step: int | None) -> bool:
        """Return whether an earlier attempt has logged this step or a later one. MLflow logs values without a step
        as step 0."""
        if run_id != self.run_id or not step or not number_in(ATTEMPT):
            return False
        if key not in self._last_steps:
            history = client.get_metric_history(run_id, key)
            self._last_steps[key] = max((value.step for value in history if value.timestamp < self._begun), default=0)
        return step <= self._last_steps[key]

    def _second_values(self, client: Any, run_id: str, values: dict[str, Any]) -> dict[str, Any]:
        """Return tags for parameters that have a value of another attempt or rank, which MLflow refuses, by their
        names."""
        numbers = (("attempt", number_in(ATTEMPT)), ("rank", number_in(RANK)))
        suffix = "".join(f".{name}-{number}" for name, number in numbers if number)
        if run_id != self.run_id or not values or not suffix:
            return {}
        from mlflow.entities import RunTag

        first = client.get_run(run_id).data.params
        return {
            key: RunTag(key + suffix, str(value))
            for key, value in values.items()
            if first.get(key, str(value)) != str(value)
        }


def _await_experiment(name: str | None = None, *args: Any, **kwargs: Any) -> None:
    """Wait until rank 0 has created the experiment: ranks that create it at the same time may create two."""
    name = kwargs.get("experiment_name", name)
    if not name or not number_in(RANK) or not is_requested():
        return
    import mlflow

    end = time.monotonic() + EXPERIMENT_SECONDS
    while mlflow.MlflowClient().get_experiment_by_name(name) is None and time.monotonic() < end:
        time.sleep(SEARCH_SECONDS)


def _search(client: Any, experiment: str, uid: str) -> str | None:
    """Return the oldest run with the tag."""
    runs = client.search_runs([experiment], f"tags.`{TAG}` = '{uid}'", max_results=1, order_by=["start_time ASC"])
    return str(runs[0].info.run_id) if runs else None
