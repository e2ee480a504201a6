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
from allranks.views.format.json_form import MODEL_MARK, described_as

Schema = dict[str, Any]
_REFS = "#/components/schemas/{model}"


Job = Annotated[dict[str, Any], WithJsonSchema(described_as(KIND))]
"""A job as the API server returned it. Only the document describes its fields: answers are not checked again."""
Sweep = Annotated[dict[str, Any], WithJsonSchema(described_as("TrainingSweep"))]


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


class _List(BaseModel):
    """The form of `allranks get -o json`."""

    apiVersion: Literal["v1"] = "v1"
    kind: Literal["List"] = "List"


class JobList(_List):
    """Jobs."""

    items: list[Job]


class SweepList(_List):
    """Sweeps."""

    items: list[Sweep]


class KubernetesObject(BaseModel):
    """An object as the API server returned it; the clients of Kubernetes have the types of its other fields."""

    model_config = ConfigDict(extra="allow")

    apiVersion: str | None = None
    kind: str | None = None
    metadata: Annotated[dict[str, Any], WithJsonSchema(described_as("ObjectMeta"))]


class ObjectList(_List):
    """Pods, or Events from the oldest to the newest."""

    items: list[KubernetesObject]


def document(app: FastAPI) -> Callable[[], Schema]:
    """Return the function that returns the document of the application."""

    def cached() -> Schema:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    return cached


def _document(app: FastAPI) -> Schema:
    generated = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = generated["components"]["schemas"]
    models: list[type[BaseModel]] = [DistributedTraining, TrainingSweep]
    _, of_crds = models_json_schema([(model, "validation") for model in models], ref_template=_REFS)
    for status in ("Status", "SweepStatus"):
        of_crds["$defs"][status]["properties"]["phase"]["enum"].append(INTERRUPTED)  # only of a run of this machine
    if duplicates := sorted(of_crds["$defs"].keys() & schemas.keys()):
        raise ValueError(f"types of answers and of the CRDs have the same names: {', '.join(duplicates)}")
    schemas.update(of_crds["$defs"])
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path in generated["paths"].values():
        for operation in path.values():
            answers = operation["responses"]
            answers.pop("422", None)  # FastAPI's own form, which is answered as a problem
            [problem] = answers["default"]["content"].values()
            answers["default"] = {**answers["default"], "content": {MEDIA_TYPE: problem}}
    resolved: Schema = _resolved(generated)
    return resolved


def _resolved(part: Any) -> Any:
    if isinstance(part, Mapping):
        if MODEL_MARK in part:
            return {"$ref": _REFS.format(model=part[MODEL_MARK])}
        return {key: _resolved(value) for key, value in part.items()}
    return [_resolved(item) for item in part] if isinstance(part, list) else part


def operation_id(route: APIRoute) -> str:
    """Return the name of the function of a generated client: `get_jobs`, `get_job_logs`, `suspend_job`."""
    names = [part for part in route.path.removeprefix("/api/v1/").split("/") if not part.startswith("{")]
    if "{source}" in route.path:
        names = ["sweep", *names[1:]] if names[:1] == ["sweeps"] else ["job", *names]
    *_, verb = sorted(route.methods or {"GET"})
    subject = "_".join(names).replace(".", "_").replace("-", "_")
    if verb != "POST":
        return f"{verb.lower()}_{subject}"
    if names[-1] == "jobs":
        return "create_job"
    return "ask_job_for_stacks" if names[-1] == "stacks" else f"{names[-1]}_job"
