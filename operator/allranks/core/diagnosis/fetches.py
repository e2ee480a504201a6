"""What the init containers that fetch inputs in the pods of ranks said (`transfers/rank_fetches.py`).

The rules about failures see such a pod as one that failed for its own reason: FetchFailed does not count, because the
program did not run, and InputFailed ends the job.
"""

from __future__ import annotations

import json
from dataclasses import replace

from allranks.api.job import Job
from allranks.core.facts.model import (
    FETCH_FAILED,
    FETCH_RETRYING,
    FETCHING,
    INIT_FAILED,
    INPUT_FAILED,
    InitContainer,
    Pod,
)
from allranks.core.facts.naming import FETCH_CONTAINER
from allranks.core.facts.restarts import MAX_IDLE_RESTARTS


def judged(job: Job, pod: Pod) -> Pod:
    """The pod with what its fetches said as its reason and message."""
    if not job.spec.inputs or pod.exit or pod.phase == "Running":
        return pod
    if pod.init is None or not pod.init.name.startswith(FETCH_CONTAINER):
        return pod
    name = pod.init.name.removeprefix(FETCH_CONTAINER)
    if pod.last_exit and pod.last_exit.reason == INIT_FAILED:
        # The pod has restartPolicy OnFailure, so its kubelet tries again for ever.
        if result := _result(job, name, pod.init):
            error, final = result
            if pod.container_restarts >= MAX_IDLE_RESTARTS:
                error, final = f"{error}; {pod.container_restarts} tries have failed", True
            if final:
                return replace(pod, phase="Failed", waiting_reason=INPUT_FAILED, waiting_message=error, last_exit=None)
            text = f"{error}; try {pod.container_restarts + 1} follows"
            return replace(pod, waiting_reason=FETCH_RETRYING, waiting_message=text, last_exit=None)
    elif pod.phase == "Failed" and pod.waiting_reason == INIT_FAILED:
        if result := _result(job, name, pod.init):
            error, final = result
            return replace(pod, waiting_reason=INPUT_FAILED if final else FETCH_FAILED, waiting_message=error)
    elif pod.init.exit_code is None and not pod.start_error:
        source = next((each.source for each in job.spec.inputs if each.name == name), "")
        return replace(pod, waiting_reason=FETCHING, waiting_message=f"inputs are fetched: {name} from {source}")
    return pod


def _result(job: Job, name: str, container: InitContainer) -> tuple[str, bool] | None:
    """(error with the path of the field, whether it is final); None if the program said nothing, as one that the kernel
    killed."""
    try:
        result = json.loads((container.message.strip().splitlines() or [""])[-1])
    except ValueError:
        return None
    if not isinstance(result, dict) or not result.get("error"):
        return None
    names = [each.name for each in job.spec.inputs or ()]
    where = f"spec.inputs[{names.index(name)}]: " if name in names else ""
    return f"{where}{result['error']}", result.get("final") is True
