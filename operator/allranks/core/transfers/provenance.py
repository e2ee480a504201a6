"""What an output was made of: written beside the files, so that a model can be traced to its code and data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.core.facts import pod_template
from allranks.core.facts.model import ANY_PLATFORM, Pod
from allranks.version import __version__

_PARAMETERS = "ALLRANKS_PARAM_"
_MOST_IMAGES = 16
"""Of one role. There are several if a tag was given to another image while the job ran."""


def provenance(job: Job, status: Status, ranks: Iterable[Pod] | None = None) -> dict[str, Any]:
    """The job, its code, the revisions of its inputs, and its parameters, as JSON. Values of other variables are not
    part of it, because they may be secret. `ranks`: the pods that exist; None: processes, which have no image."""
    images: dict[str, set[str]] = {role: set() for role in job.spec.roles}
    for pod in ranks or ():
        if pod.owned and pod.image_id and pod.role in images:
            images[pod.role].add(pod.image_id)
    inputs = {each.name: each for each in status.inputs}
    programs = {}
    for role, template in pod_template.role_templates(job, ANY_PLATFORM).items():
        trainer = pod_template.trainer(template)
        variables = trainer.get("env", [])
        programs[role] = {
            "replicas": job.spec.roles[role].replicas,
            "image": trainer.get("image"),
            "imageIDs": "not used" if ranks is None else sorted(images[role])[:_MOST_IMAGES],
            "command": trainer.get("command"),
            "args": trainer.get("args"),
            "parameters": {
                each["name"]: each.get("value") for each in variables if each["name"].startswith(_PARAMETERS)
            },
        }
    return {
        "allranks": __version__,
        "job": job.name,
        "namespace": job.namespace,
        "uid": job.metadata.uid,
        "framework": job.spec.framework,
        "attempt": status.attempt,
        "startTime": status.start_time.isoformat() if status.start_time else None,
        "code": status.code.model_dump(by_alias=True, exclude_none=True, mode="json") if status.code else None,
        "packages": job.spec.packages,
        "programs": programs,
        "inputs": [
            {
                "name": each.name,
                "from": each.source,
                **(
                    inputs[each.name].model_dump(include={"revision", "sha256", "bytes"}, exclude_none=True)
                    if each.name in inputs
                    else {}
                ),
            }
            for each in job.spec.inputs or ()
        ],
        "step": status.progress.step if status.progress else None,
    }
