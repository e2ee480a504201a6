"""The kinds of jobs that can be converted, and what to do with the other kinds that people have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from allranks.api.job import GROUP
from allranks.api.validation_messages import MIGRATION
from allranks.authoring.convert import (
    azureml,
    dstack,
    hyperpod,
    indexed_job,
    jobset,
    mpijob,
    paddlejob,
    ray_launcher,
    rayjob,
    skypilot,
    slurm,
    training_operator,
    trainjob,
    volcano,
    xgboostjob,
)
from allranks.authoring.convert.draft import Draft, Fields
from allranks.authoring.convert.trainjob import FindRuntime
from allranks.frameworks.command_line import starts


class Kind(NamedTuple):
    """A kind that can be converted, with its place on the API server."""

    name: str
    group: str
    versions: tuple[str, ...]
    plural: str
    convert: Callable[[Fields, FindRuntime], Draft]


def _alone(convert: Callable[[Fields], Draft]) -> Callable[[Fields, FindRuntime], Draft]:
    return lambda source, _find: convert(source)


_TORCH = _alone(training_operator.convert_pytorchjob)
_TENSORFLOW = _alone(training_operator.convert_tfjob)
_MPI = _alone(mpijob.convert)
_EARLY = ("v1", "v1beta2", "v1beta1", "v1alpha2")
_KUBEDL = "training.kubedl.io"
_HYPERPOD = ("v1", "v1alpha1")

# A new kind: write its function in a file of this folder, and add it here.
KINDS: tuple[Kind, ...] = (
    Kind("PyTorchJob", "kubeflow.org", _EARLY, "pytorchjobs", _TORCH),
    Kind("TFJob", "kubeflow.org", _EARLY, "tfjobs", _TENSORFLOW),
    Kind("MPIJob", "kubeflow.org", ("v2beta1", "v1", "v1alpha2"), "mpijobs", _MPI),
    Kind("JAXJob", "kubeflow.org", ("v1",), "jaxjobs", _alone(training_operator.convert_jaxjob)),
    Kind("XGBoostJob", "kubeflow.org", ("v1", "v1alpha1"), "xgboostjobs", _alone(xgboostjob.convert)),
    Kind("PaddleJob", "kubeflow.org", ("v1",), "paddlejobs", _alone(paddlejob.convert)),
    Kind("TrainJob", "trainer.kubeflow.org", ("v1alpha1",), "trainjobs", trainjob.convert),
    Kind("RayJob", "ray.io", ("v1", "v1alpha1"), "rayjobs", _alone(rayjob.convert)),
    Kind("Job", "batch", ("v1",), "jobs", _alone(indexed_job.convert)),
    Kind("JobSet", "jobset.x-k8s.io", ("v1alpha2", "v1alpha1"), "jobsets", _alone(jobset.convert)),
    Kind("Job", "batch.volcano.sh", ("v1alpha1",), "jobs", _alone(volcano.convert)),
    Kind("HyperPodPyTorchJob", "sagemaker.amazonaws.com", _HYPERPOD, "hyperpodpytorchjobs", _alone(hyperpod.convert)),
    Kind("PyTorchJob", _KUBEDL, ("v1alpha1",), "pytorchjobs", _TORCH),
    Kind("TFJob", _KUBEDL, ("v1alpha1",), "tfjobs", _TENSORFLOW),
    Kind("MPIJob", _KUBEDL, ("v1alpha1",), "mpijobs", _MPI),
    Kind("XGBoostJob", _KUBEDL, ("v1alpha1",), "xgboostjobs", _alone(xgboostjob.convert)),
    Kind("XGBoostJob", "xgboostjob.kubeflow.org", ("v1", "v1alpha1"), "xgboostjobs", _alone(xgboostjob.convert)),
)
# Kinds of documents that no API server has, by the function that recognizes them.
FILES: tuple[tuple[Callable[[Mapping[str, Any]], bool], Kind], ...] = (
    (ray_launcher.is_launcher, Kind(ray_launcher.KIND, "", (), "", _alone(ray_launcher.convert))),
    (slurm.is_document, Kind(slurm.KIND, "", (), "", _alone(slurm.convert))),
    (azureml.is_job, Kind(azureml.KIND, "", (), "", _alone(azureml.convert))),
    (dstack.is_task, Kind(dstack.KIND, "", (), "", _alone(dstack.convert))),
    (skypilot.is_task, Kind(skypilot.KIND, "", (), "", _alone(skypilot.convert))),
)
RUNTIMES: Mapping[str, str] = {
    "ClusterTrainingRuntime": "clustertrainingruntimes",
    "TrainingRuntime": "trainingruntimes",
}
"""Kinds that a TrainJob refers to, with their plural."""
RUNTIME_GROUP = "trainer.kubeflow.org"


def group_and_version(document: Mapping[str, Any]) -> tuple[str, str]:
    group, _, version = str(document.get("apiVersion", "")).rpartition("/")
    return group, version


def kind_of(document: Mapping[str, Any]) -> Kind | None:
    """Return the kind of a job; None if it cannot be converted. A Job that is not Indexed has no ranks."""
    for recognizes, kind in FILES:
        if recognizes(document):
            return kind
    group, _ = group_and_version(document)
    match = next((kind for kind in KINDS if (kind.group, kind.name) == (group, document.get("kind"))), None)
    if match and match.group == "batch":
        spec = document.get("spec")
        return match if isinstance(spec, dict) and spec.get("completionMode") == "Indexed" else None
    return match


def is_runtime(document: Mapping[str, Any]) -> bool:
    return group_and_version(document)[0] == RUNTIME_GROUP and str(document.get("kind")) in RUNTIMES


# --- other kinds ------------------------------------------------------------------------------------------------------

_NO_END = "its pods have no end, and allranks runs jobs that end"
_SENTENCES: Mapping[tuple[str, str], str] = {
    ("ray.io", "RayCluster"): "put its spec below spec.rayClusterSpec of a RayJob with an entrypoint, and convert that",
    ("ray.io", "RayService"): _NO_END,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _NO_END,
    ("serving.kserve.io", "InferenceService"): _NO_END,
    ("sparkoperator.k8s.io", "SparkApplication"): "Spark is no framework of allranks",
    ("kubeflow.org", "MXJob"): "write a job with framework spmd: MXNet finds the other ranks by MASTER_ADDR and RANK",
    ("elastic.pytorch.org", "ElasticJob"): "write a job with framework pytorch and elastic: `allranks init train.py`",
    ("elastic.iml.github.io", "ElasticJob"): "write a job with framework pytorch and torchrun for dlrover-run",
    ("sagemaker.services.k8s.aws", "TrainingJob"): "write a job with compatibility: [SageMaker], which sets SM_*",
    ("kubernetes.dask.org", "DaskJob"): "Dask is no framework of allranks",
    ("tekton.dev", "PipelineRun"): "convert the manifests that its steps apply",
}
_PLAIN_JOB = (
    "the pods of a Job have no ranks: set completionMode: Indexed, completions and parallelism, and convert it; for "
    "one pod, `allranks init train.py` writes a job"
)
_NO_JOB = f"{_NO_END}: move the pod template to a Job with completionMode: Indexed, and convert that"
_WORKLOADS = frozenset(
    {"StatefulSet", "Deployment", "ReplicaSet", "DaemonSet", "CronJob", "Pod", "ReplicationController"}
)
_OF_KUBERNETES = frozenset(
    {"", "apps", "batch", "autoscaling", "policy", "extensions"}
    | {"networking.k8s.io", "rbac.authorization.k8s.io", "storage.k8s.io", "scheduling.k8s.io", "resource.k8s.io"}
    | {"admissionregistration.k8s.io", "apiextensions.k8s.io", "coordination.k8s.io", "certificates.k8s.io"}
)


def unknown(document: Mapping[str, Any], *, alone: bool) -> str:
    """Return what to do with a document that is not converted, as a sentence; empty if it needs nothing.

    `alone`: no job is among the documents, so objects that would accompany one are named too.
    """
    group, version = group_and_version(document)
    kind = str(document.get("kind", ""))
    if group == GROUP:
        return ""
    if sentence := _SENTENCES.get((group, kind)):
        return f"is not converted: {sentence}"
    if group in _OF_KUBERNETES and kind:
        if kind not in _WORKLOADS and not (group == "batch" and kind == "Job"):
            return ""
        if not alone and not any(starts(command) for command in _commands(document)):
            return ""
        return f"is not converted: {_PLAIN_JOB if kind == 'Job' else _NO_JOB}"
    if not kind:
        return _without_kind(document)
    if alone or any(True for _ in _containers(document)):
        groups = [other.group for other in KINDS if other.name == kind]
        if groups:
            return f"of the group {group} is not converted: this kind is converted in {', '.join(groups)}"
        return f"({group}/{version}) is no kind that `allranks convert` reads: `allranks init train.py` writes a job"
    return ""


def _without_kind(document: Mapping[str, Any]) -> str:
    if "pipelineInfo" in document or "pipelineSpec" in document:
        return "is a compiled pipeline: convert the manifest that its step applies, and submit that from the step"
    if isinstance(document.get("implementation"), dict):
        return "is a component of a pipeline: its container can be the image and the command of a job"
    if "AlgorithmSpecification" in document or "TrainingJobName" in document:
        return "is a SageMaker job: write a job with compatibility: [SageMaker], which sets the variables SM_*"
    return "has no kind, and is no job file that `allranks convert` reads"


def _containers(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the containers at any depth of a document."""
    if isinstance(value, Mapping):
        listed = value.get("containers")
        if isinstance(listed, list):
            yield from (item for item in listed if isinstance(item, Mapping))
        for item in value.values():
            yield from _containers(item)
    elif isinstance(value, list):
        for item in value:
            yield from _containers(item)


def _commands(document: Mapping[str, Any]) -> Iterator[list[str]]:
    for container in _containers(document):
        parts = [container.get(name) for name in ("command", "args")]
        yield [str(text) for part in parts if isinstance(part, list) for text in part]


def advice(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return what to do with documents of kinds that allranks does not have, as the end of a message; empty if there
    is nothing to do."""
    from allranks.authoring.convert.wrappers import is_wrapper

    for document in documents:
        kind = kind_of(document)
        name = kind.name if kind else str(document.get("kind"))
        if kind or is_wrapper(document):
            article = "an" if name.startswith(("MPI", "XGB", "A", "E", "I", "O", "U")) else "a"
            indexed = "Job with completionMode Indexed" if kind and kind.group == "batch" else name
            return (
                f"`allranks convert FILE > job.yaml` converts {article} {indexed} "
                f"and comments on each line that means something else ({MIGRATION})"
            )
    for document in documents:
        if text := unknown(document, alone=True):
            return f"{document.get('kind') or 'a document'} {text}"
    return ""
