"""TrainJob (trainer.kubeflow.org/v1alpha1), with its TrainingRuntime or ClusterTrainingRuntime."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from allranks.authoring.convert import command_line, mpijob, pod_parts, training_operator
from allranks.authoring.convert.draft import Draft, Fields, NotConvertible, Row, check
from allranks.authoring.convert.pod_parts import Part
from allranks.authoring.convert.training_runtimes import STEP_LABEL, VERSION, published
from allranks.core.facts.gpu_count import gpus
from allranks.core.facts.naming import TRAINER
from allranks.core.facts.quantity import quantity
from allranks.core.facts.strategic_merge import merge

FindRuntime = Callable[[str, str, str], dict[str, Any] | None]
"""(kind, namespace, name) -> the manifest of a runtime"""
CLUSTER_RUNTIME = "ClusterTrainingRuntime"
_ROWS: tuple[Row, ...] = (
    ("suspend", "suspend", ""),
    ("activeDeadlineSeconds", "activeDeadlineSeconds", ""),
)
_OWN_MANAGER = "trainer.kubeflow.org/trainjob-controller"
_INITIALIZERS = {"dataset": "dataset-initializer", "model": "model-initializer"}
_NODE = "node"
_JOBSET_IGNORED = ("network", "successPolicy", "startupPolicy", "suspend")
_GANG = "the operator makes the PodGroup; scheduling.gang can name the gang scheduler"


def convert(source: Fields, find: FindRuntime) -> Draft:
    draft = Draft.begin(source, "TrainJob")
    spec = source.child("spec")
    runtime = _runtime(draft, spec.child("runtimeRef"), find)
    draft.move(spec, _ROWS)
    manager = spec.take("managedBy", _OWN_MANAGER)
    if manager != _OWN_MANAGER:
        draft.set("managedBy", manager, f"{manager} has to support DistributedTraining, or nothing starts the job.")
    policy, jobset = _read(draft, runtime)
    jobs = copy.deepcopy(jobset.take("replicatedJobs", []))
    steps = {_step_of(job): job for job in jobs if isinstance(job, dict)}
    _drop_job_fields(draft, steps, f"{runtime.path}.spec.template.spec.replicatedJobs")
    if "trainer" not in steps:
        raise NotConvertible(f"{runtime.path}.spec.template.spec.replicatedJobs", "no job has the step trainer")
    _apply_patches(draft, spec, jobs, tuple(str(job.get("name")) for job in jobs))
    trainer = spec.child("trainer")
    nodes = trainer.number("numNodes", policy.number("numNodes", 1))
    part = _part(runtime, steps["trainer"], "worker", nodes)
    _add_trainer(trainer, part)
    _initialize(draft, spec.child("initializer"), steps, part, jobset)
    _set_framework(draft, policy, trainer, part, steps, runtime)
    training_operator.comment_on_queue(draft, draft.document["metadata"].get("labels") or {})
    failures = jobset.child("failurePolicy")
    if "maxRestarts" in failures:
        draft.set("restart.maxRestarts", failures.number("maxRestarts"))
    draft.move(jobset, [("ttlSecondsAfterFinished", "ttlSecondsAfterFinished", "")])
    return draft.finish()


def _runtime(draft: Draft, reference: Fields, find: FindRuntime) -> Fields:
    kind, name = str(reference.take("kind", CLUSTER_RUNTIME)), str(reference.take("name"))
    reference.take("apiGroup")
    namespace = str(draft.document["metadata"].get("namespace", ""))
    manifest = find(kind, namespace, name)
    if manifest is None and kind == CLUSTER_RUNTIME:
        manifest = published(name)
        if manifest is not None:
            text = f"The {kind} {name} is that of {VERSION}: to use another one, add its manifest, or use --live."
            draft.comment(("spec", "framework"), text)
    if manifest is None:
        get = f"kubectl get {kind.lower()} {name} -o yaml"
        message = f"the {kind} {name} is not among the files: add it (`{get}`), or use --live"
        raise NotConvertible("spec.runtimeRef", message)
    runtime = Fields(manifest, f"{kind}/{name}")
    for field in ("apiVersion", "kind", "metadata", "status"):
        runtime.take(field)
    return runtime


def _read(draft: Draft, runtime: Fields) -> tuple[Fields, Fields]:
    """Return mlPolicy, and the spec of the JobSet."""
    draft.read.append(runtime)
    spec = runtime.child("spec")
    draft.drop_all(spec, {"podGroupPolicy": _GANG})
    template = spec.child("template")
    metadata = template.child("metadata")
    for name in ("labels", "annotations"):
        if values := metadata.take(name):
            draft.document["metadata"][name] = {**values, **(draft.document["metadata"].get(name) or {})}
    jobset = template.child("spec")
    for name in _JOBSET_IGNORED:
        jobset.take(name)
    return spec.child("mlPolicy"), jobset


def _step_of(job: dict[str, Any]) -> str:
    """Return `trainer`, an initializer, or the name of the job. A job `node` beside a `launcher` has no label."""
    metadata = (job.get("template") or {}).get("metadata") or {}
    return str((metadata.get("labels") or {}).get(STEP_LABEL) or job.get("name"))


_IN_JOBSET = frozenset({"name", "replicas", "template", "dependsOn", "groupName"})
_IN_JOB = frozenset({"template", "parallelism", "completions", "completionMode"})


def _drop_job_fields(draft: Draft, steps: dict[str, dict[str, Any]], place: str) -> None:
    """Drop the fields of a JobSet and a Job around their pod templates."""
    for job in steps.values():
        path, inner = f"{place}[{job.get('name')}]", (job.get("template") or {}).get("spec") or {}
        names = [f"{path}.{name}" for name in job if name not in _IN_JOBSET]
        names += [f"{path}.template.spec.{name}" for name in inner if name not in _IN_JOB]
        for name in names:
            draft.drop(name, "the pods belong to no Job")
        if job.get("replicas", 1) != 1:
            draft.drop(f"{path}.replicas", "a job has one group of workers")


def _part(runtime: Fields, job: dict[str, Any], role: str, replicas: int) -> Part:
    template = ((job.get("template") or {}).get("spec") or {}).get("template")
    path = f"{runtime.path}.spec.template.spec.replicatedJobs[{job.get('name')}].template.spec.template"
    return pod_parts.read(role, replicas, template, path, [_NODE])


def _add_trainer(trainer: Fields, part: Part) -> None:
    """Apply the fields of the trainer. Its command and arguments replace the ones of the runtime."""
    if image := trainer.take("image"):
        part.fields["image"] = image
    for name in ("command", "args"):
        if (texts := trainer.texts(name)) is not None:
            part.fields[name] = texts
    if env := trainer.take("env"):
        part.fields["env"] = merge({"env": part.fields.get("env") or []}, {"env": env})["env"]
    if resources := trainer.take("resourcesPerNode"):
        check(resources, "ResourceRequirements", trainer.place("resourcesPerNode"))
        part.fields["resources"] = merge(dict(part.resources), resources)


# --- frameworks ------------------------------------------------------------------------------------------------------


def _set_framework(
    draft: Draft, policy: Fields, trainer: Fields, part: Part, steps: dict[str, dict[str, Any]], runtime: Fields
) -> None:
    processes = trainer.take("numProcPerNode")
    if "mpi" in policy or "flux" in policy:
        name = "mpi" if "mpi" in policy else "flux"
        _mpi(draft, policy.child(name), processes, part, steps, runtime, flux=name == "flux")
    elif "jax" in policy:
        policy.take("jax")
        draft.framework("jax")
        pod_parts.assemble(draft, [part])
    elif "torch" in policy:
        torch = policy.child("torch")
        draft.drop_all(torch, {"envInjection": "variables of ranks are set in the training container alone"})
        of_runtime = torch.take("numProcPerNode")  # of Trainer 2.0 and 2.1
        _torch(draft, processes or of_runtime, part)
    else:
        _plain(draft, policy, part)


def _torch(draft: Draft, value: Any, part: Part) -> None:
    draft.framework("pytorch")
    _tune(draft, part)
    processes, text = _processes(value, part)
    starts = training_operator.without_rendezvous(draft, [part], processes or None)
    if starts[0].unknown or starts[0].processes not in (None, command_line.AUTO):
        training_operator.processes_per_node(draft, [part], starts, value)
    elif processes:
        draft.set("pytorch.processesPerNode", processes, text)
    pod_parts.assemble(draft, [part])


def _processes(value: Any, part: Part) -> tuple[int, str]:
    """Return (number, comment) of the processes in a pod; 0 for Auto. Trainer counts CPUs where there are no GPUs.

    `value`: a number, or in Trainer 2.0 and 2.1 also a word.
    """
    processes = str(value or "auto")
    if processes not in ("auto", "cpu", "gpu"):
        return int(processes), ""
    if processes == "gpu" or (processes == "auto" and gpus(part.resources)):
        return 0, ""
    for kind in ("requests", "limits"):
        if cpus := (part.resources.get(kind) or {}).get("cpu"):
            number = max(1, math.ceil(quantity(str(cpus))))
            pods = "pod" if processes == "cpu" else "pod without GPUs"
            text = f"Trainer starts one process for each CPU of a {pods}; Auto, the default here, starts one."
            return (number, text) if number > 1 else (0, "")
    return 0, ""


def _tune(draft: Draft, part: Part) -> None:
    """Remove options of torchrun from a command of torchtune, which has them before the recipe."""
    command = list(part.fields.get("command") or ())
    if command[:2] != ["tune", "run"]:
        return
    line = command_line.torchrun(["torchrun", *command[2:]])
    part.fields["command"] = ["tune", "run", *line.command[1:]]
    if line.removed:
        draft.comment(("spec", "command"), f"Removed: {', '.join(line.removed)}. allranks connects the ranks.")
    if len(command) == 2:
        text = "Trainer adds a recipe, a config and paths after `tune run`; they have to be written here."
        draft.drop(f"{part.path}.spec.containers[node].command", text)


def _mpi(
    draft: Draft,
    mpi: Fields,
    processes: Any,
    part: Part,
    steps: dict[str, dict[str, Any]],
    runtime: Fields,
    flux: bool,
) -> None:
    slots = int(processes or mpi.number("numProcPerNode", 1))
    if not processes and slots == 1:
        slots = max(1, gpus(part.resources))
    mpi.take("numProcPerNode"), mpi.take("sshAuthMountPath")
    implementation = str(mpi.take("mpiImplementation") or "OpenMPI")
    as_node = bool(mpi.take("runLauncherAsNode"))
    launcher = Part("launcher", 1, part.template, dict(part.fields), part.path)
    node = steps.get(_NODE)
    worker = _part(runtime, node, "worker", part.replicas) if node and node is not steps["trainer"] else part
    if worker is part:
        worker = Part("worker", part.replicas, part.template, dict(part.fields), part.path)
        worker.fields.pop("command", None), worker.fields.pop("args", None)
    else:
        if as_node and "resources" in part.fields:  # Trainer applies them to both
            worker.fields["resources"] = part.fields["resources"]
        nodes = part.replicas
        worker.replicas = max(nodes - 1, 1) if as_node else nodes
    if flux or not command_line.starts_ranks(part.command_line):
        launcher.fields["command"] = ["mpirun", *part.command_line]
        launcher.fields.pop("args", None)
    if flux:
        launcher.fields.pop("resources", None)
        text = "Flux is not used: mpirun starts the ranks. The image needs MPI and sshd."
        draft.comment(("spec", "framework"), text)
    mpijob.mpi_parts(draft, launcher, worker, slots, implementation, launcher_is_node=as_node)


def _plain(draft: Draft, policy: Fields, part: Part) -> None:
    """Convert a runtime without variables that connect ranks, or with the variables of XGBoost."""
    if "xgboost" in policy:
        policy.take("xgboost")
        draft.framework("spmd", "The variables of XGBoost's tracker follow from those of SPMD programs.")
        workers = part.replicas * max(1, gpus(part.resources))
        port = {"name": "DMLC_TRACKER_PORT", "value": "$(MASTER_PORT)"}
        address = {"name": "DMLC_TRACKER_URI", "value": "$(MASTER_ADDR)"}
        task = {"name": "DMLC_TASK_ID", "value": "$(NODE_RANK)"}
        number = {"name": "DMLC_NUM_WORKER", "value": str(workers)}
        part.fields["env"] = [*(part.fields.get("env") or ()), address, port, task, number]
    else:
        draft.framework("spmd", "The runtime has no policy for a framework: its pods are only numbered.")
    draft.set("spmd.processesPerPod", 1)
    pod_parts.assemble(draft, [part])


# --- initializers ----------------------------------------------------------------------------------------------------


def _initialize(
    draft: Draft, initializer: Fields, steps: dict[str, dict[str, Any]], part: Part, jobset: Fields
) -> None:
    """Add the jobs that download data as init containers of every pod."""
    claims = {
        str((claim.get("metadata") or {}).get("name"))
        for policy in jobset.take("volumeClaimPolicies", [])
        for claim in policy.get("templates") or ()
    }
    added: list[dict[str, Any]] = []
    step_volumes: list[dict[str, Any]] = []
    for name, step in _INITIALIZERS.items():
        settings = initializer.child(name)
        if step not in steps:
            if settings:
                draft.drop(settings.path, f"the runtime has no job {step}")
                for field in settings.names():
                    settings.take(field)
            continue
        added.append(_init_container(draft, steps[step], step, settings))
        step_volumes += _pod_spec(steps[step]).get("volumes") or []
    for step in steps:
        if step not in ("trainer", _NODE, *_INITIALIZERS.values()):
            draft.drop(f"spec.runtimeRef: job {step}", "only the trainer and the initializers become part of the job")
    if not added:
        return
    spec = part.template.setdefault("spec", {})
    spec["initContainers"] = [*added, *(spec.get("initContainers") or ())]
    volumes = spec.setdefault("volumes", [])
    names = {volume.get("name") for volume in volumes}
    volumes += [volume for volume in step_volumes if volume.get("name") not in names]
    names |= {volume.get("name") for volume in step_volumes}
    mounted = {mount.get("name") for container in added for mount in container.get("volumeMounts") or ()}
    if not mounted:
        mount = {"name": "initializer", "mountPath": "/workspace"}
        for container in added:
            container["volumeMounts"] = [mount]
        spec |= merge(spec, {"containers": [{"name": TRAINER, "volumeMounts": [mount]}]})
        claims.add("initializer")
    volumes += [{"name": name, "emptyDir": {}} for name in sorted(claims - names)]
    if not volumes:
        del spec["volumes"]
    text = "Each pod runs the initializers and has its own copy of the data. For one copy, use a claim that they share."
    draft.comment(("spec", "template"), text)


def _pod_spec(job: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = ((((job.get("template") or {}).get("spec") or {}).get("template") or {}).get("spec")) or {}
    return spec


def _init_container(draft: Draft, job: dict[str, Any], step: str, settings: Fields) -> dict[str, Any]:
    pod = _pod_spec(job)
    containers = pod.get("containers") or [{}]
    container: dict[str, Any] = copy.deepcopy(
        next((container for container in containers if container.get("name") == step), containers[0])
    )
    env: list[dict[str, Any]] = []
    if uri := settings.take("storageUri"):
        env.append({"name": "STORAGE_URI", "value": uri})
    env += settings.take("env", [])
    if env:
        container["env"] = merge({"env": container.get("env") or []}, {"env": env})["env"]
    if secret := settings.child("secretRef").take("name"):
        container["envFrom"] = [*(container.get("envFrom") or ()), {"secretRef": {"name": secret}}]
    for field in pod.keys() - {"containers", "volumes", "restartPolicy"}:
        text = f"the step {step} had a pod of its own; an init container has the {field} of the training pod"
        draft.drop(f"spec.runtimeRef: job {step}: {field}", text)
    return container


# --- patches of the runtime -------------------------------------------------------------------------------------------


def _apply_patches(draft: Draft, spec: Fields, jobs: list[dict[str, Any]], names: tuple[str, ...]) -> None:
    """Apply a TrainJob's changes of its runtime.

    They are in `runtimePatches`, earlier in `podTemplateOverrides` and `podSpecOverrides`. `jobs`: the
    spec.template.spec.replicatedJobs of the runtime, which are changed. `names`: the jobs that are part of the result.
    """
    pods = {str(job.get("name")): _pod_of(job) for job in jobs}
    for patch in spec.children("runtimePatches"):
        patch.take("manager"), patch.take("time")
        template = patch.child("trainingRuntimeSpec").child("template")
        _copy_metadata(draft, template.child("metadata"))
        for job in template.child("spec").children("replicatedJobs"):
            inner = job.child("template")
            inner.take("metadata")  # of a Job: the result has none
            _patch_pod(draft, pods, str(job.take("name")), inner.child("spec").child("template"), names)
    for name, has_spec in (("podTemplateOverrides", True), ("podSpecOverrides", False)):
        for override in spec.children(name):
            for target in override.children("targetJobs"):
                job_name = str(target.take("name"))
                _patch_pod(draft, pods, job_name, override, names, has_spec=has_spec)


def _pod_of(job: dict[str, Any]) -> dict[str, Any]:
    inner = job.setdefault("template", {}).setdefault("spec", {}).setdefault("template", {})
    pod: dict[str, Any] = inner
    return pod


def _copy_metadata(draft: Draft, metadata: Fields) -> None:
    """Add labels and annotations of the JobSet to the job."""
    for name in ("labels", "annotations"):
        if values := metadata.take(name):
            draft.document["metadata"][name] = {**(draft.document["metadata"].get(name) or {}), **values}


def _patch_pod(
    draft: Draft,
    pods: dict[str, dict[str, Any]],
    job: str,
    patch: Fields,
    names: tuple[str, ...],
    has_spec: bool = True,
) -> None:
    """Merge a patch into the pod of a job. `has_spec`: `patch` is a pod template, else a pod spec."""
    change = {name: patch.take(name) for name in patch.names() if name != "targetJobs"}
    if job not in pods or job not in names:
        draft.drop(patch.path, f"the runtime's job {job} is not part of the result")
        return
    pods[job] |= merge(pods[job], change if has_spec else {"spec": change})
