"""The OpenAPI document of the REST interface: jobs as the types of the CRD describe them, errors as problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import models_json_schema

from allranks.api import sweep, sweep_status
from allranks.api.job import KIND, Spec
from allranks.api.status import Status
from allranks.local.run_directories import INTERRUPTED
from allranks.ui.problems import MEDIA_TYPE
from allranks.views.json_form import MODEL_MARK, described_as

Schema = dict[str, Any]
_REFS = "#/components/schemas/{model}"


Job = Annotated[dict[str, Any], WithJsonSchema(described_as(KIND))]
"""A job as the API server returned it. Only the document describes its fields: answers are not checked again."""


class ObjectMeta(BaseModel):
    """Metadata of an object; the API server has more fields."""

    model_config = ConfigDict(extra="allow")

    name: str
    namespace: str | None = None
    uid: str | None = None
    resourceVersion: str | None = None
    generation: int | None = None
    creationTimestamp: str | None = None
    deletionTimestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class DistributedTraining(BaseModel):
    """A job."""

    apiVersion: Literal["allranks.dev/v1alpha1"]
    kind: Literal["DistributedTraining"]
    metadata: ObjectMeta
    spec: Spec | None = None
    status: Status | None = Field(None, description="Written by the operator.")


GpuCost = Annotated[dict[str, Any], WithJsonSchema(described_as("Cost"))]
"""The type of the report on a job, which the document has already."""


class TrainingSweep(BaseModel):
    """A sweep."""

    apiVersion: Literal["allranks.dev/v1alpha1"]
    kind: Literal["TrainingSweep"]
    metadata: ObjectMeta
    spec: sweep.SweepSpec | None = None
    status: sweep_status.SweepStatus | None = Field(None, description="Written by the operator.")
    importances: dict[str, float] | None = Field(
        None, description="Share of the differences between trials that each parameter explains. Not in lists."
    )
    cost: GpuCost | None = Field(
        None, description="GPU-hours and money of all trials; null without GPUs. Not in lists."
    )
    trialCosts: dict[str, GpuCost] | None = Field(
        None, description="The same of each trial with GPUs, by its number. Not in lists."
    )


def document(app: FastAPI) -> Callable[[], Schema]:
    """What the application returns as its document, made once."""

    def made() -> Schema:
        if app.openapi_schema is None:
            app.openapi_schema = _made(app)
        return app.openapi_schema

    return made


def _made(app: FastAPI) -> Schema:
    found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = found["components"]["schemas"]
    models: list[type[BaseModel]] = [DistributedTraining, TrainingSweep]
    _, own = models_json_schema([(model, "validation") for model in models], ref_template=_REFS)
    for status in ("Status", "SweepStatus"):
        own["$defs"][status]["properties"]["phase"]["enum"].append(INTERRUPTED)  # only of a run of this machine
    if both := sorted(own["$defs"].keys() & schemas.keys()):
        raise ValueError(f"types of answers and of the CRDs have the same names: {', '.join(both)}")
    schemas.update(own["$defs"])
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path in found["paths"].values():
        for operation in path.values():
            answers = operation["responses"]
            answers.pop("422", None)  # FastAPI's own form, which is answered as a problem
            [problem] = answers["default"]["content"].values()
            answers["default"] = {**answers["default"], "content": {MEDIA_TYPE: problem}}
    resolved: Schema = _resolved(found)
    return resolved


def _resolved(part: Any) -> Any:
    if isinstance(part, Mapping):
        if MODEL_MARK in part:
            return {"$ref": _REFS.format(model=part[MODEL_MARK])}
        return {key: _resolved(value) for key, value in part.items()}
    return [_resolved(each) for each in part] if isinstance(part, list) else part


def operation_id(route: APIRoute) -> str:
    """The name of the function of a generated client: `get_jobs`, `get_job_logs`, `suspend_job`."""
    names = [part for part in route.path.removeprefix("/api/v1/").split("/") if not part.startswith("{")]
    if "{source}" in route.path:
        names = ["sweep", *names[1:]] if names[:1] == ["sweeps"] else ["job", *names]
    *_, verb = sorted(route.methods or {"GET"})
    what = "_".join(names).replace(".", "_").replace("-", "_")
    if verb != "POST":
        return f"{verb.lower()}_{what}"
    if names[-1] == "jobs":
        return "create_job"
    return "ask_job_for_stacks" if names[-1] == "stacks" else f"{names[-1]}_job"
