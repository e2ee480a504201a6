"""Turns a pod manifest into the commands to execute, or into the list of reasons why it cannot run here."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.core.facts.gpu_count import gpus
from allranks.core.facts.model import Manifest
from allranks.frameworks.command_line import PACKAGES
from allranks.local.environment import Variables, expand, hash_seed_default, loopback_defaults, threads_default
from allranks.local.gpus import VISIBLE
from allranks.local.process import Command
from allranks.local.volumes import Mounts, Volumes, mounts


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """One container, ready to be executed."""

    name: str
    command: Command
    restarts: bool = False
    """A sidecar: an init container with restartPolicy Always, which ends after the main containers."""
    policy: str | None = None
    """The container's own restartPolicy, which takes precedence over the pod's."""


@dataclass(frozen=True, slots=True)
class PodPlan:
    """One pod, ready to be executed."""

    manifest: Manifest
    init: tuple[ContainerPlan, ...]
    main: tuple[ContainerPlan, ...]
    directories: tuple[tuple[Mapping[str, Any], Path], ...]
    """Volumes to create, with their directories."""
    folders: tuple[Path, ...]
    """Sub-paths to create in these directories."""
    mounted: Mapping[str, tuple[str, Path]]
    """Volume name -> (mount path, directory), for messages."""
    lost_directories: tuple[str, ...]
    """Working directories that this machine does not have."""
    gpus: int | None = 0
    """Number of GPUs that its containers request; None if the manifest sets CUDA_VISIBLE_DEVICES itself."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that pods are prepared for."""

    environ: Mapping[str, str]
    """See `machine_environment`."""
    volumes: Volumes
    workdir: Path
    """Working directory of containers that name none, or one that does not exist here."""
    ranks: int = 1
    """Number of ranks that share its CPUs."""


def prepare(manifest: Manifest, machine: Machine) -> tuple[PodPlan | None, list[str]]:
    """Return the pod's plan, or all reasons why it cannot run here. Change nothing on disk."""
    spec, pod = manifest["spec"], manifest["metadata"]["name"]
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    problems: list[str] = []
    needed = {mount["name"] for container in containers for mount in container.get("volumeMounts") or ()}
    used = [volume for volume in spec.get("volumes") or () if volume["name"] in needed]
    located: dict[str, Path] = {}
    for volume in used:
        where = machine.volumes.locate(pod, volume)
        if isinstance(where, str):
            problems.append(where)
            where = Path("/")  # avoids a second message about the mount
        located[volume["name"]] = where
    plans: dict[str, ContainerPlan] = {}
    folders: list[Path] = []
    mounted: dict[str, tuple[str, Path]] = {}
    lost: list[str] = []
    for container in containers:
        variables = Variables(manifest, container, machine.environ, machine.volumes.config_maps)
        mapping, wrong = mounts(container, located, variables.values)
        problems += variables.problems + wrong
        folders += [path for path in mapping.directories.values() if path not in located.values()]
        for mount in container.get("volumeMounts") or ():
            path = os.path.normpath(mount["mountPath"])
            if path in mapping.directories:
                mounted.setdefault(mount["name"], (path, mapping.directories[path]))
        directory = working_directory(container, mapping, machine.workdir)
        if directory is None:
            lost.append(container["workingDir"])
        argv = arguments(container, variables.values, mapping)
        if argv is None:
            problems.append(
                f"container {container['name']} has no command, and its image's entrypoint is not available here: set "
                "spec.command"
            )
            continue
        env = {**machine.environ, **{name: mapping.rewrite(value) for name, value in variables.values.items()}}
        if any("\0" in text for text in (*argv, *env.values())):
            problems.append(f"container {container['name']} has a NUL character in its command or variables")
        problems += _missing_launcher(argv[0], env)
        plans[container["name"]] = ContainerPlan(
            container["name"],
            Command(argv, {**env, **_defaults(env, machine)}, directory or machine.workdir),
            restarts=container.get("restartPolicy") == "Always",
            policy=container.get("restartPolicy"),
        )
    chosen = any(v["name"] == VISIBLE for container in spec["containers"] for v in container.get("env") or ())
    if problems:
        return None, list(dict.fromkeys(problems))
    return PodPlan(
        manifest,
        init=tuple(plans[container["name"]] for container in spec.get("initContainers") or ()),
        main=tuple(plans[container["name"]] for container in spec["containers"]),
        directories=tuple((volume, located[volume["name"]]) for volume in used),
        folders=tuple(folders),
        mounted=mounted,
        lost_directories=tuple(lost),
        gpus=None if chosen else sum(gpus(container.get("resources")) for container in spec["containers"]),
    ), []


def _missing_launcher(program: str, env: Mapping[str, str]) -> list[str]:
    """Return the problem of a launcher that is not installed: its package, whose program would fail after the start."""
    package = PACKAGES.get(program)
    if package is None or shutil.which(program, path=env.get("PATH")):
        return []
    cure = f"pip install {package}" if " " not in package else f"install {package}"
    return [f"{program} is not on PATH of this machine: activate the environment that has it, or {cure}"]


def _defaults(env: Mapping[str, str], machine: Machine) -> dict[str, str]:
    return loopback_defaults(env) | hash_seed_default(env) | threads_default(env, machine.ranks)


def arguments(container: Manifest, variables: Mapping[str, str], mapping: Mounts) -> tuple[str, ...] | None:
    """Return the command line; None if the manifest has no command."""
    command = container.get("command") or ()
    if not command:
        return None
    words = [*command, *(container.get("args") or ())]
    argv = [mapping.rewrite(expand(str(argument), variables)) for argument in words]
    if argv[0] == "allranks":
        # In the helper image this is the operator's program. Here it is this installation.
        argv[:1] = [sys.executable, "-m", "allranks"]
    return tuple(argv)


def working_directory(container: Manifest, mapping: Mounts, workdir: Path) -> Path | None:
    """Return None if the directory in the manifest does not exist on this machine."""
    path = container.get("workingDir")
    if not path:
        return workdir
    real = mapping.rewrite(path)
    # The directory of a volume is created later. Any other must exist.
    return Path(real) if real != path or Path(real).is_dir() else None
