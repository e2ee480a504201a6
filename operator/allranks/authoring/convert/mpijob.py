"""MPIJob (kubeflow.org/v1alpha2, v1 and v2beta1, training.kubedl.io)."""

from __future__ import annotations

import re
from typing import Any

from allranks.authoring.convert import command_line, pod_parts, training_operator
from allranks.authoring.convert.draft import Draft, Fields, NotConvertible
from allranks.authoring.convert.pod_parts import Part
from allranks.core.facts.gpu_count import gpus
from allranks.core.objects.pods import FILES_VOLUME, SSH_VOLUME
from allranks.frameworks import mpirun
from allranks.frameworks.command_line import Start, edited

_ROLES = {"Launcher": "launcher", "Worker": "worker"}


def convert(source: Fields) -> Draft:
    # Since v2beta1 the launcher is a batch/v1 Job, which has at most 6 retries by default.
    is_job = str(source.take("apiVersion")).endswith("/v2beta1")
    draft = Draft.begin(source, "MPIJob")
    spec = source.child("spec")
    training_operator.read_run_policy(draft, spec)
    specs = spec.child("mpiReplicaSpecs")
    names = [str(spec.take("mainContainer") or "mpi")]
    parts, policies = training_operator.read_roles(spec, specs, _ROLES, names, "mpi-port")
    by_role = {part.role: part for part in parts}
    if "launcher" not in by_role:
        raise NotConvertible(f"{specs.path}.Launcher", "is needed: it has the command")
    worker = by_role.get("worker")
    as_worker = bool(spec.take("runLauncherAsWorker"))
    spec.take("launcherCreationPolicy")  # ssh waits here until the workers answer
    spec.take("sshAuthMountPath")  # mpirun gets the path of the key by a variable
    mpi_parts(
        draft,
        by_role["launcher"],
        worker,
        slots=spec.number("slotsPerWorker", 1),
        implementation=str(spec.take("mpiImplementation") or "OpenMPI"),
        launcher_is_node=as_worker,
    )
    limit = training_operator.backoff_limit(spec, 6 if is_job else None)
    explicit = {role: policy for role, policy in policies.items() if policy}
    training_operator.set_restart(draft, {"launcher": "OnFailure" if is_job else "Never", **explicit}, limit)
    return draft.finish()


def mpi_parts(
    draft: Draft, launcher: Part, worker: Part | None, slots: int, implementation: str, launcher_is_node: bool
) -> None:
    """Set framework, roles and options of a job that mpirun or horovodrun starts."""
    command = launcher.command_line
    horovod = _uses_horovod(launcher)
    if worker is None:
        worker = Part("worker", 0, launcher.template, dict(launcher.fields), launcher.path)
        launcher_is_node = True
    _without_sshd(draft, worker)
    if launcher_is_node:
        worker.replicas += 1
    if start := command_line.direct(command, "horovodrun"):
        _gloo(draft, launcher, worker, slots, start)
        return
    framework = "horovod" if horovod and implementation == "OpenMPI" else "mpi"
    draft.framework(framework)
    if framework == "horovod":
        draft.set("horovod.controller", "MPI", "Gloo needs neither a launcher nor sshd, if the program needs no MPI.")
    elif implementation != "OpenMPI":
        draft.set("mpi.implementation", implementation)
    _set_slots(draft, framework, worker, slots)
    _use_files(draft, [launcher, worker])
    _remark_on_ssh(draft, launcher)
    program, remarks = _program(draft, launcher, worker.replicas * slots, implementation)
    pod_parts.assemble(draft, [launcher, worker])
    if program:
        draft.set("command", program)
    for text in remarks:
        draft.comment(("spec", "command") if program else ("spec", "roles", "launcher", "command"), text)
    if launcher_is_node:
        text = "One worker more: the launcher, which held ranks of its own, only starts them here."
        draft.comment(("spec", "roles", "worker"), text)


_VOLUMES = {"mpi-job-config": FILES_VOLUME, "ssh-auth": SSH_VOLUME, "ssh-home": SSH_VOLUME}
"""Volumes that the other operator adds, with the volumes here."""
_OPERATOR_DIR = "/etc/mpi"


def _use_files(draft: Draft, parts: list[Part]) -> None:
    """Use the files of allranks where containers mount, or commands read, files that the other operator adds."""
    for part in parts:
        spec = part.template.get("spec") or {}
        names = {volume.get("name") for volume in spec.get("volumes") or ()}
        for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
            for mount in container.get("volumeMounts") or ():
                before = str(mount.get("name"))
                if before not in names and (volume := _VOLUMES.get(before)):
                    mount["name"] = volume
                    _comment_on_volume(draft, part, container, before, volume)
        texts = [*part.command_line, *(str(variable.get("value")) for variable in part.fields.get("env") or ())]
        for file in sorted({match for text in texts for match in re.findall(rf"{_OPERATOR_DIR}/[\w.-]+", text)}):
            if file != f"{_OPERATOR_DIR}/hostfile":
                draft.remark(
                    ("spec", "roles"), f"{part.path}: {file} does not exist here: {_OPERATOR_DIR}/hostfile does."
                )


def _remark_on_ssh(draft: Draft, launcher: Part) -> None:
    """Say what a command needs that calls ssh itself, or a program that calls it."""
    line = launcher.command_line
    if command_line.launcher_of([line], "deepspeed") or any(_SSH.search(text) for text in line):
        text = (
            "Here a plain ssh reaches the workers by /etc/ssh/ssh_config.d/allranks.conf: /etc/ssh/ssh_config of the "
            "image has to include this directory, as in Debian 11, Ubuntu 20.04 and RHEL 8 and later."
        )
        draft.remark(("spec", "roles", "launcher", "command"), text)


_SSH = re.compile(r"(?<![\w./-])(ssh|scp|pdsh|parallel-ssh|clush)\s")


def _comment_on_volume(draft: Draft, part: Part, container: dict[str, Any], before: str, volume: str) -> None:
    place = f"container {container.get('name')}: the volume {before} is {volume} here"
    if volume == SSH_VOLUME:
        keys = "it has the keys as ssh-privatekey and ssh-publickey, and not as id_rsa"
        draft.remark(("spec", "roles", part.role), f"{place}: {keys}.")
    elif part.role != "launcher":
        draft.remark(("spec", "roles", part.role), f"{place}, which only the launcher has: remove the mount.")
    else:
        draft.comment(("spec", "roles", part.role), f"{place}, with the hosts file.")


def _uses_horovod(part: Part) -> bool:
    return "horovod" in " ".join([str(part.fields.get("image")), *part.command_line]).lower()


def _without_sshd(draft: Draft, worker: Part) -> None:
    """Remove the command of a worker: allranks starts sshd itself. Another command is reported as dropped."""
    line = worker.command_line
    for name in ("command", "args"):
        worker.fields.pop(name, None)
    if line and not any("sshd" in text for text in line):
        draft.drop(f"{worker.path}.spec.containers[0].command", "a worker runs sshd, which allranks starts")


def _set_slots(draft: Draft, framework: str, worker: Part, slots: int) -> None:
    if slots != max(1, gpus(worker.resources)):
        draft.set(f"{framework}.slotsPerWorker", slots)


def _program(draft: Draft, launcher: Part, ranks: int, implementation: str) -> tuple[list[str], list[str]]:
    """Return the program of a rank, and comments on the command.

    Without a program the launcher keeps its command, and starts the ranks itself: a command in the section of a
    launcher always does so.
    """
    line = launcher.command_line
    start = command_line.direct(line, "mpirun")
    if start is None:
        if command_line.launcher_of([line], "mpirun", "horovodrun", "deepspeed"):
            return [], ["This command runs once, in the launcher."]
        return [], ["This command runs once, in the launcher; it has to start the ranks itself, by mpirun."]
    asked = mpirun.request(start)
    if any(word.text == ":" for word in start.program):
        return [], ["This command runs once, in the launcher: mpirun starts several programs."]
    for option in asked.connection:
        draft.drop(f"{launcher.path}: {option}", "allranks itself determines how mpirun reaches the workers by ssh")
    removed = list(map(str, asked.set_by_allranks))
    by_entrypoint = "command" not in launcher.fields
    fits = asked.ranks in (None, str(ranks)) and start.program and not asked.unknown
    for name in ("command", "args"):
        launcher.fields.pop(name, None)
    fields = launcher.fields
    if not fits:
        gone = [option for option in asked.set_by_allranks if option.name not in ("np", "n", "allow-run-as-root")]
        gone += asked.connection
        fields["command"] = edited(line, {word: "" for option in gone for word in option.words})
        reason = (
            f"the option {asked.unknown[0].words[0].text}" if asked.unknown else f"{asked.ranks} ranks in {ranks} slots"
        )
        kept = f"mpirun stays because of {reason}: a change of replicas then needs a change of -np."
        return [], [kept, *([f"Removed: {', '.join(map(str, gone))}."] if gone else [])]
    if asked.env:
        names = {variable.get("name") for variable in fields.get("env") or ()}
        other = {"Intel": "HYDRA_", "MPICH": "I_MPI_HYDRA_"}.get(implementation, "-")
        pairs = {key: value for key, value in asked.env.items() if not key.startswith(other)}
        more = [{"name": key, "value": value} for key, value in pairs.items() if key not in names]
        fields["env"] = [*(fields.get("env") or ()), *more]
    shown = ", ".join(removed)
    text = "allranks puts mpirun before the program, with a rank for each slot, and forwards all variables."
    if by_entrypoint:
        text += " The image's entrypoint is not run."
    return [word.text for word in start.program], [f"{text} Removed: {shown}." if shown else text]


def _gloo(draft: Draft, launcher: Part, worker: Part, slots: int, start: Start) -> None:
    """Convert a job of horovodrun: the workers start their ranks themselves, without a launcher and ssh."""
    asked = mpirun.request(start)
    draft.framework("horovod")
    _set_slots(draft, "horovod", worker, slots)
    worker.fields["command"] = [word.text for word in start.program]
    worker.fields.setdefault("image", launcher.fields.get("image"))
    env = [*(launcher.fields.get("env") or ()), *(worker.fields.get("env") or ())]
    env += [{"name": key, "value": value} for key, value in asked.env.items()]
    if env:
        worker.fields["env"] = list({variable.get("name"): variable for variable in env}.values())
    if launcher.template != worker.template and launcher.template:
        draft.drop(launcher.path, "there is no launcher: what only its pod has belongs to the workers, if it is needed")
    for option in asked.unknown:
        draft.drop(f"{launcher.path}: {option}", "this option of horovodrun has no counterpart")
    pod_parts.assemble(draft, [worker])
    text = "The workers start the ranks without ssh: there is no launcher, and its resources are not needed."
    draft.comment(("spec", "roles"), text)
    if asked.set_by_allranks:
        removed = ", ".join(map(str, asked.set_by_allranks))
        draft.comment(("spec", "command"), f"Removed: horovodrun and {removed}.")
    if asked.least or asked.most:
        least, most = (int(text) if text else worker.replicas * slots for text in (asked.least, asked.most))
        bounds = {"minReplicas": max(1, least // slots), "maxReplicas": max(1, most // slots)}
        draft.set("elastic", bounds, "--min-np and --max-np were numbers of ranks; these are numbers of workers.")
    elif asked.ranks not in (None, str(worker.replicas * slots)):
        text = f"horovodrun started {asked.ranks} ranks; here every slot of every worker has one."
        draft.comment(("spec", "roles", "worker", "replicas"), text)
