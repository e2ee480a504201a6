"""Gives the ranks and attempts of a job one MLflow run: `mlflow.start_run(run_id=job_run_id())`, or for a program that
is not changed, the variable `MLFLOW_RUN_ID: $(ALLRANKS_JOB_UID)`.

The tracking server chooses the IDs of runs, so the variable gets the one of the run when the program starts it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from allranks.report.state import RANK, number_in

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
    fluent.start_run = _preceded_by(_use_job_run, fluent.start_run)
    fluent.set_experiment = _preceded_by(_await_experiment, fluent.set_experiment)


def _preceded_by(before: Callable[..., None], function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        return function(*args, **kwargs)

    return call


def _use_job_run(*args: Any, **kwargs: Any) -> None:
    if is_requested() and (run_id := job_run_id()):  # MLflow takes the variable once, and deletes it
        os.environ[RUN_ID] = run_id


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
