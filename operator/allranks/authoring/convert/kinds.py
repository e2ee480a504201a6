"""The kinds that can be converted. To add one, write its file in this folder and add it here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from allranks.authoring.convert import indexed_job, jaxjob, mpijob, pytorchjob, rayjob, tfjob, trainjob
from allranks.authoring.convert.draft import Draft
from allranks.authoring.convert.source import Fields
from allranks.authoring.convert.trainjob import FindRuntime


class Kind(NamedTuple):
    """A kind, and where the API server has its objects."""

    name: str
    group: str
    versions: tuple[str, ...]
    plural: str
    convert: Callable[[Fields, FindRuntime], Draft]


def _alone(convert: Callable[[Fields], Draft]) -> Callable[[Fields, FindRuntime], Draft]:
    return lambda source, _find: convert(source)


KINDS: tuple[Kind, ...] = (
    Kind("PyTorchJob", "kubeflow.org", ("v1",), "pytorchjobs", _alone(pytorchjob.convert)),
    Kind("TFJob", "kubeflow.org", ("v1",), "tfjobs", _alone(tfjob.convert)),
    Kind("MPIJob", "kubeflow.org", ("v2beta1", "v1", "v1alpha2"), "mpijobs", _alone(mpijob.convert)),
    Kind("JAXJob", "kubeflow.org", ("v1",), "jaxjobs", _alone(jaxjob.convert)),
    Kind("TrainJob", "trainer.kubeflow.org", ("v1alpha1",), "trainjobs", trainjob.convert),
    Kind("RayJob", "ray.io", ("v1", "v1alpha1"), "rayjobs", _alone(rayjob.convert)),
    Kind("Job", "batch", ("v1",), "jobs", _alone(indexed_job.convert)),
)
RUNTIMES: Mapping[str, str] = {
    "ClusterTrainingRuntime": "clustertrainingruntimes",
    "TrainingRuntime": "trainingruntimes",
}
"""Kinds that a TrainJob refers to, with their plural."""
RUNTIME_GROUP = "trainer.kubeflow.org"


def kind_of(document: Mapping[str, Any]) -> Kind | None:
    """None if the document is not a job that can be converted. A Job that is not Indexed has no ranks."""
    group, _, _version = str(document.get("apiVersion", "")).rpartition("/")
    found = next((kind for kind in KINDS if (kind.group, kind.name) == (group, document.get("kind"))), None)
    if found and found.name == "Job":
        spec = document.get("spec")
        return found if isinstance(spec, dict) and spec.get("completionMode") == "Indexed" else None
    return found


def is_runtime(document: Mapping[str, Any]) -> bool:
    group = str(document.get("apiVersion", "")).rpartition("/")[0]
    return group == RUNTIME_GROUP and str(document.get("kind")) in RUNTIMES
