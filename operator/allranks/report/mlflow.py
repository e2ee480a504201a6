"""Gives the ranks and attempts of a job one MLflow run: `mlflow.start_run(run_id=job_run_id())`.

MLFLOW_RUN_ID cannot do that, because the tracking server chooses the IDs of runs.
"""

from __future__ import annotations

import os
import time
from typing import Any

from allranks.report.state import RANK, number_in

TAG = "allranks.job_uid"
SEARCH_SECONDS = 1.0


def job_run_id(timeout: float = 120.0) -> str | None:
    """Return the ID of the job's run in the current experiment; None outside a job, so that MLflow begins a new run.

    Rank 0 creates the run in the first attempt, with the UID of the job as a tag. The other ranks wait for it. Raises
    TimeoutError if it does not exist after `timeout` seconds.
    """
    uid = os.environ.get("ALLRANKS_JOB_UID")
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


def _search(client: Any, experiment: str, uid: str) -> str | None:
    """Return the oldest run with the tag."""
    runs = client.search_runs([experiment], f"tags.`{TAG}` = '{uid}'", max_results=1, order_by=["start_time ASC"])
    return str(runs[0].info.run_id) if runs else None
