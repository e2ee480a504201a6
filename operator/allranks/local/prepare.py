"""From a pod's manifest to what is executed for each of its containers, and all that stands in the way of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.core.model import Manifest
from allranks.core.topology import gpus
from allranks.local.environment import Variables, expand, loopback_defaults
from allranks.local.gpus import VISIBLE
from allranks.local.process import Command
from allranks.local.volumes import Mounts, Volumes, mounts


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """One container, ready to be executed."""

    name: str
    command: Command
    restarts: bool = False
    """An init container with restartPolicy Always: it runs beside the others and ends after them."""


@dataclass(frozen=True, slots=True)
class PodPlan:
    """One pod, ready to be executed."""

    manifest: Manifest
    init: tuple[ContainerPlan, ...]
    main: tuple[ContainerPlan, ...]
    directories: tuple[tuple[Mapping[str, Any], Path], ...]
    """Volumes to make, with their directories."""
    folders: tuple[Path, ...]
    """Sub-paths to make inside them."""
    mounted: Mapping[str, tuple[str, Path]]
    """Volume name -> (mount path, directory), for people."""
    lost_directories: tuple[str, ...]
    """Working directories that this machine does not have."""
    gpus: int | None = 0
    """How many GPUs its containers request; None if the manifest sets CUDA_VISIBLE_DEVICES itself."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What pods are prepared for."""

    environ: Mapping[str, str]
    """See `machine_environment`."""
    volumes: Volumes
    workdir: Path
    """Where a container runs that names no working directory, or one that is not here."""


def prepare(manifest: Manifest, machine: Machine) -> tuple[PodPlan | None, list[str]]:
    """The pod's plan, or every reason why it cannot run here. Touches nothing."""
    spec, pod = manifest["spec"], manifest["metadata"]["name"]
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    problems: list[str] = []
    wanted = {mount["name"] for container in containers for mount in container.get("volumeMounts") or ()}
    used = [volume for volume in spec.get("volumes") or () if volume["name"] in wanted]
    located: dict[str, Path] = {}
    for volume in used:
        where = machine.volumes.locate(pod, volume)
        if isinstance(where, str):
            problems.append(where)
            where = Path("/")  # so that the mount itself is not reported too
        located[volume["name"]] = where
    plans: dict[str, ContainerPlan] = {}
    folders: list[Path] = []
    mounted: dict[str, tuple[str, Path]] = {}
    lost: list[str] = []
    for container in containers:
        variables = Variables(manifest, container, machine.environ)
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
                f"container {container['name']} has no command: its image's entrypoint cannot be known here, so say "
                "what to run in spec.command"
            )
            continue
        env = {**machine.environ, **{name: mapping.rewrite(value) for name, value in variables.values.items()}}
        if any("\0" in text for text in (*argv, *env.values())):
            problems.append(f"container {container['name']} has a NUL character in its command or variables")
        plans[container["name"]] = ContainerPlan(
            container["name"],
            Command(argv, {**env, **loopback_defaults(env)}, directory or machine.workdir),
            restarts=container.get("restartPolicy") == "Always",
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


def arguments(container: Manifest, variables: Mapping[str, str], mapping: Mounts) -> tuple[str, ...] | None:
    """The command line; None without a command."""
    command = container.get("command") or ()
    if not command:
        return None
    given = [*command, *(container.get("args") or ())]
    argv = [mapping.rewrite(expand(str(argument), variables)) for argument in given]
    if argv[0] == "allranks":
        # The helper image's program is this installation's own.
        argv[:1] = [sys.executable, "-m", "allranks"]
    return tuple(argv)


def working_directory(container: Manifest, mapping: Mounts, workdir: Path) -> Path | None:
    """None where the wanted one is not on this machine."""
    wanted = container.get("workingDir")
    if not wanted:
        return workdir
    real = mapping.rewrite(wanted)
    # A volume's directory is made later; any other must be there.
    return Path(real) if real != wanted or Path(real).is_dir() else None
