"""The pods of a converted job, as the operator creates them."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from allranks.authoring.manifests import load_documents
from allranks.cli.commands.render import rendered

Pods = dict[tuple[str, int], dict[str, Any]]


class Rendered:
    """The objects of the first attempt of a job. Raises InvalidManifests if `allranks validate` refuses it."""

    def __init__(self, text: str) -> None:
        documents = [one for one in yaml.safe_load_all(text) if one.get("kind") == "DistributedTraining"]
        [self.job] = load_documents([("job.yaml", one) for one in documents]).jobs
        objects = rendered(self.job)
        self.config_maps = {one["metadata"]["name"]: one["data"] for one in objects if one["kind"] == "ConfigMap"}
        self.pods: Pods = {}
        for pod in (one for one in objects if one["kind"] == "Pod"):
            labels = pod["metadata"]["labels"]
            self.pods[labels["allranks.dev/role"], int(labels["allranks.dev/index"])] = pod

    def trainer(self, role: str, index: int) -> dict[str, Any]:
        found: dict[str, Any] = next(
            one for one in self.pods[role, index]["spec"]["containers"] if one["name"] == "trainer"
        )
        return found

    def env(self, role: str, index: int) -> dict[str, str]:
        """The variables, with `$(NAME)` expanded as by the kubelet."""
        out: dict[str, str] = {}
        for variable in self.trainer(role, index)["env"]:
            value = variable.get("value", "")
            if reference := (variable.get("valueFrom") or {}).get("configMapKeyRef"):
                value = self.config_maps[reference["name"]][reference["key"]]
            out[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: out.get(name[1], name[0]), str(value))
        return out

    def tf_config(self, role: str, index: int) -> tuple[dict[str, list[str]], str, int]:
        """(type -> `type-index` of its tasks, type, index) of a task."""
        config = json.loads(self.env(role, index)["TF_CONFIG"])
        hosts = {kind: [self._task(host) for host in hosts] for kind, hosts in config["cluster"].items()}
        return hosts, config["task"]["type"], config["task"]["index"]

    def hostfile(self) -> list[tuple[str, int]]:
        """(`role-index`, slots) of each line of mpirun's hosts file."""
        [data] = [data for data in self.config_maps.values() if "hostfile" in data]
        lines = [re.fullmatch(r"(\S+?)(?: slots=|:)(\d+)", line) for line in data["hostfile"].splitlines()]
        return [(self._task(line[1]), int(line[2])) for line in lines if line]

    def _task(self, host: str) -> str:
        """`role-index` of `job-role-index-attempt.job.namespace.svc:port`."""
        found = re.fullmatch(rf"{self.job.name}-(\w+-\d+)-\d+\..*", host)
        assert found, host
        return found[1]
