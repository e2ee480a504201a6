"""Job of Volcano (batch.volcano.sh) with the plugins pytorch, tensorflow and mpi, or with one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allranks.authoring.convert import indexed_job, mpijob, pod_parts, training_operator
from allranks.authoring.convert.draft import Draft, Fields, NotConvertible
from allranks.authoring.convert.pod_parts import Part
from allranks.core.facts.gpu_count import gpus
from allranks.frameworks.command_line import edited, starts

_QUEUE_ANNOTATION = "scheduling.volcano.sh/queue-name"
_DROPPED = {
    "volumes": "write volumes and volumeMounts in template",
    "runningEstimate": "it is for the scheduler of Volcano",
    "networkTopology": "set scheduling.topologyKey",
}
_IGNORED = ("schedulerName", "minSuccess")
_USUAL = {("PodEvicted", "RestartJob"), ("TaskCompleted", "CompleteJob"), ("PodFailed", "RestartJob")}
"""(event, action) that mean what allranks does."""
_ROLES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "pytorch": {"master": ("master", "master"), "worker": ("worker", "worker")},
    "tensorflow": {
        "ps": ("ps", "ps"),
        "worker": ("worker", "worker"),
        "chief": ("chief", "chief"),
        "evaluator": ("evaluator", "evaluator"),
    },
    "mpi": {"master": ("launcher", "master"), "worker": ("worker", "worker")},
}
"""Plugin -> its option -> (role, the name of the task without this option)."""
_FILES = "/etc/volcano/"


def convert(source: Fields) -> Draft:
    draft = Draft.begin(source, "Job")
    spec = source.child("spec")
    plugins = spec.take("plugins") or {}
    plugin = next((name for name in _ROLES if name in plugins), "")
    arguments = [str(text) for text in plugins.get(plugin) or ()]
    roles = _roles(plugin, arguments)
    if not plugin and (roles := _of_mpirun(spec)):
        plugin = "mpi"
    parts = _parts(draft, spec, roles)
    _set_framework(draft, plugin, arguments, parts)
    _rest(draft, spec)
    for part in parts:
        text = f"files below {_FILES} do not exist here: the plugin svc wrote the hosts there"
        if any(_FILES in word for word in part.command_line):
            draft.remark(("spec", "roles"), f"{part.path}: {text}.")
    return draft.finish()


def _roles(plugin: str, arguments: Sequence[str]) -> dict[str, str]:
    """Return name of a task -> role."""
    options = dict(text.lstrip("-").partition("=")[::2] for text in arguments)
    return {options.get(option) or name: role for option, (role, name) in _ROLES.get(plugin, {}).items()}


def _of_mpirun(spec: Fields) -> dict[str, str]:
    """Return name of a task -> role, if one task runs mpirun and the other sshd; empty for other tasks."""
    roles: dict[str, str] = {}
    for task in spec.take("tasks") or ():
        containers = ((task.get("template") or {}).get("spec") or {}).get("containers") or [{}]
        line = [str(text) for name in ("command", "args") for text in containers[0].get(name) or ()]
        if any(start.kind == "mpirun" for start in starts(line)):
            roles[str(task.get("name"))] = "launcher"
        elif any("sshd" in text for text in line):
            roles[str(task.get("name"))] = "worker"
    return roles if sorted(roles.values()) == ["launcher", "worker"] else {}


def _policies(draft: Draft, fields: Fields) -> None:
    for policy in fields.children("policies"):
        event, action = str(policy.take("event")), str(policy.take("action"))
        for name in policy.names():
            policy.take(name)
        if (event, action) not in _USUAL:
            text = "a failure restarts all ranks by restart, and the end of the ranks completes the job"
            draft.drop(f"{policy.path}: {event} {action}", text)


def _parts(draft: Draft, spec: Fields, roles: Mapping[str, str]) -> list[Part]:
    tasks = spec.children("tasks")
    parts = []
    for task in tasks:
        name = str(task.take("name") or "")
        role = roles.get(name) or ("worker" if len(tasks) == 1 else "")
        if not role:
            reason = f"the plugin has the tasks {', '.join(roles)}" if roles else "no plugin connects its ranks"
            cure = "write a job with framework spmd and a role for each task"
            raise NotConvertible(task.place("name"), f"the task {name} has no role, because {reason}: {cure}")
        replicas = task.number("replicas", 1)
        for field in ("minAvailable", "maxRetry", "topologyPolicy", "partitionPolicy"):
            task.take(field)
        task_template, place = task.take("template"), task.place("template")
        parts.append(pod_parts.read(role, replicas, task_template, place, [], ["pytorchjob-port", "mpijob-port"]))
        _policies(draft, task)
        draft.drop_all(task, {"dependsOn": "all pods start together"})
    if not parts:
        raise NotConvertible(spec.place("tasks"), "is needed: it has the pods")
    order = ["launcher", "chief", "master", "worker", "ps", "evaluator"]
    return sorted(parts, key=lambda part: order.index(part.role))


def _set_framework(draft: Draft, plugin: str, arguments: Sequence[str], parts: list[Part]) -> None:
    if plugin == "pytorch":
        draft.framework("pytorch")
        starts = training_operator.without_rendezvous(draft, parts)
        training_operator.processes_per_node(draft, parts, starts, "1" if any(line.used for line in starts) else None)
        training_operator.keep_node_variables(draft, parts, None)
        pod_parts.assemble(draft, parts)
    elif plugin == "tensorflow":
        draft.framework("tensorflow")
        pod_parts.assemble(draft, parts)
    elif plugin == "mpi":
        by_role = {part.role: part for part in parts}
        if "launcher" not in by_role:
            raise NotConvertible("spec.tasks", "the plugin mpi needs the task of mpirun")
        _without_hosts(by_role["launcher"])
        slots = max(1, gpus(by_role["worker"].resources)) if "worker" in by_role else 1
        mpijob.mpi_parts(draft, by_role["launcher"], by_role.get("worker"), slots, "OpenMPI", launcher_is_node=False)
    else:
        part = parts[0]
        env = part.fields.get("env") or []
        part.fields["env"] = [{"name": "VC_TASK_INDEX", "value": "$(NODE_RANK)"}, *env]
        indexed_job.ranks(draft, part)


def _without_hosts(launcher: Part) -> None:
    """Remove the options of mpirun with the variable of the plugin, which has the hosts."""
    line = launcher.command_line
    options = [option for start in starts(line) for option in start.options if "MPI_HOST" in str(option)]
    words = [word for option in options for word in option.words]
    launcher.set_command_line(
        edited(line, dict.fromkeys(words, "")), [word.argument for word in words if word.end is None]
    )


def _rest(draft: Draft, spec: Fields) -> None:
    least = spec.take("minAvailable")
    total = sum(int(role.get("replicas", 1)) for role in draft.spec["roles"].values())
    if least is not None and int(least) < total:
        draft.drop("spec.minAvailable", "all pods start together, or elastic.minReplicas of the workers")
    if (queue := spec.take("queue")) and queue != "default":
        draft.drop("spec.queue", f"set the annotation {_QUEUE_ANNOTATION}: {queue} of the template")
    draft.move(spec, [("priorityClassName", "scheduling.priorityClassName", "")])
    draft.move(spec, [("ttlSecondsAfterFinished", "ttlSecondsAfterFinished", "")])
    for name in _IGNORED:
        spec.take(name)
    _policies(draft, spec)
    draft.drop_all(spec, _DROPPED)
    text = "maxRetry restarted the job; a failure of a rank restarts all ranks, from their checkpoint."
    draft.set("restart.maxRestarts", spec.number("maxRetry", 3), text)
