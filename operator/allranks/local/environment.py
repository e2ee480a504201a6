"""The environment of a container: the user's own without the variables of other jobs, then the manifest's."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from allranks.core.facts import naming
from allranks.core.facts.model import Manifest
from allranks.core.facts.quantity import quantity
from allranks.frameworks import FRAMEWORKS

_OTHER_LAUNCHERS = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"),
    "SLURM_STEP_",
    "ALLRANKS_",
)
_WIRING = (
    *_OTHER_LAUNCHERS,
    *sorted({name for framework in FRAMEWORKS.values() for name in (*framework.reserved_env, *framework.launcher_env)}),
)
"""Variables by which a rank finds its peers, of all launchers. A name that ends in `_` is a prefix."""
_WIRING_NAMES = frozenset(name for name in _WIRING if not name.endswith("_"))
_WIRING_PREFIXES = tuple(name for name in _WIRING if name.endswith("_"))
_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY")
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_REFERENCE = re.compile(r"\$(\$)?\(([^()\s]*)\)")


def machine_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that every process inherits. Rank variables of another job around this terminal are
    dropped."""
    env = {
        name: value
        for name, value in environ.items()
        if name not in _WIRING_NAMES and not name.startswith(_WIRING_PREFIXES)
    }
    # `.venv/bin/allranks run` without an activated environment still finds that environment's torchrun and python.
    folder = str(Path(sys.executable).parent)
    path = env.get("PATH") or os.defpath
    if folder not in path.split(os.pathsep):
        path += os.pathsep + folder
    return {**env, "PATH": path}


def loopback_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """Return defaults for variables that ranks on one machine need and `environ` does not set.

    All ranks listen on 127.0.0.1, but gloo and NCCL use the interface that the host name resolves to; a laptop may have
    none, or it may change. And gRPC would send TensorFlow's traffic for 127.0.0.1 to a proxy.
    """
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
    defaults = {name: _LOOPBACK for name in names if name not in environ}
    if any(name in environ for name in _PROXIES):
        for name in ("no_proxy", "NO_PROXY"):
            defaults[name] = ",".join(filter(None, (environ.get(name), "localhost", "127.0.0.1")))
    return defaults


def hash_seed_default(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the seed of Python's hashes, the same in all ranks of a job, if `environ` sets none."""
    uid = environ.get("ALLRANKS_JOB_UID")
    return {} if uid is None or "PYTHONHASHSEED" in environ else {"PYTHONHASHSEED": naming.hash_seed(uid)}


def threads_default(environ: Mapping[str, str], ranks: int) -> dict[str, str]:
    """Return the threads of each of several ranks on this machine, if `environ` sets none. Otherwise each rank starts
    one for every CPU."""
    if ranks < 2 or "ALLRANKS_JOB_UID" not in environ or "OMP_NUM_THREADS" in environ:
        return {}
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(max(1, cpus // ranks))}


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand Kubernetes' `$(NAME)`. `$$(NAME)` becomes `$(NAME)`; a reference to an undefined variable stays."""

    def value_of(match: re.Match[str]) -> str:
        escaped, name = match.groups()
        return f"$({name})" if escaped else variables.get(name, match.group())

    return _REFERENCE.sub(value_of, text)


class Variables:
    """The variables of one container's manifest, resolved in order."""

    def __init__(
        self,
        pod: Manifest,
        container: Manifest,
        machine: Mapping[str, str],
        config_maps: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        """Collect the variables. `config_maps`: name -> data of the ConfigMaps that the job itself creates."""
        self.values: dict[str, str] = {}
        self.problems: list[str] = []
        self._pod = pod
        self._container = container
        self._config_maps = config_maps
        for variable in container.get("env") or ():
            name = variable["name"]
            if "valueFrom" in variable:
                value = self._value_from(name, variable["valueFrom"] or {}, machine)
                if value is not None:
                    self.values[name] = value
            else:
                self.values[name] = expand(str(variable.get("value") or ""), self.values)

    def _value_from(self, name: str, source: Mapping[str, Any], machine: Mapping[str, str]) -> str | None:
        if "fieldRef" in source:
            path = source["fieldRef"].get("fieldPath", "")
            value = field_value(self._pod, path)
            if value is None:
                self.problems.append(f"{name}: the field {path} has no value on this machine; give {name} a value")
            return value
        reference = source.get("configMapKeyRef") or {}
        created = self._config_maps.get(reference.get("name", ""), {}).get(reference.get("key", ""))
        if created is not None:
            return created
        if "resourceFieldRef" in source:
            return self._resource(name, source["resourceFieldRef"])
        for kind, word in (("secretKeyRef", "secret"), ("configMapKeyRef", "config map")):
            if kind in source:
                if name in machine:
                    return machine[name]
                if not source[kind].get("optional"):
                    self.problems.append(
                        f"{name} comes from {word} {source[kind].get('name')}, which is not on this machine: "
                        f"export {name} before allranks run"
                    )
                return None
        self.problems.append(f"{name}: valueFrom {', '.join(source)} is not supported on this machine")
        return None

    def _resource(self, name: str, reference: Mapping[str, Any]) -> str | None:
        kind, _, resource = str(reference.get("resource", "")).partition(".")
        containers = self._pod["spec"].get("containers", [])
        container_name = reference.get("containerName")
        container = next((c for c in containers if c.get("name") == container_name), self._container)
        resources = container.get("resources") or {}
        amount = (resources.get(kind) or resources.get("limits") or {}).get(resource)
        if amount is None and resource == "cpu":
            amount = os.cpu_count() or 1
        if amount is None and resource == "memory":
            amount = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        try:
            return str(math.ceil(quantity(str(amount)) / quantity(str(reference.get("divisor") or 1))))
        except (ValueError, ZeroDivisionError):
            self.problems.append(
                f"{name}: resource {reference.get('resource')} has no amount here; give {name} a value"
            )
            return None


def field_value(pod: Manifest, path: str) -> str | None:
    """Return a field of the downward API; None if it does not exist."""
    metadata = pod["metadata"]
    if keyed := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return str((metadata.get(keyed[1]) or {}).get(keyed[2], ""))
    host = "127.0.0.1"
    return {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata.get("namespace", "default"),
        "metadata.uid": metadata.get("uid", ""),
        "spec.nodeName": os.uname().nodename,
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        "status.podIP": host,
        "status.podIPs": host,
        "status.hostIP": host,
        "status.hostIPs": host,
    }.get(path)
