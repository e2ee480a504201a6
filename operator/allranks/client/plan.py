"""Predicts what happens to a job before it is submitted: room on the nodes, when it starts, how long it takes and what
it costs by earlier jobs, which images nodes pull, what a preemption loses.

Each answer is made of facts that can be read now. `unknown` says what could not be found out, and why. The sentences
below fields describe them for programs that read `allranks plan -o json`.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import ConfigDict

from allranks.api.job import Job
from allranks.api.pool import Pool, PoolSpec
from allranks.api.status import FINISHED, Status
from allranks.api.validation import parse_pool
from allranks.client.placement import Node, Rooms, admits, requests_of, unchecked
from allranks.client.queues import read_queues
from allranks.core.accounting import time_accounting
from allranks.core.facts import pod_template, pool_template
from allranks.core.facts.model import ANY_PLATFORM, Platform
from allranks.core.facts.naming import JOB_LABEL
from allranks.core.facts.quantity import quantity
from allranks.core.facts.topology import ELASTIC_ROLE
from allranks.errors import ClusterError, InvalidManifest
from allranks.frameworks.command_line import basename, calls
from allranks.kube import paths
from allranks.kube.cluster import Cluster
from allranks.kube.job_codec import status_of
from allranks.text import joined
from allranks.views.format.duration import human
from allranks.views.format.json_form import CONFIG

Manifest = Mapping[str, Any]
T = TypeVar("T")

Begin = Literal["Now", "Later", "Queued", "NoRoom", "Unknown"]


@dataclass(frozen=True)
class RoleRoom:
    """The pods of a role, and how many of them have room."""

    role: str
    pods: int
    gpus: int
    """Of each pod."""
    nodes: int | None
    """Ready nodes whose labels and taints admit the pods; null if nodes cannot be read."""
    room: int | None
    """Pods that have room on these nodes if they were empty, at most `pods`."""
    room_now: int | None
    """Pods that have room beside the pods that are there; null if these cannot be read."""


@dataclass(frozen=True)
class Duration:
    """Running times of earlier jobs that succeeded, with the same program, framework and size."""

    jobs: int
    shortest: float
    """Seconds, without the time in queues."""
    median: float
    longest: float
    starting: float
    """Median of the seconds from the start of the pods to the first step."""
    checkpoint_interval: float | None
    """Seconds between checkpoints, the longest in the newest job that reported some."""


@dataclass(frozen=True)
class Image:
    """An image of the job, on the nodes that may get its pods."""

    image: str
    nodes: int
    present: int
    """Nodes that have it. A kubelet names the 50 largest images of its node."""
    bytes: int | None
    """Its size on a node that has it."""


@dataclass(frozen=True)
class Plan:
    """What can be said about a job before it is submitted."""

    __pydantic_config__: ClassVar[ConfigDict] = CONFIG

    job: str
    namespace: str
    pods: int
    gpus: int
    """Of all pods."""
    rejected: str = ""
    """Why the API server would not accept it; empty if it would."""
    roles: tuple[RoleRoom, ...] = ()
    begin: Begin = "Unknown"
    begin_seconds: float | None = None
    """For `Later`: the estimate; jobs that end earlier or fail make room before."""
    begin_reason: str = ""
    duration: Duration | None = None
    cost: tuple[float, float, float] | None = None
    """Money for the shortest, the median and the longest duration; null without a price, GPUs or earlier jobs."""
    currency: str | None = None
    images: tuple[Image, ...] = ()
    at_risk_seconds: float | None = None
    """The most work that a preemption loses: the time since the last checkpoint."""
    unknown: tuple[str, ...] = ()
    """What could not be found out, and why."""

    @property
    def possible(self) -> bool:
        """Whether nothing that was read prevents the job from running."""
        return not self.rejected and self.begin != "NoRoom"


class OtherJob(NamedTuple):
    """What is compared of a job, so that thousands of them need little memory."""

    namespace: str
    name: str
    uid: str
    program: tuple[Any, ...]
    status: Status

    @classmethod
    def read(cls, manifest: Manifest) -> OtherJob:
        metadata = manifest["metadata"]
        program = _program(manifest.get("spec") or {})
        return cls(metadata["namespace"], metadata["name"], metadata["uid"], program, status_of(dict(manifest)))


@dataclass
class _Facts:
    """What the API server says about the cluster. None: it may not be read."""

    nodes: list[Node] | None = None
    pods: list[Manifest] | None = None
    jobs: list[OtherJob] | None = None
    quotas: list[Manifest] | None = None
    """ResourceQuotas of the namespace of the job."""
    no_pool: str = ""
    """A pool that the job names, and that does not exist."""
    unknown: list[str] = field(default_factory=list)


async def make_plan(
    cluster: Cluster, job: Job, title: str, rejected: str, pools: Sequence[Pool], archived: Sequence[OtherJob]
) -> Plan:
    """Return the plan of a job. Raises ClusterError.

    `rejected`: the answer of the API server to a dry run. `pools`: of the same files; others are read. `archived`: jobs
    of an archive.
    """
    facts = _Facts()
    platform = replace(ANY_PLATFORM, pools=await _pools(cluster, job, pools, facts))
    facts.nodes = await _read(facts, "nodes", _nodes(cluster))
    facts.pods = await _read(facts, "pods of all namespaces", _pods(cluster))
    facts.jobs = await _read(facts, "jobs of all namespaces", _jobs(cluster, None))
    if facts.jobs is None:
        facts.jobs = await _read(facts, f"jobs of namespace {job.namespace}", _jobs(cluster, job.namespace))
    quotas = paths.core_path(job.namespace, "resourcequotas")
    facts.quotas = await _read(facts, "quotas of the namespace", cluster.items(quotas, None, _decoded(dict)))
    plan = _described(job, title, rejected, platform, facts)
    plan = await _queued(cluster, job, plan, facts)
    earlier = [other for other in (*(facts.jobs or ()), *archived) if other.namespace == job.namespace]
    plan = _with_earlier_jobs(plan, job, platform, earlier, facts)
    return replace(plan, unknown=tuple(facts.unknown))


# --- what the API server says -----------------------------------------------------------------------------------------


async def _read(facts: _Facts, name: str, request: Awaitable[T]) -> T | None:
    try:
        return await request
    except ClusterError as error:
        if error.status != 403:
            raise
        facts.unknown.append(f"you have no right to list the {name}")
        return None


async def _pools(cluster: Cluster, job: Job, of_files: Sequence[Pool], facts: _Facts) -> dict[str, PoolSpec]:
    pools = {name: await _pool(cluster, name, of_files, facts) for name in dict.fromkeys(job.spec.pools.values())}
    return {name: pool for name, pool in pools.items() if pool}


async def _pool(cluster: Cluster, name: str, pools: Sequence[Pool], facts: _Facts) -> PoolSpec | None:
    if of_files := next((pool.spec for pool in pools if pool.name == name), None):
        return of_files
    try:
        return parse_pool(await cluster.get(f"{paths.pools()}/{name}")).spec
    except ClusterError as error:
        if error.status not in (403, 404):
            raise
        if error.status == 404:
            facts.no_pool = name
        missing = "does not exist" if error.status == 404 else "may not be read by you"
        facts.unknown.append(f'TrainingPool "{name}" {missing}, so the pods are planned without it')
    except InvalidManifest as error:
        facts.unknown.append(f'TrainingPool "{name}" is not valid ({error}), so the pods are planned without it')
    return None


async def _nodes(cluster: Cluster) -> list[Node]:
    return await cluster.items(paths.core_path(None, "nodes"), None, _decoded(Node.read))


async def _pods(cluster: Cluster) -> list[Manifest]:
    on_nodes = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
    return await cluster.items(paths.core_path(None, "pods"), {"fieldSelector": on_nodes}, _decoded(_taken))


def _taken(pod: Manifest) -> Manifest:
    """Return what is compared of a pod, so that ten thousand of them need little memory."""
    metadata, spec = pod["metadata"], pod["spec"]
    job = (metadata.get("labels") or {}).get(JOB_LABEL)
    return {"node": spec["nodeName"], "job": (metadata["namespace"], job), "requests": requests_of(spec)}


async def _jobs(cluster: Cluster, namespace: str | None) -> list[OtherJob]:
    return await cluster.items(paths.job_path(namespace), None, _decoded(OtherJob.read))


def _decoded(convert: Callable[[Manifest], T]) -> Callable[[Any], T]:
    def decode(raw: Any) -> T:
        import msgspec

        return convert(msgspec.json.decode(raw))

    return decode


# --- room -------------------------------------------------------------------------------------------------------------


def _described(job: Job, title: str, rejected: str, platform: Platform, facts: _Facts) -> Plan:
    templates = {role: template["spec"] for role, template in pod_template.role_templates(job, platform).items()}
    sizes = {name: role.replicas for name, role in job.spec.roles.items()}
    gpus = {role: pod_template.gpus(job, role, {"spec": templates[role]}, platform) for role in sizes}
    plan = Plan(
        job=title,
        namespace=job.namespace,
        pods=sum(sizes.values()),
        gpus=sum(sizes[role] * gpus[role] for role in sizes),
        rejected=rejected,
        roles=tuple(_role_room(role, sizes[role], gpus[role], templates[role], facts) for role in sizes),
        images=tuple(_images(templates.values(), facts.nodes or ())),
    )
    for role, spec in templates.items():
        if fields := unchecked(spec):
            facts.unknown.append(f"{joined(fields, 'and')} of {role} also decide about its nodes, and are not compared")
    groups = [(templates[role], _needed(job, role, size)) for role, size in sizes.items()]
    return _in_quotas(_begin(plan, groups, facts), groups, facts)


def _in_quotas(plan: Plan, groups: Sequence[tuple[Manifest, int]], facts: _Facts) -> Plan:
    """Let a quota of the namespace that admits only a part of the pods decide instead of the room."""
    requested: Counter[str] = Counter()
    for spec, number in groups:
        requested.update({name: amount * number for name, amount in requests_of(spec).items()})
    for quota in facts.quotas or ():
        spec, status = quota.get("spec") or {}, quota.get("status") or {}
        if spec.get("scopes") or spec.get("scopeSelector"):
            facts.unknown.append(f"quota {quota['metadata']['name']} is for some pods only, and is not compared")
            continue
        for key, limit in (spec.get("hard") or {}).items():
            name = key.removeprefix("requests.")
            used = quantity(str((status.get("used") or {}).get(key, "0")))
            if name not in requested or requested[name] + used <= quantity(str(limit)):
                continue
            never = requested[name] > quantity(str(limit))
            text = f"quota {quota['metadata']['name']} of the namespace: {key} {limit}"
            text += f", the job requests {requested[name]:g}" + ("" if never else f", and {used:g} are in use")
            if never:
                return replace(plan, begin="NoRoom", begin_seconds=None, begin_reason=text)
            if plan.begin != "NoRoom":
                plan = replace(plan, begin="Unknown", begin_seconds=None, begin_reason=text)
    return plan


def _needed(job: Job, role: str, size: int) -> int:
    return job.spec.elastic.min_replicas if job.spec.elastic and role == ELASTIC_ROLE else size


def _role_room(role: str, pods: int, gpus: int, spec: Manifest, facts: _Facts) -> RoleRoom:
    if facts.nodes is None:
        return RoleRoom(role, pods, gpus, None, None, None)
    able = sum(admits(node, spec) for node in facts.nodes)
    now = None if facts.pods is None else _rooms(facts).count(spec, pods)
    return RoleRoom(role, pods, gpus, able, Rooms(facts.nodes).count(spec, pods), now)


def _rooms(facts: _Facts) -> Rooms:
    rooms = Rooms(facts.nodes or ())
    for pod in facts.pods or ():
        rooms.take(pod["node"], pod["requests"])
    return rooms


def _begin(plan: Plan, groups: Sequence[tuple[Manifest, int]], facts: _Facts) -> Plan:
    """Add when all pods have room: now, or when jobs that run have ended, by their own estimates."""
    if facts.no_pool:
        return replace(plan, begin_reason=f'the job waits for TrainingPool "{facts.no_pool}", which does not exist')
    if facts.nodes is None:
        return plan
    for room, (_, needed) in zip(plan.roles, groups, strict=True):
        if room.room is not None and room.room < needed:
            text = f"the {len(facts.nodes)} ready nodes have room for {room.room} of {needed} pods of {room.role}"
            return replace(plan, begin="NoRoom", begin_reason=f"{text}, even if they were empty")
    if facts.pods is None:
        return plan
    if _rooms(facts).place(groups):
        return replace(plan, begin="Now", begin_reason="all pods have room")
    useful = {node.name for node in facts.nodes if any(admits(node, spec) for spec, _ in groups)}
    in_the_way = {pod["job"] for pod in facts.pods if pod["node"] in useful}
    ends = sorted(end for end in _ends(facts.jobs or ()) if end[1] in in_the_way)
    for seconds, job in ends:
        gone = {other for eta, other in ends if eta <= seconds}
        remaining = [pod for pod in facts.pods if pod["job"] not in gone]
        if _rooms(replace(facts, pods=remaining)).place(groups):
            text = f"when {'/'.join(job)} ends, by its own estimate"
            return replace(plan, begin="Later", begin_seconds=seconds, begin_reason=text)
    text = "pods of others are in the way, and no estimate of running jobs says when enough of them end"
    return replace(plan, begin_reason=text)


def _ends(jobs: Iterable[OtherJob]) -> Iterable[tuple[float, tuple[str, str]]]:
    for job in jobs:
        progress = job.status.progress
        if job.status.phase not in FINISHED and progress and progress.eta_seconds is not None:
            yield progress.eta_seconds, (job.namespace, job.name)


async def _queued(cluster: Cluster, job: Job, plan: Plan, facts: _Facts) -> Plan:
    """Let the queue of the job decide instead of the room, unless there never is room."""
    name = job.spec.scheduling.queue
    if not name or plan.begin == "NoRoom" or facts.no_pool:
        return plan
    try:
        [queue] = await read_queues(replace(cluster, namespace=job.namespace), (name,))
    except ClusterError as error:
        facts.unknown.append(f"queue {name}: {error}")
        return replace(plan, begin="Unknown", begin_seconds=None, begin_reason="")
    used = joined([f"{resource} {now} of {most}" for resource, (now, most) in queue.quota.items()], "and")
    before = f"{len(queue.waiting)} of this namespace wait before it" if queue.waiting else "none waits before it"
    stopped = f"; it is stopped ({queue.stopped})" if queue.stopped else ""
    text = f"in queue {name}: {before}{f'; in use: {used}' if used else ''}{stopped}"
    ends = [running.eta_seconds for running in queue.running if running.eta_seconds is not None]
    return replace(plan, begin="Queued", begin_seconds=min(ends, default=None), begin_reason=text)


# --- earlier jobs -----------------------------------------------------------------------------------------------------


def _with_earlier_jobs(plan: Plan, job: Job, platform: Platform, earlier: Iterable[OtherJob], facts: _Facts) -> Plan:
    program = _program(job.model_dump(mode="json", by_alias=True)["spec"])
    same = {other.uid: other.status for other in earlier if other.program == program}
    ended = [status for status in same.values() if status.phase == "Succeeded" and status.completion_time]
    duration = _duration(sorted(ended, key=lambda status: str(status.completion_time)))
    if duration is None:
        facts.unknown.append(f"no earlier job of namespace {job.namespace} with this program and size has succeeded")
        return plan
    plan = replace(plan, duration=duration, at_risk_seconds=_at_risk(job, duration))
    pools = [(room.pods * room.gpus, pool_template.pool_of(job, room.role, platform)) for room in plan.roles]
    prices = [(gpus, pool.price if pool else None) for gpus, pool in pools if gpus]
    currencies = {price.currency if price else None for _, price in prices}
    if len(currencies) == 1 and None not in currencies:
        hourly = sum(gpus * float(price.gpu_hour) for gpus, price in prices if price) / 3600
        shortest, median, longest = (
            round(hourly * seconds, 2) for seconds in (duration.shortest, duration.median, duration.longest)
        )
        plan = replace(plan, cost=(shortest, median, longest), currency=currencies.pop())
    return plan


def _at_risk(job: Job, duration: Duration) -> float | None:
    checkpoint = job.spec.checkpoint
    every = checkpoint.every_seconds if checkpoint else None
    return float(every) if isinstance(every, int) else duration.checkpoint_interval


def _program(spec: Manifest) -> tuple[Any, ...]:
    """Return what jobs have in common whose durations are compared: framework, size, and the program without its
    options."""
    roles = spec.get("roles") or {}
    sizes = sorted((name, (role or {}).get("replicas", 1)) for name, role in roles.items() if role is not None)
    command = [*(spec.get("command") or ()), *(spec.get("args") or ())]
    words = [word.text for call in calls([str(part) for part in command]) for word in call.words]
    programs = Counter(basename(word) for word in words if word.endswith((".py", ".sh")))
    named = tuple(sorted(programs)) or tuple(word for word in words if not word.startswith("-"))[:3]
    image = str(spec.get("image") or "").partition("@")[0].rpartition("/")[2].partition(":")[0]
    return spec.get("framework"), tuple(sizes), named, image


def _duration(jobs: Sequence[Status]) -> Duration | None:
    ends = [(status, status.completion_time) for status in jobs if status.completion_time]
    measured = [time for status, end in ends if (time := time_accounting.up_to(status, end))]
    if not measured:
        return None
    seconds = [time.starting + time.productive + time.lost for time in measured]
    intervals = [interval for status in jobs if (interval := _checkpoint_interval(status))]
    return Duration(
        jobs=len(measured),
        shortest=min(seconds),
        median=statistics.median(seconds),
        longest=max(seconds),
        starting=statistics.median(time.starting for time in measured),
        checkpoint_interval=intervals[-1] if intervals else None,
    )


def _checkpoint_interval(status: Status) -> float | None:
    times = sorted(checkpoint.time for checkpoint in status.checkpoints)
    return max(((later - sooner).total_seconds() for sooner, later in pairwise(times)), default=None)


# --- images -----------------------------------------------------------------------------------------------------------


def _images(specs: Iterable[Manifest], nodes: Sequence[Node]) -> Iterable[Image]:
    able: dict[str, dict[str, Node]] = {}
    for spec in specs:
        containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        for name in (container["image"] for container in containers if container.get("image")):
            able.setdefault(name, {}).update({node.name: node for node in nodes if admits(node, spec)})
    for name, by_name in able.items():
        sizes = [size for node in by_name.values() if (size := _size_on(node, name)) is not None]
        yield Image(name, len(by_name), len(sizes), max(sizes, default=None))


def _size_on(node: Node, image: str) -> int | None:
    """Return the size of an image on a node. Kubelets write names with their registry."""
    tagged = ":" in image.rpartition("/")[2] or "@" in image
    full = image if tagged else ":".join((image, "latest"))
    return next((size for name, size in node.images.items() if name == full or name.endswith(f"/{full}")), None)


# --- text -------------------------------------------------------------------------------------------------------------


def lines(plan: Plan) -> list[tuple[str, str]]:
    """Return (title, text) rows for people."""
    rows = [("Accepted", f"no: {plan.rejected}" if plan.rejected else "yes, by the API server (dry run)")]
    rows += [("Room", _room_text(room)) for room in plan.roles if room.room is not None]
    rows.append(("Start", _begin_text(plan)))
    if duration := plan.duration:
        span = _span(*(human(seconds) for seconds in (duration.shortest, duration.median, duration.longest)))
        jobs = f"{duration.jobs} earlier job{'s' * (duration.jobs != 1)}"
        rows.append(("Duration", f"{span}, by {jobs} with this program and size"))
    if plan.cost:
        text = _span(*(f"{money:,.2f}" for money in plan.cost))
        rows.append(("Cost", f"{text} {plan.currency} for {plan.gpus} GPUs"))
    rows += [("Image", _image_text(image)) for image in plan.images if image.nodes]
    if plan.at_risk_seconds is not None and plan.duration:
        text = f"loses at most the work of {human(plan.at_risk_seconds)} since the last checkpoint"
        rows.append(("Preemption", f"{text}, and {human(plan.duration.starting)} until the next step"))
    return rows + [("Unknown", text) for text in plan.unknown]


def _room_text(room: RoleRoom) -> str:
    gpus = f" with {room.gpus} GPU{'s' * (room.gpus != 1)}" if room.gpus else ""
    now = "" if room.room_now is None else f", {room.room_now} now"
    nodes = f"{room.nodes} node{'s' * (room.nodes != 1)} whose labels and taints admit them"
    return f"{room.role}: {room.pods} pod{'s' * (room.pods != 1)}{gpus}: {nodes}, room for {room.room}{now}"


def _begin_text(plan: Plan) -> str:
    reason = plan.begin_reason
    match plan.begin:
        case "Now":
            return f"now: {reason}"
        case "Later":
            return f"in about {human(plan.begin_seconds or 0)}: {reason}"
        case "Queued":
            earliest = plan.begin_seconds
            running = f"; the first of its running jobs ends in about {human(earliest)}" if earliest is not None else ""
            return f"{reason}{running}"
        case "NoRoom":
            return f"never, as the cluster is now: {reason}"
    return f"unknown{f': {reason}' if reason else ''}"


def _span(shortest: str, median: str, longest: str) -> str:
    return median if shortest == longest else f"{median} ({shortest} to {longest})"


def _image_text(image: Image) -> str:
    missing = image.nodes - image.present
    size = f" {image.bytes / 2**30:.1f} GiB" if image.bytes else ""
    if not missing:
        return f"{image.image}: all {image.nodes} nodes have it"
    return f"{image.image}: {image.present} of {image.nodes} nodes have it, the others pull{size or ' it'}"
