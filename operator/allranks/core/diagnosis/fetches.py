"""What the init containers that fetch inputs in the pods of ranks said (`manifests/rank_fetches.py`).

The rules about failures see such a pod as one that failed for its own reason: FetchFailed does not count, because the
program did not run, and InputFailed ends the job.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from allranks.api.job import Job
from allranks.core.facts.model import FETCH_FAILED, FETCH_RETRYING, FETCHING, INIT_FAILED, INPUT_FAILED, Pod
from allranks.core.facts.naming import FETCH_CONTAINER
from allranks.core.facts.restarts import MAX_IDLE_RESTARTS

_SAID = re.compile(
    rf"init container {FETCH_CONTAINER}(?P<name>\S+) ended with exit code [0-9]+: (?P<said>.*)", re.DOTALL
)
_RUNS = f"init container {FETCH_CONTAINER}"


def judged(job: Job, pod: Pod) -> Pod:
    """The pod with what its fetches said as its reason and message."""
    if not job.spec.inputs or pod.exit or pod.phase == "Running":
        return pod
    if pod.last_exit and pod.last_exit.reason == INIT_FAILED:
        # The pod has restartPolicy OnFailure, so its kubelet tries again for ever.
        if said := _said(job, pod.last_exit.message):
            error, final = said
            if pod.container_restarts >= MAX_IDLE_RESTARTS:
                error, final = f"{error}; {pod.container_restarts} tries have failed", True
            if final:
                return replace(pod, phase="Failed", waiting_reason=INPUT_FAILED, waiting_message=error, last_exit=None)
            text = f"{error}; try {pod.container_restarts + 1} follows"
            return replace(pod, waiting_reason=FETCH_RETRYING, waiting_message=text, last_exit=None)
    elif pod.phase == "Failed" and pod.waiting_reason == INIT_FAILED:
        if said := _said(job, pod.waiting_message):
            error, final = said
            return replace(pod, waiting_reason=INPUT_FAILED if final else FETCH_FAILED, waiting_message=error)
    elif pod.waiting_for.startswith(_RUNS) and not pod.start_error:
        name = pod.waiting_for.removeprefix(_RUNS)
        source = next((each.source for each in job.spec.inputs if each.name == name), "")
        return replace(pod, waiting_reason=FETCHING, waiting_message=f"inputs are fetched: {name} from {source}")
    return pod


def _said(job: Job, message: str) -> tuple[str, bool] | None:
    """(error with the path of the field, whether it is final); None if the program said nothing, as one that the kernel
    killed."""
    found = _SAID.match(message)
    if found is None:
        return None
    try:
        said = json.loads((found["said"].strip().splitlines() or [""])[-1])
    except ValueError:
        return None
    if not isinstance(said, dict) or not said.get("error"):
        return None
    names = [each.name for each in job.spec.inputs or ()]
    where = f"spec.inputs[{names.index(found['name'])}]: " if found["name"] in names else ""
    return f"{where}{said['error']}", said.get("final") is True
