"""RayJob (ray.io/v1)."""

from __future__ import annotations

from typing import Any

import yaml

from allranks.authoring.convert import command_line, pod_parts, ray_launcher, training_operator
from allranks.authoring.convert.draft import Draft, Fields, NotConvertible, Row
from allranks.authoring.convert.pod_parts import Part
from allranks.core.facts.gpu_count import gpus
from allranks.core.facts.quantity import quantity

_ROWS: tuple[Row, ...] = (
    ("activeDeadlineSeconds", "activeDeadlineSeconds", ""),
    (
        "preRunningDeadlineSeconds",
        "startupDeadlineSeconds",
        "It does not count time in which pods cannot be scheduled.",
    ),
    ("suspend", "suspend", ""),
)
_SUBMITTER = "the command runs in the head's pod: there is no submitter"
_DROPPED = {
    "submitterPodTemplate": _SUBMITTER,
    "submitterConfig": _SUBMITTER,
    "entrypointNumCpus": _SUBMITTER,
    "entrypointNumGpus": _SUBMITTER,
    "entrypointResources": _SUBMITTER,
    "deletionStrategy": "pods are deleted by cleanPodPolicy, the job by ttlSecondsAfterFinished",
    "jobId": "the job has its own name",
    "metadata": "use labels or annotations",
}
_CLUSTER_DROPPED = {
    "gcsFaultToleranceOptions": "a head that fails restarts the job from its checkpoint",
    "autoscalerOptions": "the number of workers changes by elastic or `allranks scale`",
    "headServiceAnnotations": "the job's Service is headless",
    "networkPolicy": "write a NetworkPolicy for the pods of the job",
    "tlsOptions": "Ray's connections are authenticated by a token, and not encrypted",
    "historyServerOptions": "there is no history server",
    "upgradeStrategy": "a job is not upgraded",
}
_GROUP_DROPPED = {
    "headService": "the head is reached by its host name; Ray's ports are options of ray",
    "enableIngress": "write an Ingress for the head's pod",
    "serviceType": "the head is reached by its host name",
    "scaleStrategy": "it is written by Ray's autoscaler",
    "priority": "it is for Ray's autoscaler",
    "labels": "labels of Ray's nodes have no counterpart",
    "resources": "Ray's resources are those of the pod",
    "idleTimeoutSeconds": "it is for Ray's autoscaler",
}
_PORTS = ("gcs-server", "gcs", "dashboard", "client", "metrics", "serve")


def convert(source: Fields) -> Draft:
    draft = Draft.begin(source, "RayJob")
    draft.framework("ray")
    spec = source.child("spec")
    draft.move(spec, _ROWS)
    draft.drop_all(spec, _DROPPED)
    mode = spec.take("submissionMode", "K8sJobMode")
    entrypoint = str(spec.take("entrypoint") or "")
    if not entrypoint:
        reason = "InteractiveMode waits for a person" if mode == "InteractiveMode" else "it is the command of the job"
        raise NotConvertible("spec.entrypoint", f"is needed: {reason}")
    cluster = spec.child("rayClusterSpec")
    if not cluster:
        raise NotConvertible("spec.rayClusterSpec", "is needed: a job here has its own Ray cluster (clusterSelector)")
    cluster.take("rayVersion")  # the image has its version
    cluster.take("authOptions")  # a token is always needed
    draft.drop_all(cluster, _CLUSTER_DROPPED)
    autoscaling = bool(cluster.take("enableInTreeAutoscaling"))
    parts = [_head(draft, cluster.child("headGroupSpec"), entrypoint), *_workers(draft, cluster, autoscaling)]
    _runtime_env(draft, spec, parts)
    pod_parts.assemble(draft, parts)
    _after_the_end(draft, spec)
    retries = spec.take("backoffLimit", 0)
    text = "A failure of the head or of the command restarts all pods; a worker that fails restarts alone."
    draft.set("restart.maxRestarts", int(retries), text)
    training_operator.comment_on_queue(draft, draft.document["metadata"].get("labels") or {})
    return draft.finish()


def _group(draft: Draft, group: Fields, role: str, replicas: int) -> Part:
    part = pod_parts.read(
        role,
        replicas,
        group.take("template"),
        group.place("template"),
        [f"ray-{'head' if role == 'head' else 'worker'}"],
        _PORTS,
    )
    draft.drop_all(group, _GROUP_DROPPED)
    for name in group.child("rayStartParams").names():
        value = group.child("rayStartParams").take(name)
        if name in ("dashboard-host", "block", "num-cpus", "num-gpus", "memory", "object-store-memory"):
            if name.startswith(("num", "memory", "object")) and str(value) != "0" and not _is_of_pod(part, name, value):
                draft.drop(f"{group.path}.rayStartParams.{name}", "Ray gets the resources of the pod")
        else:
            draft.drop(f"{group.path}.rayStartParams.{name}", "is not an option of a job")
    return part


def _is_of_pod(part: Part, option: str, value: object) -> bool:
    """Return whether an option of Ray has the amount that Ray takes from the pod."""
    amounts = {**(part.resources.get("requests") or {}), **(part.resources.get("limits") or {})}
    of_pod = {"num-cpus": amounts.get("cpu"), "memory": amounts.get("memory"), "num-gpus": gpus(part.resources)}
    amount = of_pod.get(option)
    try:
        return amount is not None and quantity(str(amount)) == quantity(str(value))
    except ValueError:
        return False


def _head(draft: Draft, group: Fields, entrypoint: str) -> Part:
    start = group.child("rayStartParams")
    idle = str(start.take("num-cpus")) == "0"
    part = _group(draft, group, "head", 1)
    for name in ("command", "args"):
        part.fields.pop(name, None)
    part.fields["command"] = command_line.of_text(entrypoint)
    if not idle:
        text = "As in a RayCluster, the head also runs tasks. Without this only the workers do."
        draft.set("ray.headRunsTasks", True, text)
    return part


def _workers(draft: Draft, cluster: Fields, autoscaling: bool) -> list[Part]:
    groups = cluster.children("workerGroupSpecs")
    names = [str(group.take("groupName") or "") for group in groups]
    parts = []
    for group, name, role in zip(groups, names, ray_launcher.group_roles(names), strict=True):
        hosts = group.number("numOfHosts", 1)
        replicas = 0 if group.take("suspend") else group.number("replicas", group.number("minReplicas", 0)) * hosts
        least, most = group.number("minReplicas", 0) * hosts, group.number("maxReplicas", 0) * hosts
        part = _group(draft, group, role, replicas)
        for field in ("command", "args"):
            if part.fields.pop(field, None):
                draft.drop(f"{part.path}.spec.containers[0].{field}", "a worker runs `ray start`")
        parts.append(part)
        if len(groups) > 1:
            draft.comment(
                ("spec", "roles", role), f"The group {name}. A task chooses it by the label ray.io/node-group: {role}."
            )
        if autoscaling and least < most and role == "worker":
            least = max(1, least)
            text = "Ray's autoscaler is not used: as many workers run as can be scheduled, at most `replicas`."
            draft.set("elastic", {"minReplicas": min(least, replicas), "maxReplicas": max(most, replicas)}, text)
    return parts


def _runtime_env(draft: Draft, spec: Fields, parts: list[Part]) -> None:
    """Move the variables to `env`, and packages to `packages`. Drop files, which belong into the image."""
    text = spec.take("runtimeEnvYAML")
    if not text:
        return
    try:
        runtime_env: Any = yaml.safe_load(str(text))
    except yaml.YAMLError:
        raise NotConvertible("spec.runtimeEnvYAML", "is not YAML") from None
    for name, value in (runtime_env if isinstance(runtime_env, dict) else {}).items():
        path = f"spec.runtimeEnvYAML.{name}"
        if name == "env_vars" and isinstance(value, dict):
            more = [{"name": str(key), "value": str(text)} for key, text in value.items()]
            for part in parts:
                part.fields["env"] = [*(part.fields.get("env") or ()), *more]
        elif name == "working_dir":
            text = f"ship its files with code, which may name a directory, or put them into the image (it was {value})"
            draft.drop(path, text)
        elif name in ("pip", "uv") and (packages := _packages(value)):
            draft.set("packages", packages, "pip installs them in each pod before the start.")
        elif name in ("pip", "conda", "uv"):
            draft.drop(path, "install these packages in the image, or pass runtime_env to ray.init() in the program")
        else:
            draft.drop(path, "pass runtime_env to ray.init() in the program")


def _packages(value: Any) -> list[str]:
    """Return the packages of a runtime environment; empty if they are not listed in the manifest."""
    listed = value.get("packages") if isinstance(value, dict) else value
    packages = [str(item).strip() for item in listed] if isinstance(listed, list) else []
    return packages if packages and not any(text.startswith("-") for text in packages) else []


def _after_the_end(draft: Draft, spec: Fields) -> None:
    shuts_down = bool(spec.take("shutdownAfterJobFinishes"))
    seconds = spec.take("ttlSecondsAfterFinished", 0)
    if shuts_down and seconds:
        text = "It deletes the job. KubeRay deleted the Ray cluster after this time; here its pods end with the job."
        draft.set("ttlSecondsAfterFinished", int(seconds), text)
    elif not shuts_down:
        text = "shutdownAfterJobFinishes was false: the Ray cluster stayed. Here no pod of it runs after the job."
        draft.comment(("spec", "framework"), text)
