"""Split the pod templates of roles into fields of a job's spec and the parts that stay in the templates."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allranks.authoring.convert import pod_references, security
from allranks.authoring.convert.draft import ADDED, Draft, NotConvertible, check
from allranks.core.facts.naming import TRAINER
from allranks.frameworks import FRAMEWORKS, mpirun

_LIFTED = ("image", "command", "args", "env", "resources", "workingDir")
_TOGETHER = (("image",), ("command", "args"), ("env",), ("resources",), ("workingDir",))
"""Fields that move to the job's spec if they are equal in all roles. A role's command discards the args of the spec."""


@dataclass
class Part:
    """The pods of one role."""

    role: str
    replicas: int
    template: dict[str, Any]
    """Without the lifted fields."""
    fields: dict[str, Any] = field(default_factory=dict)
    """The fields that can move to the spec of the job."""
    path: str = ""
    """The template's path in the source."""
    ports: dict[str, int] = field(default_factory=dict)
    """Name -> number of each port on which the other operator connects ranks."""
    comments: list[str] = field(default_factory=list)
    """On the template."""

    def trainer(self) -> dict[str, Any]:
        """Return the training container of the template, which is added if it has none."""
        listed = self.template.setdefault("spec", {}).setdefault("containers", [])
        for container in listed:
            if container["name"] == TRAINER:
                match: dict[str, Any] = container
                return match
        listed.insert(0, {"name": TRAINER})
        first: dict[str, Any] = listed[0]
        return first

    @property
    def command_line(self) -> list[str]:
        return [str(text) for name in ("command", "args") for text in self.fields.get(name) or () if text is not None]

    def set_command_line(self, line: Sequence[str], removed: Iterable[int] = ()) -> None:
        """Replace command and args by a line without the words of `removed`, which are indices in the line before."""
        before = len(self.fields.get("command") or ())
        kept = before - sum(index < before for index in removed)
        args = bool(self.fields.get("args"))
        parts = {"command": list(line[:kept]) if args else list(line), "args": list(line[kept:]) if args else []}
        for name, words in parts.items():
            if words:
                self.fields[name] = words
            else:
                self.fields.pop(name, None)

    @property
    def resources(self) -> Mapping[str, Any]:
        resources: Mapping[str, Any] = self.fields.get("resources") or {}
        return resources


def read(
    role: str, replicas: int, template: Any, path: str, containers: Sequence[str] = (), ports: Iterable[str] = ()
) -> Part:
    """Return the part of a role. Raises InvalidManifest.

    `containers`: possible names of the training container; without one of these names it is the first container.
    `ports`: names of its ports that only the other operator uses.
    """
    check(template, "PodTemplateSpec", path)
    pod: dict[str, Any] = copy.deepcopy(template) if isinstance(template, dict) else {}
    labels = (pod.get("metadata") or {}).get("labels") or {}
    for name in ADDED & labels.keys():
        del labels[name]
    spec = pod.setdefault("spec", {})
    listed = spec.get("containers") if isinstance(spec, dict) else None
    if not isinstance(listed, list) or not all(isinstance(container, dict) for container in listed) or not listed:
        raise NotConvertible(f"{path}.spec.containers", "a container is needed")
    spec.pop("restartPolicy", None)  # the operators replace it
    _remove_defaults(spec)
    trainer = next((container for container in listed if container.get("name") in containers), listed[0])
    fields = {name: trainer.pop(name) for name in _LIFTED if name in trainer}
    fields = {name: value for name, value in fields.items() if value not in (None, [], {}, "")}
    own_ports = {
        port["name"]: port["containerPort"] for port in trainer.get("ports") or () if port.get("name") in ports
    }
    if own_ports:
        trainer["ports"] = [port for port in trainer["ports"] if port.get("name") not in own_ports]
    comments = [_renamed(item) for item in _others(spec, trainer) if item.get("name") == TRAINER]
    trainer["name"] = TRAINER
    spec["containers"] = [item for item in listed if item is not trainer or len(_without_empty(item)) > 1]
    return Part(role, replicas, _without_empty(pod), fields, path, own_ports, comments)


def _others(spec: Mapping[str, Any], trainer: object) -> list[dict[str, Any]]:
    listed = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    return [item for item in listed if isinstance(item, dict) and item is not trainer]


def _renamed(container: dict[str, Any]) -> str:
    """Give another name to a container that has the name of the training container. Return the comment."""
    container["name"] = f"{TRAINER}-sidecar"
    return f"The container {TRAINER} is now {container['name']}: {TRAINER} is the name of the training container."


_POD_DEFAULTS = {
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationGracePeriodSeconds": 30,
    "securityContext": {},
}
_CONTAINER_DEFAULTS = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}


def _remove_defaults(spec: dict[str, Any]) -> None:
    """Remove the defaults that the API server adds to the pod template of a Job.

    A written default would replace the default of allranks, which for example sets the terminationMessagePolicy that
    keeps the end of the log of a failed rank.
    """
    for name, value in _POD_DEFAULTS.items():
        if spec.get(name) == value:
            del spec[name]
    for container in (*spec.get("containers", ()), *(spec.get("initContainers") or ())):
        for name, value in _CONTAINER_DEFAULTS.items():
            if container.get(name) == value:
                del container[name]
        image = str(container.get("image")).rpartition("/")[2]
        latest = "@" not in image and (":" not in image or image.endswith(":latest"))
        if container.get("imagePullPolicy") == ("Always" if latest else "IfNotPresent"):
            del container["imagePullPolicy"]


def assemble(draft: Draft, parts: Sequence[Part]) -> None:
    """Set image, command, args, env, resources, workingDir, roles and template of the spec."""
    framework = FRAMEWORKS[draft.spec["framework"]]
    reserved = framework.reserved_env | (mpirun.CONNECTION if framework.name in ("mpi", "horovod") else frozenset())
    for part in parts:
        _remove_variables(draft, part, reserved)
        _mount_token(part)
        pod_references.replace(draft, part.path, [part.template, part.fields])
        variables = [str(variable.get("value", "")) for variable in part.fields.get("env") or ()]
        pod_references.report_hosts(draft, part.path, [*part.command_line, *variables])
        _move_claims(part)
        _move_long_lines(part)
        security.complete(draft, part.path, part.template)
    roles: dict[str, Any] = {part.role: {"replicas": part.replicas} for part in parts}
    for names in _TOGETHER:
        values = [{name: part.fields[name] for name in names if name in part.fields} for part in parts]
        if all(value == values[0] for value in values):
            for name, value in values[0].items():
                draft.set(name, value)
        else:
            for part, value in zip(parts, values, strict=True):
                roles[part.role] |= value
    templates = [part.template for part in parts]
    if all(template == templates[0] for template in templates):
        if templates[0]:
            draft.set("template", templates[0])
    else:
        for part in parts:
            roles[part.role] |= {"template": part.template} if part.template else {}
    draft.set("roles", roles)


def _remove_variables(draft: Draft, part: Part, reserved: frozenset[str]) -> None:
    kept = []
    for variable in part.fields.get("env") or ():
        name = variable.get("name", "") if isinstance(variable, dict) else ""
        if name in reserved or name.startswith("ALLRANKS_"):
            draft.drop(f"{part.path}.spec.containers[{TRAINER}].env[{name}]", "allranks sets this variable")
        else:
            kept.append(variable)
    if "env" in part.fields:
        part.fields["env"] = kept
        if not kept:
            del part.fields["env"]


def _mount_token(part: Part) -> None:
    """Request the token of a service account: Kubernetes mounts it by default, allranks does not."""
    spec = part.template.get("spec") or {}
    if spec.get("serviceAccountName") or spec.get("serviceAccount"):
        spec.setdefault("automountServiceAccountToken", True)


def _move_claims(part: Part) -> None:
    """Move `resources.claims` to the template, where the fields of a job have none."""
    resources = dict(part.resources)
    if claims := resources.pop("claims", None):
        part.trainer()["resources"] = {"claims": claims}
        part.fields["resources"] = resources
        if not resources:
            del part.fields["resources"]


_LONGEST, _MOST = 8192, 256


def _move_long_lines(part: Part) -> None:
    """Move a command or variables to the template if they are longer than the fields of a job."""
    for names in (("command", "args"), ("env",)):
        values = {name: part.fields[name] for name in names if part.fields.get(name)}
        texts = [
            text.get("value", "") if isinstance(text, dict) else text for value in values.values() for text in value
        ]
        if any(len(value) > _MOST for value in values.values()) or any(len(str(text)) > _LONGEST for text in texts):
            part.trainer().update(values)
            for name in values:
                del part.fields[name]
            part.comments.append(f"A field of the job would be too short for {' and '.join(values)}.")


def _comment(draft: Draft, parts: Sequence[Part]) -> None:
    for part in parts:
        place = ("spec", "template") if "template" in draft.spec else ("spec", "roles", part.role, "template")
        for text in part.comments:
            draft.comment(place, text)


def _without_empty(value: Any) -> Any:
    """Return the value without null and without empty parts; `emptyDir: {}` and similar maps stay."""
    if isinstance(value, dict):
        inner = {key: item if item == {} else _without_empty(item) for key, item in value.items()}
        return {
            key: item
            for key, item in inner.items()
            if item is not None
            and not (key in ("containers", "ports", "metadata", "labels", "spec") and not item)
            and key != "creationTimestamp"
        }
    return [_without_empty(item) for item in value] if isinstance(value, list) else value
