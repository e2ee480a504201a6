"""The objects of an attempt as Kubernetes manifests: a pure function of the job and its persisted status."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from allranks.api import job as api_job
from allranks.api.job import Job
from allranks.api.status import Status
from allranks.api.sweep_values import VARIABLE_PREFIX
from allranks.api.validation import template_problems
from allranks.core.facts import (
    attempt,
    compatibility,
    naming,
    pod_security,
    pod_template,
    pool_template,
    queue,
    resume_source,
    topology,
)
from allranks.core.facts.attempt import attempt_context
from allranks.core.facts.model import ANY_PLATFORM, Manifest, Platform
from allranks.core.facts.strategic_merge import merge
from allranks.core.objects import code, commands, companions, preflight, report_env, scheduling
from allranks.core.objects.gangs import members
from allranks.core.objects.gangs.base import PodPart
from allranks.core.objects.queueing import admission
from allranks.core.transfers import data, manifests
from allranks.fields import COMPUTE
from allranks.frameworks.base import (
    FILES_DIR,
    HELPER_DIR,
    ROOT_SSH_DIR,
    SECRET_DIR,
    SSH_DIR,
    AttemptContext,
    Replica,
    Wiring,
)

HELPER = "allranks-helper"
"""Name of the init container that copies the helper files. A template may add to it, or replace its fields."""
FILES_VOLUME = "allranks-files"
"""Name of the volume with the files that connect ranks, such as mpirun's hosts file."""
SSH_VOLUME = "allranks-ssh"
"""Name of the volume with the key of an MPI job."""
_TRAINER_DEFAULTS: Manifest = {"terminationMessagePolicy": "FallbackToLogsOnError"}


@dataclass(frozen=True, slots=True)
class Objects:
    """The manifests of an attempt."""

    companions: list[Manifest]
    """Objects that the pods need beside them: the headless Service, a ConfigMap, a Secret."""
    pods: list[Manifest]
    """The requested pods, ordered by role and index."""


def objects(
    job: Job, status: Status, platform: Platform, replicas: Container[tuple[str, int]] | None = None
) -> Objects:
    """Return the objects of the current attempt. `replicas`: (role, index) of the pods to build; None builds all of
    them."""
    templates = admission.applied(status, pod_template.role_templates(job, platform))
    framework = topology.framework_of(job)
    context = attempt_context(job, status, platform, templates)
    context, templates = attempt.with_launched_commands(framework, context, templates)
    wire = compatibility.wire(job, framework, context)
    wired = (
        (replica, wire(replica))
        for replica in context.replicas
        if replicas is None or (replica.role, replica.index) in replicas
    )
    beside = companions.companions(
        job,
        status,
        compatibility.shared(job, framework, context),
        _publish_before_ready(job, context, templates),
    )
    if platform.network_policies:
        internal = {port for replica in attempt.outermost(context) for port in wire(replica).ports.values()}
        beside.append(companions.network_policy(job, _declared_ports(templates.values(), internal)))
    if platform.disruption_budgets:
        beside.append(companions.disruption_budget(job))
    if group := members.pod_group(job, status, templates, platform):
        beside.append(group)
    references = {role: compatibility.references(job, framework, context, role) for role in templates}
    tests = preflight.pod_tests(job, status, platform, context)
    return Objects(beside, _pods(job, status, wired, templates, platform, references, tests))


def _publish_before_ready(job: Job, context: AttemptContext, templates: Mapping[str, Manifest]) -> bool:
    """Return whether names of pods that are not ready resolve: ranks look for each other before their pods are ready.

    They do not if a replica can be replaced alone: it keeps its host name, which would have two addresses until the old
    pod has terminated, on a lost node until the node returns. The old pod is not ready, and a new one is when its
    program runs, unless its readiness depends on more.
    """
    replaced_alone = any(
        topology.scope(job, replica.role, replica.index) == "Pod" for replica in attempt.outermost(context)
    )
    return not (replaced_alone and all(_ready_when_started(template["spec"]) for template in templates.values()))


def _ready_when_started(spec: Manifest) -> bool:
    """Return whether a pod is ready as soon as its program runs: no probes, and no sidecar, which could fail or end."""
    sidecars = [c for c in spec.get("initContainers", ()) if c.get("restartPolicy") == "Always"]
    [trainer, *others] = spec["containers"]
    probes = {"readinessProbe", "startupProbe"} & {name for name, value in trainer.items() if value}
    return not (sidecars or others or probes or spec.get("readinessGates"))


def _declared_ports(templates: Iterable[Manifest], internal: Container[int]) -> set[tuple[str, int]]:
    """Return (protocol, port) that the user's containers declare, without those on which the framework connects
    ranks."""
    specs = [template["spec"] for template in templates]
    containers = [c for spec in specs for c in (*spec.get("initContainers", ()), *spec["containers"])]
    return {
        (str(port.get("protocol") or "TCP"), number)
        for container in containers
        for port in container.get("ports") or ()
        if isinstance(number := port.get("containerPort"), int) and number not in internal
    }


def roles_without_helper(job: Job, status: Status, platform: Platform) -> frozenset[str]:
    """Return the roles with pods in which no helper waits for an order when its program has failed."""
    templates = pod_template.role_templates(job, platform)
    context = attempt_context(job, status, platform, templates)
    wire = topology.framework_of(job).wire(context)
    return frozenset(
        replica.role
        for replica in attempt.outermost(context)
        if not _helper_runs(job, wire(replica), templates[replica.role], platform)
        or not report_env.restarts_in_place(job, templates[replica.role], platform)
    )


def listening_ports(job: Job, status: Status) -> list[tuple[str, int]]:
    """Return (pod hostname, port) on which pods of the current attempt listen. A local run maps each to a free port."""
    context = attempt_context(job, status, ANY_PLATFORM)
    wire = topology.framework_of(job).wire(context)
    out = [(replica.hostname, port) for replica in context.replicas for port in wire(replica).ports.values()]
    tests = preflight.pod_tests(job, status, ANY_PLATFORM, context)
    first = next(iter(tests.meeting), None) if tests else None
    return [*out, (first.hostname, preflight.PORT)] if first else out


def ranks_of_one_machine(job: Job, platform: Platform) -> int:
    """Return the number of ranks that share a machine in a local run; 0 if a launcher in each pod starts several, and
    limits their threads itself."""
    framework, context = topology.framework_of(job), attempt_context(job, Status(), platform)
    if framework.command_starts_ranks and any(framework.processes(context, role) > 1 for role in context.gpus):
        return 0
    return framework.copies(context)


def problems(job: Job, platform: Platform = ANY_PLATFORM) -> list[tuple[str, str]]:
    """Return (field path, message) of mistakes that the CRD's schema cannot find.

    They are inside the job's templates, in commands, in `logPattern`, or too many replicas for a variable or a
    ConfigMap. A pool's template is checked by `pool_template.problems`.
    """
    if wrong := _shape_problems(job):
        return wrong  # what follows reads the templates
    framework = topology.framework_of(job)
    templates = pod_template.role_templates(job, ANY_PLATFORM)
    context = attempt.longest_context(job, templates)
    out = [
        *queue.problems(job),
        *members.problems(job),
        *report_env.problems(job),
        *attempt.size_problems(job, framework, context),
        *attempt.byte_problems(job, templates),
        *resume_source.problems(job),
        *commands.problems(job, platform),
    ]
    wire = framework.wire(context)
    for replica in attempt.outermost(context):
        wiring = wire(replica)
        helper_first = bool(wiring.prefix) or report_env.needs_command(job, wiring)
        if helper_first and not pod_template.trainer(templates[replica.role]).get("command"):
            message = "a command is needed: allranks starts it through a helper and cannot read the image's entrypoint"
            out.append((f"spec.roles.{replica.role}.command", message + framework.missing_command()))
    for role, spec in job.spec.roles.items():
        template = templates[role]
        where = f"spec.roles.{role}.template" if spec.template else "spec.template"
        trainer = pod_template.trainer(template)
        if not trainer.get("image"):
            out.append(
                (
                    f"spec.roles.{role}.image",
                    "an image is needed, here, in spec.image or in the container trainer of the template",
                )
            )
        out += [("spec.code.path", message) for message in code.problems(job, trainer)]
        out += data.problems(job, trainer)
        for variable in trainer.get("env", []):
            name = variable.get("name", "")
            if name in framework.reserved_env or _is_ours(name):
                out.append((f"{where}.spec.containers[trainer].env", f"{name} is set by allranks: remove it"))
        out += pool_template.restart_policy_problems(template, where)
        layers = {f"spec.roles.{role}.template": spec.template or {}, "spec.template": job.spec.template or {}}
        out += pod_security.problems(template, {path: part for path, part in layers.items() if part})
    return list(dict.fromkeys(out))


def _shape_problems(job: Job) -> list[tuple[str, str]]:
    containers: list[tuple[str, api_job.Container]] = [("spec", job.spec)]
    containers += [(f"spec.roles.{role}", spec) for role, spec in job.spec.roles.items()]
    return [
        problem
        for place, container in containers
        if container.template
        for problem in template_problems(container.template, f"{place}.template")
    ]


@dataclass(frozen=True, slots=True)
class _Shared:
    """The parts that all pods of a role with the same wiring have in common."""

    spec: Manifest
    """Pod spec with everything but the training container, `hostname` and `subdomain`."""
    trainer: Manifest
    """The training container without its environment."""
    sidecars: list[Manifest]
    report_env: dict[str, str]
    """Variables that ranks need to send reports."""
    defaults: dict[str, str]
    """Variables that the user may set instead."""
    gang: PodPart
    """The fields that make the pod a member of the attempt's gang."""
    references: Sequence[Manifest] = ()
    """Variables whose values the kubelet knows. The user may set them instead."""
    tests: preflight.PodTests | None = None
    """The tests that the pods make before their program starts."""
    waits: bool = False
    """The helper can wait for the other pods before it starts the program."""


def _pods(
    job: Job,
    status: Status,
    wired: Iterable[tuple[Replica, Wiring]],
    templates: Mapping[str, Manifest],
    platform: Platform,
    references: Mapping[str, list[Manifest]],
    tests: preflight.PodTests | None,
) -> list[Manifest]:
    """Return the pods. `references`: role -> variables whose values the kubelet knows."""
    shared: dict[object, _Shared] = {}
    together = topology.is_group(job, status)
    out = []
    for replica, wiring in wired:
        template = templates[replica.role]
        key = (
            replica.role,
            wiring.prefix,
            wiring.command,
            wiring.helper,
            wiring.ssh_key,
            wiring.secret,
            wiring.files,
            *wiring.ports.items(),
        )
        if key not in shared:
            gang = members.gang_part(job, status, replica.role, templates, platform)
            of_role = tests if tests and replica.role in tests.roles else None
            part = _shared_part(job, status, replica.role, wiring, template, platform, gang, of_role)
            shared[key] = replace(part, references=references[replica.role])
        waits = together and topology.scope(job, replica.role, replica.index) == "Group"
        of_replica = shared[key] if waits else replace(shared[key], waits=False)
        out.append(_pod(job, status, replica, wiring, template, of_replica))
    return out


def _pod(job: Job, status: Status, replica: Replica, wiring: Wiring, template: Manifest, shared: _Shared) -> Manifest:
    restarts = status.replica_restarts.get(naming.replica_key(replica.role, replica.index))
    restart = restarts.pod_number if restarts else 0
    labels = {
        **template["metadata"].get("labels", {}),
        **shared.gang.labels,
        naming.ROLE_LABEL: replica.role,
        naming.INDEX_LABEL: str(replica.index),
        naming.ATTEMPT_LABEL: str(status.pod_attempt),
        **({naming.RESTART_LABEL: str(restart)} if restart else {}),
    }
    name = naming.pod_name(job.name, replica.role, replica.index, status.pod_attempt, restart)
    metadata = naming.object_metadata(job, name, labels)
    if annotations := {**template["metadata"].get("annotations", {}), **shared.gang.annotations}:
        metadata["annotations"] = annotations
    env = _environment(job, status, replica, wiring, shared)
    containers = [{**shared.trainer, "env": env}, *shared.sidecars]
    spec = {**shared.spec, "hostname": replica.hostname, "subdomain": job.name, "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _shared_part(
    job: Job,
    status: Status,
    role: str,
    wiring: Wiring,
    template: Manifest,
    platform: Platform,
    gang: PodPart,
    tests: preflight.PodTests | None,
) -> _Shared:
    helper = wiring.helper or tests is not None
    mounts, volumes, init = _attachments(job, status, wiring, template, platform, role, helper)
    user = pod_template.trainer(template)
    trainer = {"name": naming.TRAINER, **merge(_TRAINER_DEFAULTS, user)}
    runs = _helper_runs(job, wiring, template, platform)
    if wiring.command is not None:
        trainer["command"] = list(wiring.command)
        trainer.pop("args", None)
    elif runs:
        trainer["command"] = [*report_env.HELPER, *wiring.prefix, *user.get("command", [])]
    elif wiring.prefix:
        trainer["command"] = [*wiring.prefix, *user.get("command", [])]
    if tests:
        trainer["command"] = preflight.command(trainer["command"])
    if code.needs_helper(job, platform):
        trainer["env"] = code.with_library(trainer.get("env", []))
    if wiring.ports:
        declared = {port.get("containerPort") for port in user.get("ports", [])}
        trainer["ports"] = [
            *user.get("ports", []),
            *({"name": key, "containerPort": port} for key, port in wiring.ports.items() if port not in declared),
        ]
    if not platform.local and (secrets := data.secrets(job)):
        # Those of the user replace them.
        trainer["envFrom"] = [*secrets, *user.get("envFrom", [])]
    if mounts:
        trainer["volumeMounts"] = [*user.get("volumeMounts", []), *mounts]
    spec = dict(template["spec"])
    if spec.get("hostNetwork") and spec.get("dnsPolicy", "ClusterFirst") == "ClusterFirst":
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"  # with the node's resolver, ranks do not find each other
    if volumes:
        spec["volumes"] = [*spec.get("volumes", []), *volumes]
    if any(volume["name"] == manifests.VOLUME for volume in volumes):
        spec["securityContext"] = manifests.with_group(spec.get("securityContext") or {})
    if users := spec.get("initContainers"):
        init = merge({"initContainers": init}, {"initContainers": users})["initContainers"]
    if init := [container for container in init if container["name"] != HELPER or container.get("image")]:
        spec["initContainers"] = init
    else:
        spec.pop("initContainers", None)
    if platform.helper_pull_secrets and any(_has_our_image(container["name"]) for container in init):
        spec = merge(spec, {"imagePullSecrets": [{"name": name} for name in platform.helper_pull_secrets]})
    spec |= scheduling.added(job, spec, status, bool(pod_template.gpus(job, role, template, platform)), platform)
    spec |= gang.spec
    sidecars = [container for container in spec["containers"] if container["name"] != naming.TRAINER]
    reports = report_env.environment(job, platform)
    if runs and report_env.restarts_in_place(job, template, platform):
        reports[report_env.IN_PLACE] = "1"
        if job.spec.restart.warm_start == "Never":
            reports[report_env.WARM_START] = "Never"
    defaults = report_env.defaults(job, platform, trainer.get("env", []))
    if not platform.local:  # on one machine, also the environment of the command may set it
        defaults |= {"PYTHONHASHSEED": naming.hash_seed(job.metadata.uid)}
    waits = runs and report_env.starts_together(job, template, platform)
    return _Shared(spec, trainer, sidecars, reports, defaults, gang, tests=tests, waits=waits)


def _helper_runs(job: Job, wiring: Wiring, template: Manifest, platform: Platform) -> bool:
    """Return whether the helper is the parent of the program: to read its output, or to restart it in its pod if a
    helper of its framework runs there anyway."""
    command = pod_template.trainer(template).get("command")
    if report_env.needs_helper(job, wiring, command, platform):
        return True
    runs_anyway = wiring.helper and wiring.command is None and bool(command)
    return runs_anyway and report_env.restarts_in_place(job, template, platform)


def _has_our_image(container: str) -> bool:
    return container == HELPER or container.startswith(naming.FETCH_CONTAINER)


def _environment(job: Job, status: Status, replica: Replica, wiring: Wiring, shared: _Shared) -> list[dict[str, Any]]:
    """Return the variables of the training container: ours first, so that values of the user may refer to them as
    $(NAME)."""
    variables = {
        "ALLRANKS_JOB": job.name,
        "ALLRANKS_JOB_UID": job.metadata.uid,
        "ALLRANKS_ROLE": replica.role,
        "ALLRANKS_INDEX": str(replica.index),
        "ALLRANKS_ATTEMPT": str(status.attempt),
    }
    if job.spec.checkpoint:
        variables["ALLRANKS_CHECKPOINT_DIR"] = job.spec.checkpoint.path
        if job.spec.checkpoint.keep is not None:
            variables["ALLRANKS_CHECKPOINT_KEEP"] = str(job.spec.checkpoint.keep)
        if job.spec.checkpoint.every_seconds is not None:
            variables["ALLRANKS_CHECKPOINT_EVERY_SECONDS"] = str(job.spec.checkpoint.every_seconds)
    if status.rollback:
        variables["ALLRANKS_RESUME_STEP"] = str(status.rollback.step)
    if shared.waits:
        variables[report_env.START_TOGETHER] = "1"
    if shared.tests:
        variables[preflight.VARIABLE] = shared.tests.variable(replica)
    variables |= data.environment(job, status) | shared.report_env
    user: list[dict[str, Any]] = shared.trainer.get("env", [])
    set_by_user = {variable["name"] for variable in user}
    defaults = {"PYTHONUNBUFFERED": "1", **shared.defaults, **wiring.defaults}
    defaults = {key: value for key, value in defaults.items() if key not in set_by_user}
    # The wiring follows the shared variables that it may refer to.
    common = [companions.variable(job, status, name) for name in wiring.shared_env]
    references = [variable for variable in shared.references if variable["name"] not in set_by_user]
    exceptions = _proxy_exceptions(job, user)
    user = [variable for variable in user if variable["name"] not in exceptions] + _literal(exceptions)
    return [*_literal(variables), *common, *_literal({**wiring.env, **defaults}), *references, *user]


_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "grpc_proxy"})
_EXCEPTIONS = ("no_proxy", "NO_PROXY", "no_grpc_proxy")


def _proxy_exceptions(job: Job, user: list[Manifest]) -> dict[str, str]:
    """Return the variables by which libraries connect to other pods of the job without the proxy that the user sets.

    gRPC, which TensorFlow and JAX connect ranks with, uses a proxy also for names of the cluster. What the user excepts
    stays excepted. A value that is not in the manifest is left as it is.
    """
    names = {str(variable["name"]): variable.get("value") for variable in user}
    if _PROXIES.isdisjoint(names):
        return {}
    cluster = f".{job.name}.{job.namespace}.svc,.svc,.cluster.local,localhost,127.0.0.1"
    exceptions = next((value for name in _EXCEPTIONS if (value := names.get(name))), "")
    return {
        name: ",".join(filter(None, (names.get(name) or exceptions, cluster)))
        for name in _EXCEPTIONS
        if name not in names or names[name] is not None
    }


def _is_ours(name: str) -> bool:
    """Return whether allranks sets the variable. Variables with parameters are in the jobs of a sweep."""
    return name.startswith("ALLRANKS_") and not name.startswith(VARIABLE_PREFIX)


def _literal(variables: Mapping[str, str]) -> list[Manifest]:
    return [{"name": name, "value": value} for name, value in variables.items()]


def _attachments(
    job: Job, status: Status, wiring: Wiring, template: Manifest, platform: Platform, role: str, helper: bool
) -> tuple[list[Manifest], list[Manifest], list[Manifest]]:
    """Return (volume mounts, volumes, init containers) that allranks adds to the pod of the user. `helper`: the pod
    needs the helper files."""
    mounts: list[Manifest] = []
    volumes: list[Manifest] = []
    init: list[Manifest] = []

    def attach(name: str, path: str, source: Manifest, **mount: Any) -> None:
        mounts.append({"name": name, "mountPath": path, **mount})
        if name not in {volume["name"] for volume in volumes}:
            volumes.append({"name": name, **source})

    user = pod_template.trainer(template)
    if "/dev/shm" not in {mount.get("mountPath") for mount in user.get("volumeMounts", [])}:
        pool = pool_template.pool_of(job, role, platform)
        limit = {"sizeLimit": pool.shared_memory} if pool and pool.shared_memory is not None else {}
        attach("dshm", "/dev/shm", {"emptyDir": {"medium": "Memory", **limit}})
    if job.spec.checkpoint:
        source = resume_source.volume_source(job.spec.checkpoint)
        folder = {"subPath": job.spec.checkpoint.sub_path} if job.spec.checkpoint.sub_path else {}
        attach(resume_source.CHECKPOINT_VOLUME, job.spec.checkpoint.path, source, **folder)
    for name, path, source, mount in (*code.volumes(job), *data.volumes(job, status, platform)):
        attach(name, path, source, **mount)
    if wiring.files:
        config_map = {"name": companions.config_map_name(job, status)}
        attach(FILES_VOLUME, FILES_DIR, {"configMap": config_map}, readOnly=True)
        for path, name in _free(wiring.file_mounts, user):
            attach(FILES_VOLUME, path, {"configMap": config_map}, subPath=name, readOnly=True)
    if wiring.ssh_key:
        secret = {"secretName": companions.ssh_secret_name(job), "defaultMode": 0o444}
        attach(SSH_VOLUME, SSH_DIR, {"secret": secret}, readOnly=True)
        attach(f"{SSH_VOLUME}-root", ROOT_SSH_DIR, {"secret": {**secret, "defaultMode": 0o400}}, readOnly=True)
    if wiring.secret:
        # Optional: a pod can also join an attempt that an operator without this Secret started.
        secret = {"secretName": companions.rendezvous_secret_name(job), "defaultMode": 0o444, "optional": True}
        attach("allranks-rendezvous", SECRET_DIR, {"secret": secret}, readOnly=True)
    if token := report_env.token_volume(platform):
        attach("allranks-token", report_env.TOKEN_DIR, token, readOnly=True)
    with_code, resumes = code.needs_helper(job, platform), resume_source.needed(job, status, platform.local)
    rollback = None if platform.local else status.rollback
    if (
        with_code
        or helper
        or resumes
        or rollback
        or report_env.needs_helper(job, wiring, user.get("command"), platform)
    ):
        attach(HELPER, HELPER_DIR, {"emptyDir": {"sizeLimit": "4Mi"}})
        init.append(_helper_init_container(job, status, user, platform, unpacks=with_code))
    if with_code:
        volumes += [{"name": name, **source} for name, source in code.helper_volumes(job, status)]
    init += manifests.fetch_containers(job, status, platform, _compute_resources(user))
    security = user.get("securityContext") or {}
    if resumes:
        name, source, below = code.resume_volume(job, status, platform)
        if name not in {volume["name"] for volume in volumes}:
            volumes.append({"name": name, **source})
        init.append(code.resume_container(job, (name, below), role, user, security, _compute_resources(user)))
    if rollback:
        init.append(code.set_aside_container(job, rollback, role, user, security, _compute_resources(user)))
    if with_code and job.spec.packages:
        init.append(code.packages_container(job, user, security, _compute_resources(user)))
    return mounts, volumes, init


def _free(mounts: Mapping[str, str], trainer: Manifest) -> list[tuple[str, str]]:
    """Return the (path, file) pairs whose path is not in a volume that the user mounts."""
    users = [str(mount.get("mountPath")).rstrip("/") for mount in trainer.get("volumeMounts", [])]
    return [(path, file) for path, file in mounts.items() if not any(f"{path}/".startswith(f"{u}/") for u in users)]


def _helper_init_container(
    job: Job, status: Status, trainer: Manifest, platform: Platform, *, unpacks: bool
) -> Manifest:
    arguments, mounts = code.unpacking(job, status) if unpacks else ([], [])
    resources = _compute_resources(trainer)
    return {
        "name": HELPER,
        "image": platform.helper_image,
        "command": ["allranks", "inject", HELPER_DIR, *arguments],
        **({"terminationMessagePolicy": "FallbackToLogsOnError"} if arguments else {}),
        "volumeMounts": [{"name": HELPER, "mountPath": HELPER_DIR}, *mounts],
        **({"resources": resources} if resources else {}),
        "securityContext": pod_security.RESTRICTED,
    }


def _compute_resources(trainer: Manifest) -> Manifest:
    """Return the trainer's CPU and memory, for init containers of allranks.

    So they change neither the pod's QoS class nor its use of a quota: they run before the trainer, and a pod needs the
    larger of both.
    """
    resources = {}
    for kind in ("limits", "requests"):
        amounts = (trainer.get("resources") or {}).get(kind) or {}
        if compute := {name: amount for name, amount in amounts.items() if name in COMPUTE}:
            resources[kind] = compute
    return resources
