"""Runs scenario files, which are steps of {change, expect}, in any world.

`docs/dev/scenarios.md` describes the format. A world is the simulated cluster, or a real API server with a simulated
kubelet.
"""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from allranks.api.job import API_VERSION, KIND
from support.simulator import pod_status

Manifest = dict[str, Any]

JOB = "demo"
"""The name of every scenario's job."""


class Refused(Exception):
    """The API server rejected a change; `str()` is its message."""


class Unsupported(Exception):
    """This world cannot play the scenario."""


class World(ABC):
    """A cluster with one job, and all changes and observations that scenarios need. Pods have their full names."""

    namespace: str = "default"

    @abstractmethod
    def create(self, manifest: Manifest) -> None:
        """Creates a job or an unrelated object. Raises Refused."""

    @abstractmethod
    def patch_job(self, change: Manifest) -> None:
        """A merge patch of the whole object. Raises Refused."""

    @abstractmethod
    def delete_job(self, foreground: bool) -> None: ...

    def pool_name(self, name: str) -> str:
        """The name of the scenario's TrainingPool here. Pools are cluster-scoped: a world that shares its API server
        with others extends the name (`gpu` becomes `gpu-ns-7`)."""
        return name

    @abstractmethod
    def apply_pool(self, name: str, spec: Manifest) -> None:
        """Creates the TrainingPool, or replaces its whole spec. Raises Refused.

        `name` is the result of `pool_name`, here and in the job's `pool`. Closing a world deletes its pools, so that
        the next scenario does not find them.
        """

    @abstractmethod
    def delete_pool(self, name: str) -> None:
        """Raises Refused when there is none."""

    def kueue(self, installed: bool) -> None:
        """Installs Kueue's API, or removes it with all its objects. Raises Unsupported."""
        raise Unsupported("Kueue's API")

    def cluster_name(self, name: str) -> str:
        """The name of a cluster-scoped object of the scenario here, as `pool_name`."""
        return name

    def apply(self, manifest: Manifest) -> None:
        """Creates one of Kueue's objects, or replaces it. Raises Refused."""
        raise Unsupported("Kueue's API")

    def workload(self) -> Manifest | None:
        """The Workload that the job controls."""
        found = (each for each in self.objects() if each["kind"] == "Workload")
        return next((each for each in found if "deletionTimestamp" not in each["metadata"]), None)

    def change_workload(self, spec: Manifest, status: Manifest) -> None:
        """Merge patches of the Workload's spec and status, as Kueue and its users write them."""
        raise Unsupported("Kueue's API")

    def delete_workload(self) -> None:
        raise Unsupported("Kueue's API")

    @abstractmethod
    def delete_pod(self, pod: str, force: bool) -> None: ...

    @abstractmethod
    def quota(self, kind: str, limit: int | None) -> None:
        """Maximum number of objects of that kind; None: no limit."""

    @abstractmethod
    def run(self, pod: str, node: str) -> None:
        """Binds the pod to that node and starts its containers."""

    @abstractmethod
    def end(self, pod: str, code: int, reason: str, message: str, container: str, others: int | None) -> None:
        """Ends a container, and the others with code `others`; None: they continue."""

    @abstractmethod
    def wait(self, pod: str, reason: str, message: str, container: str) -> None:
        """Binds the pod; a container waits with a reason such as `ImagePullBackOff`."""

    @abstractmethod
    def initialize(self, pod: str, container: str) -> None:
        """Binds the pod; an init container runs."""

    @abstractmethod
    def unmount(self, pod: str) -> None:
        """Binds the pod; its volumes cannot be mounted."""

    @abstractmethod
    def cannot_place(self, pod: str, message: str) -> None:
        """The scheduler finds no node for the pod."""

    @abstractmethod
    def fail_init(self, pod: str, code: int, message: str) -> None:
        """An init container fails before the program runs."""

    @abstractmethod
    def evict(self, pod: str) -> None:
        """The kubelet evicts the pod because a resource of the node is exhausted; it remains as Failed."""

    @abstractmethod
    def kubelet(self, pod: str, node: str, status: Callable[[Manifest, datetime], Manifest]) -> None:
        """Binds the pod unless it has a node, and its kubelet reports this status (a function of `pod_status`)."""

    @abstractmethod
    def disrupt(self, pod: str, reason: str) -> None:
        """Sets the DisruptionTarget condition with that reason and deletes the pod with its grace period."""

    @abstractmethod
    def lose_node(self, node: str) -> None:
        """The node stops responding: the taint manager deletes its pods, but they stay Terminating."""

    @abstractmethod
    def recover_node(self, node: str) -> None: ...

    @abstractmethod
    def remove_node(self, node: str) -> None:
        """Deletes the node: the pod garbage collector deletes its pods."""

    @abstractmethod
    def report(self, pod: str, **said: Any) -> None:
        """The pod's rank reports: step, total_steps, checkpoint, rank, step_seconds, busy_seconds, waiting, not_finite,
        saves_on_request, handled (the request for a checkpoint)."""

    @abstractmethod
    def report_outage(self, begins: bool) -> None:
        """No report reaches the operator from now on, or all do again."""

    @abstractmethod
    def asked_for_stacks(self) -> int:
        """Number of stack dumps that were requested from ranks."""

    @abstractmethod
    def asked_for_checkpoint(self) -> bool:
        """Whether the answer to the next report asks for a checkpoint."""

    @abstractmethod
    def fail(self, pod: str, code: int, signal: int | None, message: str) -> None:
        """The program of the pod fails, and its supervisor waits."""

    @abstractmethod
    def supervisor(self, pod: str, fault: str) -> None:
        """The supervisor of the pod begins with a fault, or behaves again (empty)."""

    @abstractmethod
    def process(self, pod: str) -> str:
        """State and attempt of the process in the pod: `Running 1`, and the number of its restarts alone in this pod:
        `Running 1 2`; empty without a supervisor."""

    @abstractmethod
    def advance(self, seconds: float) -> None: ...

    @abstractmethod
    def stop_operator(self) -> None: ...

    @abstractmethod
    def start_operator(self) -> None:
        """Starts an operator with empty caches."""

    @abstractmethod
    def job(self) -> Manifest | None: ...

    @abstractmethod
    def objects(self) -> list[Manifest]:
        """All other objects in the namespace."""

    @abstractmethod
    def events(self) -> list[tuple[str, str]]:
        """(reason, message) of the Events on the job, oldest first."""

    @abstractmethod
    def eventually(self, differences: Callable[[], list[str]]) -> list[str]:
        """Waits until there are no differences and nothing is pending, or until a timeout. Returns the differences."""


@dataclass(frozen=True)
class Step:
    change: list[Manifest]
    expect: Manifest


@dataclass(frozen=True)
class Scenario:
    """One document of a scenario file."""

    name: str
    """A sentence of the semantics."""
    case: str
    """The case of this rule."""
    spec: Manifest
    before: list[Manifest]
    """Changes before the creation of the job."""
    steps: list[Step]
    rules: list[str] | None = None
    """The rules of the core that decide in it. With this key, it runs on an API server for each change."""

    def manifest(self, world: World) -> Manifest:
        """The manifest of the job in that world."""
        defaults = {"image": "example.org/train:1", "command": ["python", "train.py"]}
        parts = [copy.deepcopy(defaults | self.spec)]
        parts += [role for role in parts[0]["roles"].values() if isinstance(role, dict)]
        for part in parts:
            if "pool" in part:
                part["pool"] = world.pool_name(part["pool"])
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": JOB},
            "spec": parts[0],
        }


def load(path: Path) -> Iterator[Scenario]:
    """The scenarios of one file."""
    for document in yaml.safe_load_all(path.read_text()):
        unknown = set(document) - {"name", "case", "rules", "job", "before", "steps"}
        assert not unknown, f"{path.name}: unknown keys {sorted(unknown)}"
        steps = [Step(step.get("change", []), step.get("expect", {})) for step in document["steps"]]
        name, case, before = document["name"].strip(), document.get("case", ""), document.get("before", [])
        yield Scenario(name, case, document["job"], before, steps, document.get("rules"))


def run(scenario: Scenario, world: World, *, events: bool = True) -> None:
    """Raises AssertionError with the differences and the step.

    Without `events` they are not checked: a killed operator may have lost some.
    """
    refusals: list[str] = []
    first: dict[str, str] = {}
    """Pod name -> UID of the first pod that had it."""
    for change in [*scenario.before, {"create": scenario.manifest(world)}]:
        _change(world, change, refusals)
    for number, step in enumerate(scenario.steps):
        refusals.clear()
        for change in step.change:
            for pod in _pods(world):
                first.setdefault(pod["metadata"]["name"], pod["metadata"]["uid"])
            _change(world, {"create": scenario.manifest(world)} if "create_job" in change else change, refusals)
        expect = step.expect if events else {k: v for k, v in step.expect.items() if k not in ("events", "messages")}
        found = world.eventually(lambda expect=expect: list(_differences(expect, world, refusals, first)))
        if found:
            status = (world.job() or {}).get("status")
            there = {p["metadata"]["name"]: p["status"]["phase"] for p in _pods(world)}
            listed = "\n  ".join(found)
            raise AssertionError(
                f"{scenario.name} {scenario.case}\nstep {number}, after {step.change}:\n  {listed}\n"
                f"status: {status}\npods: {there}\nevents: {world.events()}"
            )


def _change(world: World, change: Manifest, refusals: list[str]) -> None:
    ((what, how),) = change.items()
    try:
        _CHANGES[what](world, how)
    except Refused as refusal:
        refusals.append(str(refusal))


def _run(world: World, pods: str | list[str]) -> None:
    wanted = [p["metadata"]["name"] for p in _pods(world) if _is_pending(p)] if pods == "all" else pods
    for pod in wanted:
        world.run(pod, node_of(pod))


def _exit(world: World, how: Manifest) -> None:
    how = {"reason": "", "message": "", "container": "trainer", "others": 0} | how
    pod, signal = how.pop("pod"), how.pop("signal", None)
    code = 128 + signal if signal else how.pop("code")
    world.end(pod, code, **how)


def _fail(world: World, pod: str, code: int = 0, signal: int | None = None, message: str = "") -> None:
    world.fail(pod, 128 + signal if signal else code, signal, message)


def _pod(how: Manifest) -> Manifest:
    """An unrelated pod with arbitrary labels."""
    metadata = {"name": how["name"], "labels": how.get("labels", {})}
    spec = {"containers": [{"name": "trainer", "image": "example.org/other:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _other_job(how: Manifest) -> Manifest:
    """Another job of the same namespace."""
    spec = {"image": "example.org/train:1", "command": ["python", "train.py"], **how["spec"]}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": how["name"]}, "spec": spec}


def _service(how: Manifest) -> Manifest:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": how["name"]}, "spec": {"clusterIP": "None"}}


def _secret(how: Manifest) -> Manifest:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": how["name"]}}


def _local_queue(name: str) -> Manifest:
    metadata, spec = {"name": name}, {"clusterQueue": "all"}
    return {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": metadata, "spec": spec}


def _flavor(world: World, how: Manifest) -> Manifest:
    metadata = {"name": world.cluster_name(how["name"])}
    spec = {key: value for key, value in how.items() if key != "name"}
    return {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": metadata, "spec": spec}


def _admit(world: World, how: Manifest) -> None:
    """Kueue reserves quota and admits the Workload: `counts` for fewer pods than it asks for."""
    workload = world.workload()
    assert workload, "there is no Workload to admit"
    flavor = world.cluster_name(how.get("flavor", "default"))
    counts = how.get("counts", {})
    assigned = [
        {
            "name": each["name"],
            "flavors": {"cpu": flavor},
            "resourceUsage": {},
            "count": counts.get(each["name"], each["count"]),
        }
        for each in workload["spec"]["podSets"]
    ]
    status: Manifest = {"admission": {"clusterQueue": "all", "podSetAssignments": assigned}}
    if "updates" in how:
        updates = [{"name": name, **update} for name, update in how["updates"].items()]
        check = {"name": "provision", "state": "Ready", "message": "", "lastTransitionTime": NEVER}
        status["admissionChecks"] = [check | {"podSetUpdates": updates}]
    conditions = {"QuotaReserved": ("True", "QuotaReserved", "quota reserved")}
    if how.get("checks") != "pending":
        conditions["Admitted"] = ("True", "Admitted", "admitted")
    else:
        status["admissionChecks"] = [
            {"name": "provision", "state": "Pending", "message": "looks for nodes", "lastTransitionTime": NEVER}
        ]
    if "Evicted" in _conditions(workload):
        conditions["Evicted"] = ("False", "QuotaReserved", "quota reserved again")
    world.change_workload({}, status | {"conditions": _with(workload, conditions)})


def _evict_workload(world: World, how: Manifest) -> None:
    workload = world.workload()
    assert workload, "there is no Workload to evict"
    spec = {"active": False} if how["reason"] == "Deactivated" else {}
    conditions = {"Evicted": ("True", how["reason"], how.get("message", "another job needs the quota"))}
    world.change_workload(spec, {"conditions": _with(workload, conditions)})


def _decline(world: World, message: str) -> None:
    """Kueue considered the Workload, and there is no quota."""
    workload = world.workload()
    assert workload, "there is no Workload"
    conditions = {"QuotaReserved": ("False", "Pending", message)}
    world.change_workload({}, {"conditions": _with(workload, conditions)})


def _conditions(workload: Manifest) -> dict[str, Manifest]:
    return {each["type"]: each for each in workload.get("status", {}).get("conditions", ())}


def _with(workload: Manifest, changes: Mapping[str, tuple[str, str, str]]) -> list[Manifest]:
    made = {
        kind: {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": NEVER}
        for kind, (status, reason, message) in changes.items()
    }
    return list((_conditions(workload) | made).values())


KUEUE = "kueue.x-k8s.io/v1beta2"
NEVER = "2026-01-01T00:00:00Z"

_CHANGES: Mapping[str, Callable[[World, Any], None]] = {
    "create": lambda w, how: w.create(how),
    "other_job": lambda w, how: w.create(_other_job(how)),
    "foreign_pod": lambda w, how: w.create(_pod(how)),
    "foreign_service": lambda w, how: w.create(_service(how)),
    "foreign_secret": lambda w, how: w.create(_secret(how)),
    "patch": lambda w, how: w.patch_job({"spec": how}),
    "annotate": lambda w, how: w.patch_job({"metadata": {"annotations": how}}),
    "delete_job": lambda w, how: w.delete_job(foreground=how == "foreground"),
    "pool": lambda w, how: w.apply_pool(w.pool_name(how["name"]), how.get("spec", {})),
    "delete_pool": lambda w, how: w.delete_pool(w.pool_name(how)),
    "delete_pod": lambda w, how: w.delete_pod(how, force=False),
    "force_delete_pod": lambda w, how: w.delete_pod(how, force=True),
    "kueue": lambda w, how: w.kueue({"installed": True, "absent": False}[how]),
    "local_queue": lambda w, how: w.apply(_local_queue(how)),
    "flavor": lambda w, how: w.apply(_flavor(w, how)),
    "admit": lambda w, how: _admit(w, how or {}),
    "decline": _decline,
    "evict_workload": _evict_workload,
    "activate_workload": lambda w, how: w.change_workload({"active": how}, {}),
    "delete_workload": lambda w, how: w.delete_workload(),
    "label": lambda w, how: w.patch_job({"metadata": {"labels": how}}),
    "quota": lambda w, how: [w.quota(kind, limit) for kind, limit in how.items()],
    "run": _run,
    "exit": _exit,
    "fail": lambda w, how: _fail(w, **how),
    "supervisor": lambda w, how: [w.supervisor(pod, fault or "") for pod, fault in how.items()],
    "wait": lambda w, how: w.wait(how["pod"], how["reason"], how.get("message", ""), how.get("container", "trainer")),
    "initialize": lambda w, how: w.initialize(how["pod"], how["container"]),
    "unmounted": lambda w, how: w.unmount(how),
    "unschedulable": lambda w, how: w.cannot_place(how["pod"], how["message"]),
    "fail_init": lambda w, how: w.fail_init(how["pod"], how.get("code", 1), how.get("message", "")),
    "evict": lambda w, how: w.evict(how),
    "exceed_limit": lambda w, how: w.kubelet(how, node_of(how), pod_status.limit_exceeded),
    "stopped": lambda w, how: w.kubelet(
        how["pod"], node_of(how["pod"]), lambda pod, now: pod_status.stopped(pod, now, how["code"])
    ),
    "shut_down": lambda w, how: w.kubelet(how, node_of(how), pod_status.shut_down),
    "unhealthy_device": lambda w, how: w.kubelet(
        how["pod"], node_of(how["pod"]), lambda pod, _: pod_status.with_unhealthy_device(pod, how["device"])
    ),
    "reject": lambda w, how: w.kubelet(
        how["pod"], node_of(how["pod"]), lambda pod, _: pod_status.rejected(pod, how["reason"], how["reason"])
    ),
    "crash_loop": lambda w, how: w.kubelet(
        how["pod"],
        node_of(how["pod"]),
        lambda pod, now: pod_status.crash_looping(pod, now, how["code"], how["restarts"], how.get("message", "")),
    ),
    "disrupt": lambda w, how: w.disrupt(how["pod"], how["reason"]),
    "lose_node": lambda w, how: w.lose_node(how),
    "recover_node": lambda w, how: w.recover_node(how),
    "remove_node": lambda w, how: w.remove_node(how),
    "report": lambda w, how: [w.report(pod, **said) for pod, said in how.items()],
    "report_path": lambda w, how: w.report_outage({"down": True, "up": False}[how]),
    "advance": lambda w, how: w.advance(how),
    "operator": lambda w, how: [{"stop": w.stop_operator, "start": w.start_operator}[word]() for word in how.split()],
}


def _differences(expect: Manifest, world: World, refusals: list[str], first: Mapping[str, str]) -> Iterator[str]:
    """Differences from `expect`. Each key is one kind of expectation."""
    unknown = set(expect) - _EXPECTATIONS
    assert not unknown, f"unknown expectations {sorted(unknown)}"
    job = world.job()
    if "job" in expect:
        yield from _differ("job", "absent" if job is None else "present", expect["job"])
    if "refused" in expect:
        yield from _differ("refused", "; ".join(refusals), expect["refused"])
    elif refusals:
        yield f"the API server rejected: {refusals}"
    status = (job or {}).get("status", {})
    if "status" in expect:
        conditions = {c["type"]: c for c in status.get("conditions", ())}
        yield from _differ("status", {**status, "conditions": conditions}, expect["status"])
    pods = {p["metadata"]["name"]: p for p in _pods(world)}
    living = {name for name, pod in pods.items() if "deletionTimestamp" not in pod["metadata"]}
    for kind, present in (("pods", living), ("terminating", set(pods) - living)):
        if kind in expect and present != set(expect[kind]):
            yield f"{kind}: {sorted(present)}, not {sorted(expect[kind])}"
    for name, process in expect.get("processes", {}).items():
        yield from _differ(f"process in {name}", world.process(name), process)
    for name, env in expect.get("env", {}).items():
        yield from _differ(f"env of {name}", _env_of(pods[name]) if name in pods else {}, env)
    for name, tolerations in expect.get("tolerations", {}).items():
        there = pods[name]["spec"].get("tolerations", ()) if name in pods else ()
        yield from (f"{name} does not tolerate {wanted}" for wanted in tolerations if wanted not in there)
    for name in expect.get("kept", ()):
        if name not in pods or pods[name]["metadata"]["uid"] != first.get(name):
            yield f"{name} is another pod than before"
    for name, part in expect.get("pod_specs", {}).items():
        yield from _differ(f"spec of {name}", pods[name]["spec"] if name in pods else None, part)
    if "workload" in expect:
        workload = world.workload()
        found = workload and {
            **workload,
            "metadata": {"annotations": {}, **workload["metadata"]},
            "status": {**workload.get("status", {}), "conditions": _conditions(workload)},
        }
        yield from _differ("workload", found, expect["workload"])
    objects = world.objects() if "objects" in expect else []
    for name, part in expect.get("objects", {}).items():
        found = next((o for o in objects if _is_called(o, name)), None)
        if part is None and found is not None:
            yield f"{name} exists"
        elif part is not None:
            yield from _differ(name, found, part)
    if "stacks" in expect:
        yield from _differ("asked for stacks", world.asked_for_stacks(), expect["stacks"])
    if "asked" in expect:
        yield from _differ("asked for a checkpoint", world.asked_for_checkpoint(), expect["asked"])
    reasons = [reason for reason, _ in world.events()]
    if "events" in expect and not _is_subsequence(expect["events"], reasons):
        yield f"events: {reasons}, not {expect['events']}"
    for pattern in expect.get("messages", ()):
        if not any(re.search(pattern, message) for _, message in world.events()):
            yield f"no event says {pattern!r}: {world.events()}"


_EXPECTATIONS = frozenset(
    (
        *("job", "refused", "status", "pods", "terminating", "env", "tolerations", "pod_specs", "kept", "workload"),
        *("objects", "events", "messages", "stacks", "asked", "processes"),
    )
)


def _is_called(manifest: Manifest, name: str) -> bool:
    """`Kind/name`, or `Kind/~pattern` for a name that holds a UID."""
    kind, _, wanted = name.partition("/")
    here: str = manifest["metadata"]["name"]
    return manifest["kind"] == kind and (
        re.fullmatch(wanted[1:], here) is not None if wanted.startswith("~") else here == wanted
    )


def _differ(where: str, found: Any, wanted: Any) -> Iterator[str]:
    """Maps match partially, `~text` is a regular expression, null means absent, everything else is compared for
    equality."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for key, part in wanted.items():
            yield from _differ(f"{where}.{key}", found.get(key), part)
    elif isinstance(wanted, str) and wanted.startswith("~"):
        if not re.search(wanted[1:], str(found or ""), re.DOTALL):
            yield f"{where}: {found!r} does not match {wanted[1:]!r}"
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
            yield from _differ(f"{where}[{index}]", one, other)
    elif found != wanted:
        yield f"{where}: {found!r}, not {wanted!r}"


def node_of(pod: str) -> str:
    """Every replica has its own node, the same in all attempts: `worker-1-node` for `demo-worker-1-0`."""
    role, index = pod.removeprefix(f"{JOB}-").split("-")[:2]
    return f"{role}-{index}-node"


def _pods(world: World) -> list[Manifest]:
    """Pods that the job controls."""
    uid = (world.job() or {}).get("metadata", {}).get("uid")
    return [
        o
        for o in world.objects()
        if o["kind"] == "Pod"
        and any(r["uid"] == uid for r in o["metadata"].get("ownerReferences", ()) if r.get("controller"))
    ]


def _is_pending(pod: Manifest) -> bool:
    return pod["status"].get("phase") == "Pending" and "deletionTimestamp" not in pod["metadata"]


def _env_of(pod: Manifest) -> dict[str, str]:
    trainer = next(c for c in pod["spec"]["containers"] if c["name"] == "trainer")
    return {variable["name"]: variable.get("value") for variable in trainer["env"]}


def _is_subsequence(wanted: list[str], found: list[str]) -> bool:
    rest = iter(found)
    return all(reason in rest for reason in wanted)
