"""Builders of jobs, pods and observations for tests, with defaults. Times are seconds after `NOW`, never those of the
clock."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from allranks.api.job import Job, Metadata
from allranks.api.status import Failure, Status
from allranks.api.validation import parse
from allranks.core.facts import naming
from allranks.core.facts.model import Disruption, Exit, Observed, Plan, Platform, Pod, RejectedCreate
from allranks.core.facts.optional_kinds import GANGS, OptionalKind, OptionalObjects
from allranks.core.facts.rank_reports import RankReport
from allranks.core.facts.uploads import Upload
from allranks.core.objects.pods import Objects
from allranks.core.reconcile import reconcile
from allranks.local.environment import Variables

NOW = datetime(2026, 3, 4, 10, 0, 0, tzinfo=UTC)
UID = "6d9ce3a2-0000-4000-8000-000000000001"
CLUSTER = Platform(helper_image="helper:1")
IMAGE = "me/train:1"


def at(seconds: float) -> datetime:
    """The time this many seconds after `NOW`."""
    return NOW + timedelta(seconds=seconds)


def table(*cases: Any) -> pytest.MarkDecorator:
    """Parametrizes over tuples. The first member of each, a sentence, is the id of the case."""
    return pytest.mark.parametrize("case", [case[1:] for case in cases], ids=[case[0] for case in cases])


def manifest(
    framework: str = "pytorch", roles: Mapping[str, Any] | None = None, name: str = "job", **spec: Any
) -> dict[str, Any]:
    """A manifest as decoded YAML. A role given as a number has this many replicas. Further names are fields of spec."""
    wanted = roles if roles is not None else {"worker": 2}
    return {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "DistributedTraining",
        "metadata": {"name": name, "namespace": "team"},
        "spec": copy.deepcopy(
            {
                "framework": framework,
                "image": IMAGE,
                "command": ["python3", "train.py"],
                "roles": {role: {"replicas": of} if isinstance(of, int) else of for role, of in wanted.items()},
                **spec,
            }
        ),
    }


def rank(number: int, step: int | None = None, **fields: Any) -> RankReport:
    """The latest report of `worker-{number}`, whose last step was at `stepped` (0 s)."""
    moment = at(fields.pop("stepped", 0)) if step is not None else None
    return RankReport(
        role="worker",
        index=number,
        local_rank=0,
        rank=number,
        node=f"node-{number}",
        step=step,
        stepped_at=moment,
        **{"first_step_at": moment, "received_at": NOW, "pod": f"job-worker-{number}-0"} | fields,
    )


def job(framework: str = "pytorch", roles: Mapping[str, Any] | None = None, name: str = "job", **spec: Any) -> Job:
    """The job of such a manifest with a UID, as stored. `generation=` and the like are metadata."""
    meta = {key: spec.pop(key) for key in ("generation", "deletion_timestamp", "creation_timestamp") if key in spec}
    parsed = parse(manifest(framework, roles, name, **spec))
    metadata = parsed.metadata.model_copy(update={"uid": UID, **meta})
    assert isinstance(metadata, Metadata)
    return parsed.model_copy(update={"metadata": metadata})


def pod(role: str = "worker", index: int = 0, attempt: int = 0, restart: int = 0, **fields: Any) -> Pod:
    """A pod of the job `job`, which is running by default."""
    name = naming.pod_name("job", role, index, attempt, restart)
    defaults: dict[str, Any] = {
        "uid": f"uid-{name}",
        "phase": "Running",
        "created_at": at(0),
        "started_at": at(2),
        "node": f"node-{index}",
    }
    return Pod(name=name, role=role, index=index, attempt=attempt, restart=restart, **(defaults | fields))


def environment(made: Objects, pod: Mapping[str, Any]) -> dict[str, str]:
    """The variables of the pod's training container as its program gets them."""
    data = {found["metadata"]["name"]: found["data"] for found in made.companions if found["kind"] == "ConfigMap"}
    return Variables(dict(pod), pod["spec"]["containers"][0], {}, data).values


def pending(role: str = "worker", index: int = 0, attempt: int = 0, restart: int = 0, **fields: Any) -> Pod:
    nowhere = {"phase": "Pending", "started_at": None, "node": None}
    return pod(role, index, attempt, restart, **(nowhere | fields))


def succeeded(role: str = "worker", index: int = 0, attempt: int = 0, after: float = 60, **fields: Any) -> Pod:
    ending = Exit(0, at(after), "Completed")
    return pod(role, index, attempt, **({"phase": "Succeeded", "exit": ending} | fields))


def failed(
    role: str = "worker",
    index: int = 0,
    attempt: int = 0,
    after: float = 60,
    code: int = 1,
    reason: str = "Error",
    message: str = "",
    **fields: Any,
) -> Pod:
    ending = Exit(code, at(after), reason, message)
    return pod(role, index, attempt, **({"phase": "Failed", "exit": ending} | fields))


def preempted(role: str = "worker", index: int = 0, attempt: int = 0, after: float = 60, **fields: Any) -> Pod:
    disruption = Disruption("PreemptionByScheduler", at(after), "preempted by team/urgent")
    return pod(role, index, attempt, **({"disruption": disruption} | fields))


def failure(**fields: Any) -> Failure:
    """A failure of worker 0 in attempt 0 with exit code 1, ten seconds after its start."""
    defaults: dict[str, Any] = {
        "attempt": 0,
        "role": "worker",
        "index": 0,
        "rank": 0,
        "pod": "job-worker-0-0",
        "exit_code": 1,
        "reason": "Error",
        "message": "ValueError: negative learning rate",
        "time": at(60),
        "ran_seconds": 10.0,
    }
    return Failure(**(defaults | fields))


def observed(
    of: Job,
    status: Status,
    pods: Iterable[Pod] = (),
    now: float = 0,
    refused: Iterable[RejectedCreate] = (),
    platform: Platform = CLUSTER,
    optional: OptionalObjects | None = None,
) -> Observed:
    found = optional or OptionalObjects()
    return Observed(of, status, tuple(pods), at(now), platform, tuple(refused), optional=found)


def serving(*kinds: OptionalKind, objects: Iterable[Mapping[str, Any]] = ()) -> OptionalObjects:
    """A cluster that serves these kinds in their newest version, and the objects of the job."""
    versions = {kind.id: f"{kind.group}/{kind.versions[0]}" for kind in kinds}
    problems = {
        kind.id: f"this cluster does not serve {kind.plural}.{kind.group} in {' or '.join(kind.versions)}"
        for kind in GANGS
        if kind not in kinds
    }
    return OptionalObjects(versions, problems, tuple(dict(each) for each in objects))


class Life:
    """A job whose plans are executed at once and without faults. The test controls its pods and its clock.

    What must hold of every plan is asserted of each one.
    """

    def __init__(self, of: Job, status: Status | None = None, platform: Platform = CLUSTER) -> None:
        self.job = of
        self.platform = platform
        self.optional = OptionalObjects()
        self.uploads: dict[str, Upload] = {}
        self.status = status or Status()
        self.pods: dict[str, Pod] = {}
        self.deleted = False
        self.events: list[str] = []

    def look(self, now: float) -> Observed:
        found = observed(self.job, self.status, self.pods.values(), now, platform=self.platform, optional=self.optional)
        return replace(found, uploads=self.uploads)

    def step(self, now: float) -> Plan:
        """Reconciles once and executes the plan."""
        look = self.look(now)
        plan = reconcile(look)
        assert plan == reconcile(replace(look, pods=look.pods[::-1])), "the order of the pods does not matter"
        assert not (plan.write_ahead and (plan.create or plan.delete or plan.delete_job)), "written ahead: only status"
        assert plan.wake_at is None or plan.wake_at > look.now, "a timer is in the future"
        if plan.next:
            self.status = plan.next
        for made in plan.create:
            if made["kind"] == "Pod":
                self._create(made, now)
        for gone in plan.delete:
            assert self.pods.pop(gone.name).uid == gone.uid
        kept = tuple(each for each in self.optional.of_job if each not in plan.remove)
        self.optional = replace(self.optional, of_job=kept)
        self.deleted = self.deleted or plan.delete_job
        self.events += [event.reason for event in plan.events]
        return plan

    def settle(self, now: float) -> Plan:
        """Reconciles until the plan is empty, and returns it."""
        for _ in range(20):
            plan = self.step(now)
            if plan.empty:
                return plan
        raise AssertionError(f"never settles: {plan}")

    def run(self, now: float) -> Plan:
        """Starts every pending pod."""
        for name, pending in self.pods.items():
            if pending.phase == "Pending":
                self.pods[name] = replace(pending, phase="Running", started_at=at(now), node="node-0")
        return self.settle(now)

    def put(self, *pods: Pod) -> None:
        """Replaces the observed state of these pods."""
        for changed in pods:
            assert changed.name in self.pods, f"{changed.name} was never created: there are {sorted(self.pods)}"
            self.pods[changed.name] = replace(changed, uid=self.pods[changed.name].uid)

    def _create(self, made: Mapping[str, Any], now: float) -> None:
        labels, name = made["metadata"]["labels"], made["metadata"]["name"]
        if name in self.pods:
            return  # 409: it exists
        self.pods[name] = Pod(
            name=name,
            uid=f"uid-{name}-{now:g}",
            role=labels[naming.ROLE_LABEL],
            index=int(labels.get(naming.INDEX_LABEL, "-1")),
            attempt=int(labels.get(naming.ATTEMPT_LABEL, "-1")),
            restart=int(labels.get(naming.RESTART_LABEL, "0")),
            created_at=at(now),
            scheduling_group=made["spec"].get("schedulingGroup", {}).get("podGroupName", ""),
        )


def started(of: Job, now: float = 0, platform: Platform = CLUSTER) -> Life:
    """A job all of whose pods have been running since `now`, and whose outputs can be uploaded."""
    life = Life(of, platform=platform)
    life.settle(now)
    for name, check in life.pods.items():
        if f"{of.name}-check-" in name:
            said = Exit(0, at(now), "Completed", '{"checked": ""}')
            life.pods[name] = replace(check, phase="Succeeded", exit=said)
    life.settle(now)
    life.run(now)
    return life
