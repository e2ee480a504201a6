"""The objects of an attempt, as Kubernetes manifests: a pure function of the job and its persisted status.

What is the same for all pods of a role is built once and shared; a pod adds its name, labels, host name and variables.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

from allranks.api.job import API_VERSION, KIND, Job, RoleSpec
from allranks.api.pool import PoolSpec
from allranks.api.status import Status
from allranks.core import naming, topology
from allranks.core.manifests import pool_template, report_env, scheduling
from allranks.core.manifests.strategic_merge import merge, without_nulls
from allranks.core.model import Manifest, Platform
from allranks.frameworks.base import FILES_DIR, HELPER_DIR, SSH_DIR, Bounds, Group, Replica, Wiring

GRACE_SECONDS = 30
"""Kubernetes' own default for terminationGracePeriodSeconds."""


@dataclass(frozen=True, slots=True)
class Objects:
    """What an attempt is made of."""

    companions: list[Manifest]
    """What the pods need beside them: the headless Service, and for MPI a hostfile and a key."""
    pods: list[Manifest]
    """Every pod that was asked for, in order of roles and indices."""


def objects(job: Job, status: Status, platform: Platform, places: Container[tuple[str, int]] | None = None) -> Objects:
    """The objects of the present attempt. `places`: (role, index) of the pods that are asked for, else all of them."""
    bases = _bases(job, platform)
    group = _group(job, status, bases, platform)
    wirings = topology.framework_of(job).wire(group)
    wired = [
        (replica, wiring)
        for replica, wiring in zip(group.replicas, wirings, strict=True)
        if places is None or (replica.role, replica.index) in places
    ]
    return Objects(_companions(job, status, wirings), _pods(job, status, wired, bases, platform))


def _companions(job: Job, status: Status, wirings: list[Wiring]) -> list[Manifest]:
    out = [_service(job)]
    files = {name: content for wiring in wirings for name, content in wiring.files.items()}
    if files:
        metadata = _metadata(job, _files_name(job, status), {naming.ATTEMPT_LABEL: str(status.attempt)})
        out.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files})
    if any(wiring.ssh_key for wiring in wirings):
        # Its data is a fresh key pair: random, so the driver makes it when it creates the object.
        out.append(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": _metadata(job, _secret_name(job), {}),
                "type": "kubernetes.io/ssh-auth",
            }
        )
    return out


def listens(job: Job, status: Status) -> list[tuple[str, int]]:
    """(pod hostname, port) on which the present attempt's pods are reached: one machine maps each to a free port."""
    group = group_of(job, status, _ELSEWHERE)
    wirings = topology.framework_of(job).wire(group)
    return [
        (replica.hostname, port)
        for replica, wiring in zip(group.replicas, wirings, strict=True)
        for port in wiring.ports.values()
    ]


def problems(job: Job) -> list[tuple[str, str]]:
    """(field path, message) of what is wrong inside the templates, which no schema sees; a pool's is not the job's."""
    reserved = topology.framework_of(job).reserved_env
    out = report_env.problems(job)
    bases = _bases(job, _ELSEWHERE)
    group = _group(job, Status(), bases, _ELSEWHERE)
    for replica, wiring in zip(group.replicas, topology.framework_of(job).wire(group), strict=True):
        if (wiring.prefix or report_env.needs_command(job, wiring)) and not _trainer(bases[replica.role]).get(
            "command"
        ):
            what = "a command is needed: allranks starts it by a helper, and cannot see an image's entrypoint"
            out.append((f"spec.roles.{replica.role}.command", what))
    for role, spec in job.spec.roles.items():
        template = bases[role]
        where = f"spec.roles.{role}.template" if spec.template else "spec.template"
        for container in template["spec"]["containers"]:
            if container["name"] != naming.TRAINER:
                continue
            if not container.get("image"):
                out.append((f"spec.roles.{role}.image", "an image is needed, here, in spec.image or in the template"))
            for variable in container.get("env", []):
                name = variable.get("name", "")
                if name in reserved or name.startswith("ALLRANKS_"):
                    out.append((f"{where}.spec.containers[trainer].env", f"{name} is set by allranks: remove it"))
        if template["spec"].get("restartPolicy", "Never") == "Always":
            out.append((f"{where}.spec.restartPolicy", "must be Never or OnFailure: a rank that ended would run again"))
    return list(dict.fromkeys(out))


def group_of(job: Job, status: Status, platform: Platform) -> Group:
    """The present attempt as its framework sees it."""
    return _group(job, status, _bases(job, platform), platform)


_ELSEWHERE = Platform(helper_image="")
"""For questions whose answer is the same everywhere."""


def _group(job: Job, status: Status, bases: dict[str, Manifest], platform: Platform) -> Group:
    grace = [base["spec"].get("terminationGracePeriodSeconds", GRACE_SECONDS) for base in bases.values()]
    return Group(
        job=job.name,
        namespace=job.namespace,
        attempt=status.attempt,
        replicas=topology.replicas(job, status),
        options=job.spec.options,
        gpus={role: _gpus(job, base, platform) for role, base in bases.items()},
        own_command=frozenset(role for role, spec in job.spec.roles.items() if spec.command is not None),
        variables={role: _variable_names(job, base, platform) for role, base in bases.items()},
        grace_seconds=min(grace),
        elastic=Bounds(own.min_replicas, own.max_replicas, own.wait_seconds) if (own := job.spec.elastic) else None,
        local=platform.local,
        endpoints=platform.endpoints,
    )


def longest_grace(job: Job) -> int:
    """In seconds: how long pods of the job may take to end."""
    graces = [base["spec"].get("terminationGracePeriodSeconds") for base in _bases(job, _ELSEWHERE).values()]
    return max(GRACE_SECONDS if grace is None else int(grace) for grace in graces)


def _variable_names(job: Job, base: Manifest, platform: Platform) -> tuple[str, ...]:
    own = [
        "ALLRANKS_JOB",
        "ALLRANKS_JOB_UID",
        "ALLRANKS_ATTEMPT",
        *(["ALLRANKS_CHECKPOINT_DIR"] if job.spec.checkpoint else []),
        *([report_env.URL, report_env.TOKEN_FILE] if platform.report_url else []),
    ]
    return (
        *own,
        "PYTHONUNBUFFERED",
        *(v["name"] for v in _trainer(base).get("env", []) if v["name"] != "PYTHONUNBUFFERED"),
    )


def _gpus(job: Job, base: Manifest, platform: Platform) -> int:
    pool = pool_template.of(job, platform)
    return topology.gpus(_trainer(base).get("resources"), pool.gpu.resource if pool and pool.gpu else "")


def _bases(job: Job, platform: Platform) -> dict[str, Manifest]:
    pool = pool_template.of(job, platform)
    ranked = {role: kind.ranked for role, kind in topology.framework_of(job).roles.items()}
    return {role: _role_template(job, spec, pool, ranked[role]) for role, spec in job.spec.roles.items()}


def _role_template(job: Job, role: RoleSpec, pool: PoolSpec | None, ranked: bool) -> Manifest:
    """The pod template of one role, from the bottom: what is restricted, the pool, where the job wants to be placed,
    spec.template, the role's template, then the fields of the job and of the role."""
    user = without_nulls(merge(job.spec.template or {}, role.template or {}))
    user["spec"] = merge(user.get("spec") or {}, {"containers": [_own_trainer(job, role)]})
    below = pool_template.template_of(pool, user, ranked) if pool else {"spec": {}}
    template = merge(merge(below, {"spec": scheduling.wanted(job, user["spec"])}), user)
    if tolerated := below["spec"].get("tolerations"):
        template["spec"]["tolerations"] = pool_template.both(tolerated, user["spec"].get("tolerations"))
    return {"metadata": template.get("metadata") or {}, "spec": merge(_DEFAULTS, template["spec"])}


def _own_trainer(job: Job, role: RoleSpec) -> Manifest:
    """The training container as the fields of the job and of the role say it."""
    trainer: dict[str, Any] = {"name": naming.TRAINER}
    for source in (job.spec, role):
        own = source.model_dump(
            by_alias=True,
            exclude_none=True,
            mode="json",
            include={"image", "command", "args", "env", "resources", "working_dir"},
        )
        if own.get("command") is not None and "args" not in own:
            trainer.pop("args", None)  # a role's own command does not take the job's arguments
        trainer = merge(trainer, own)
    return trainer


_DEFAULTS: Manifest = {
    "restartPolicy": "Never",
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
}
"""What lies under all else: restricted, no token, no service variables."""


_TRAINER_DEFAULTS: Manifest = {
    "terminationMessagePolicy": "FallbackToLogsOnError",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}


def _trainer(base: Manifest) -> Manifest:
    found: Manifest = next(c for c in base["spec"]["containers"] if c["name"] == naming.TRAINER)
    return found


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all pods of a role that are wired alike have in common, built once."""

    spec: Manifest
    """Pod spec with everything but the training container, `hostname` and `subdomain`."""
    trainer: Manifest
    """The training container without its environment."""
    sidecars: list[Manifest]
    reporting: dict[str, str]
    """Variables by which ranks report."""


def _pods(
    job: Job, status: Status, wired: Iterable[tuple[Replica, Wiring]], bases: dict[str, Manifest], platform: Platform
) -> list[Manifest]:
    shared: dict[object, _Shared] = {}
    out = []
    for replica, wiring in wired:
        base = bases[replica.role]
        alike = (
            replica.role,
            wiring.prefix,
            wiring.command,
            wiring.helper,
            wiring.ssh_key,
            bool(wiring.files),
            *wiring.ports.items(),
        )
        if alike not in shared:
            shared[alike] = _share(job, status, wiring, base, platform)
        out.append(_pod(job, status, replica, wiring, base, shared[alike]))
    return out


def _pod(job: Job, status: Status, replica: Replica, wiring: Wiring, base: Manifest, shared: _Shared) -> Manifest:
    restarted = status.replica_restarts.get(naming.replica_key(replica.role, replica.index))
    restart = restarted.count if restarted else 0
    labels = {
        **base["metadata"].get("labels", {}),
        naming.ROLE_LABEL: replica.role,
        naming.INDEX_LABEL: str(replica.index),
        naming.ATTEMPT_LABEL: str(status.attempt),
        **({naming.RESTART_LABEL: str(restart)} if restart else {}),
    }
    name = naming.pod_name(job.name, replica.role, replica.index, status.attempt, restart)
    metadata = _metadata(job, name, labels)
    if base["metadata"].get("annotations"):
        metadata["annotations"] = base["metadata"]["annotations"]
    env = _environment(job, status, replica, wiring, shared)
    containers = [{**shared.trainer, "env": env}, *shared.sidecars]
    spec = {**shared.spec, "hostname": replica.hostname, "subdomain": job.name, "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _share(job: Job, status: Status, wiring: Wiring, base: Manifest, platform: Platform) -> _Shared:
    mounts, volumes, init = _attachments(job, status, wiring, base, platform)
    user = _trainer(base)
    trainer = {"name": naming.TRAINER, **merge(_TRAINER_DEFAULTS, user)}
    wrapped = report_env.wraps(job, wiring, user.get("command"), platform)
    if wiring.command is not None:
        trainer["command"] = list(wiring.command)
        trainer.pop("args", None)
    elif prefix := (*(report_env.HELPER if wrapped else ()), *wiring.prefix):
        trainer["command"] = [*prefix, *user.get("command", [])]
    if wiring.ports:
        taken = {port.get("containerPort") for port in user.get("ports", [])}
        trainer["ports"] = [
            *user.get("ports", []),
            *({"name": key, "containerPort": port} for key, port in wiring.ports.items() if port not in taken),
        ]
    if mounts:
        trainer["volumeMounts"] = [*user.get("volumeMounts", []), *mounts]
    spec = dict(base["spec"])
    if volumes:
        spec["volumes"] = [*spec.get("volumes", []), *volumes]
    if init:
        spec["initContainers"] = [*init, *spec.get("initContainers", [])]
    spec |= scheduling.given(spec, status, bool(_gpus(job, base, platform)), platform)
    sidecars = [container for container in spec["containers"] if container["name"] != naming.TRAINER]
    return _Shared(spec, trainer, sidecars, report_env.environment(job, platform))


def _environment(job: Job, status: Status, replica: Replica, wiring: Wiring, shared: _Shared) -> list[dict[str, Any]]:
    """Ours first, so that a user's value may refer to it as $(NAME); a default only where the user has none."""
    own = {
        "ALLRANKS_JOB": job.name,
        "ALLRANKS_JOB_UID": job.metadata.uid,
        "ALLRANKS_ROLE": replica.role,
        "ALLRANKS_INDEX": str(replica.index),
        "ALLRANKS_ATTEMPT": str(status.attempt),
    }
    if job.spec.checkpoint:
        own["ALLRANKS_CHECKPOINT_DIR"] = job.spec.checkpoint.path
    own |= shared.reporting
    user: list[dict[str, Any]] = shared.trainer.get("env", [])
    named = {variable["name"] for variable in user}
    defaults = {"PYTHONUNBUFFERED": "1", **wiring.defaults}
    ours = {**own, **wiring.env, **{key: value for key, value in defaults.items() if key not in named}}
    return [*({"name": key, "value": value} for key, value in ours.items()), *user]


def _attachments(
    job: Job, status: Status, wiring: Wiring, base: Manifest, platform: Platform
) -> tuple[list[Manifest], list[Manifest], list[Manifest]]:
    """(volume mounts, volumes, init containers) that the pod gets beside the user's own."""
    mounts: list[Manifest] = []
    volumes: list[Manifest] = []
    init: list[Manifest] = []

    def attach(name: str, path: str, source: Manifest, **mount: Any) -> None:
        mounts.append({"name": name, "mountPath": path, **mount})
        volumes.append({"name": name, **source})

    own_mounts = {mount.get("mountPath") for mount in _trainer(base).get("volumeMounts", [])}
    if "/dev/shm" not in own_mounts:
        pool = pool_template.of(job, platform)
        limit = {"sizeLimit": pool.shared_memory} if pool and pool.shared_memory is not None else {}
        attach("dshm", "/dev/shm", {"emptyDir": {"medium": "Memory", **limit}})
    if job.spec.checkpoint:
        given = job.spec.checkpoint.volume
        claim = {"persistentVolumeClaim": {"claimName": job.spec.checkpoint.claim}}
        source = given.model_dump(by_alias=True, exclude_none=True, mode="json") if given else claim
        attach("checkpoint", job.spec.checkpoint.path, source)
    if wiring.files:
        attach("allranks-files", FILES_DIR, {"configMap": {"name": _files_name(job, status)}}, readOnly=True)
    if wiring.ssh_key:
        secret = {"secretName": _secret_name(job), "defaultMode": 0o444}
        attach("allranks-ssh", SSH_DIR, {"secret": secret}, readOnly=True)
    if token := report_env.volume(platform):
        attach("allranks-token", report_env.TOKEN_DIR, token, readOnly=True)
    if wiring.helper or report_env.wraps(job, wiring, _trainer(base).get("command"), platform):
        attach("allranks-helper", HELPER_DIR, {"emptyDir": {"sizeLimit": "4Mi"}})
        init.append(
            {
                "name": "allranks-helper",
                "image": platform.helper_image,
                "command": ["allranks", "inject", HELPER_DIR],
                "volumeMounts": [{"name": "allranks-helper", "mountPath": HELPER_DIR}],
                "resources": {"limits": {"memory": "128Mi"}, "requests": {"cpu": "10m", "memory": "32Mi"}},
                "securityContext": _TRAINER_DEFAULTS["securityContext"],
            }
        )
    return mounts, volumes, init


def _service(job: Job) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, job.name, {}),
        "spec": {
            "clusterIP": "None",
            # Ranks look one another up before they are ready: they are ready when they have met.
            "publishNotReadyAddresses": True,
            "selector": {naming.JOB_LABEL: job.name},
        },
    }


def _metadata(job: Job, name: str, labels: dict[str, str]) -> Manifest:
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": job.name, "uid": job.metadata.uid, "controller": True}
    # Whoever deletes the job in the foreground waits for its pods.
    owner["blockOwnerDeletion"] = True
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {**labels, naming.JOB_LABEL: job.name, naming.MANAGER_LABEL: "allranks"},
        "ownerReferences": [owner],
    }


def _files_name(job: Job, status: Status) -> str:
    return f"{job.name}-files-{status.attempt}"


def _secret_name(job: Job) -> str:
    # With the UID in it: the operator cannot read Secrets, so it could not tell one that an earlier job left behind.
    return f"{job.name}-ssh-{job.metadata.uid[:8]}"
