"""A scenario's world whose operator reaches the API server through a proxy that harms it, and what is compared."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from allranks.core.hang_detection import STACKS
from allranks.kube.auth import Connection
from allranks.operator.settings import Settings
from support import kubernetes_world
from support.api import Api, ApiError
from support.controlplane import ControlPlane
from support.fault_policy import Policy
from support.fault_proxy import Death, Proxy, Threads
from support.kubernetes_world import SETTINGS, KubernetesWorld
from support.kubernetes_world import TIMING as WORLD_TIMING
from support.operators import RunningOperator
from support.scenario_runner import Scenario, run
from support.simulator import pod_status
from support.simulator.store import ended

REQUEST_SECONDS = 1.0
TIMING = replace(WORLD_TIMING, session_backoff_max=0.3)
LATE_RESTS = 2
"""A status that is late comes after so many changes of the world."""
_HANG_SECONDS = 2.0
"""So long an operator may need for what it will do without more of the scenario's time."""
_AGO = timedelta(days=7)
"""More than any scenario takes, by its own clock."""
_QUOTA_SECONDS = 4.0
"""So long after a made-up conflict of a quota, and told to, the operator has tried again, if it still wants to."""


@dataclass(frozen=True)
class Reached:
    """The control plane as a world of its own thread sees it."""

    url: str
    ca_file: str
    admin_token: str
    api: Api


@dataclass(frozen=True)
class Ending:
    """What a run came to. Times are seconds since its beginning, by its own clock, which only the scenario moves."""

    status: Any
    objects: list[str]
    creates: dict[str, int]
    """By object; the operator's alone."""
    deletes: dict[str, int]
    writes: int
    """That had success: not compared, but so often the operator can be killed."""
    later: bool
    """It took more of the scenario's time than without harm: times are not compared."""

    def differences(self, other: Ending) -> list[str]:
        """With the one that it should be like."""
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in _COMPARED]
        found = [difference for name, mine, theirs in pairs for difference in _differ(name, mine, theirs)]
        return [told for where, told in found if not (self.later and _OF_TIME.search(where))]


def _differ(where: str, mine: Any, theirs: Any) -> Iterator[tuple[str, str]]:
    """What differs, and how that is told."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for key in mine.keys() | theirs.keys():
            yield from _differ(f"{where}.{key}", mine.get(key), theirs.get(key))
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        for index, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            yield from _differ(f"{where}[{index}]", one, other)
    elif mine != theirs:
        yield where, f"{where}: {mine}, without harm: {theirs}"


_OF_TIME = re.compile(r"\.(times\..*|goodput|time|since|\w+(Time|Since|Seconds))$")


_COMPARED = ("status", "objects", "creates", "deletes")


class FaultyWorld(KubernetesWorld):
    """An operator that the proxy kills is buried and begun anew as soon as somebody looks."""

    def __init__(self, reached: Reached, namespace: str, proxy: Proxy) -> None:
        self._proxy = proxy
        self.deaths = 0
        self._rests = 0
        """How often everything came to rest since the operator died."""
        self.later = False
        """It was given time in which it hears of ranks anew."""
        self.began: datetime | None = None
        self._nudged: set[float] = set()
        """When creations were refused that the operator was told to try again."""
        self._scarce = False
        """There was a quota."""
        try:
            super().__init__(reached, namespace)  # type: ignore[arg-type]
        except BaseException:
            self.stop_operator()
            raise

    def start_operator(self) -> None:
        if self.began is None:
            # Long ago: that a job was created, the API server stamps by its own clock, and an operator whose clock is
            # ahead of that accounts for the time between. On the hour: a launcher's report has a time that stands in
            # the scenario, and is read as of any time zone.
            self.began = (self.clock.now() - _AGO).replace(minute=0, second=0)
            self.clock.set(self.began)
        self._begin()
        self._settle()

    def stop_operator(self) -> None:
        super().stop_operator()
        if self._proxy.dead.is_set():
            self._proxy.revive()

    def eventually(self, differences: Callable[[], list[str]]) -> list[str]:
        """Who dies while it writes of a hang, and begins anew, judges it after it has heard of ranks for as long again:
        that time is given to it, once, if something is missing."""
        began = time.monotonic()

        def told() -> list[str]:
            found = differences()
            waited = time.monotonic() - began > _HANG_SECONDS
            if found and waited and self.deaths and not self.later and (seconds := self._until_judged()):
                self.later = True
                self.advance(seconds)
                found = differences()
            return found

        return super().eventually(told)

    def _until_judged(self) -> float:
        """0 for a job whose hangs nobody judges."""
        job = self.job() or {}
        hang, progress = job.get("spec", {}).get("hang"), job.get("status", {}).get("progress") or {}
        if not hang:
            return 0.0
        limit = hang["timeoutSeconds"] if progress.get("firstStepTime") else job["spec"]["startupDeadlineSeconds"]
        return float(limit) + STACKS.total_seconds() + 1

    def remove_node(self, node: str) -> None:
        """First its pods are told why, then they are gone: who sees both at once takes them for deleted by somebody."""
        for pod in self._hand._on(node):
            if not ended(pod["status"]):
                self._hand._report(pod["metadata"]["name"], pod_status.collected)
        self._settle()
        super().remove_node(node)

    def _begin(self) -> None:
        settings = Settings(namespaces=(self.namespace,), request_timeout=REQUEST_SECONDS, **SETTINGS)
        connection = Connection(self._proxy.url, token=self._connection.token)
        self._operator = RunningOperator(settings, connection, TIMING, self.clock)

    def _at_once(self, change: Callable[[], None]) -> None:
        """Who takes a pod away tells why, and then deletes it: an operator that is faster than that deletes it first,
        and then it would be counted as the operator's deletion."""
        with self._proxy.held():
            super()._at_once(change)

    def _settle(self) -> None:
        """Raises AssertionError when it is not settled in time: the operator must see and do everything in the end."""
        began = time.monotonic()
        super()._settle()
        if time.monotonic() - began >= kubernetes_world.PATIENCE_SECONDS and (found := list(self._under_way())):
            raise AssertionError(f"still under way after {kubernetes_world.PATIENCE_SECONDS} s: {found}")
        if self.deaths and self._proxy.late:
            # A status names the version that it was decided on: however late it comes, it does no harm.
            self._rests += 1
            if self._proxy.deliver(statuses=self._rests > LATE_RESTS):
                self._settle()

    def _under_way(self) -> Iterator[str]:
        if self._operator and self._proxy.dead.is_set():
            self.deaths += 1
            self._operator.kill()
            self._proxy.revive()
            self._begin()
        yield from super()._under_way()
        for (kind, name), since in list(self._proxy.record.to_come.items()):
            if self._operator and time.monotonic() - since < _QUOTA_SECONDS:
                # It tries again after seconds, the more often it was refused the more of them.
                if since not in self._nudged:
                    self._nudged.add(since)
                    self._operator.enqueue_all()
                yield f"{kind} {name} is still to be created"

    def ending(self) -> Ending:
        if self._proxy.deliver(statuses=True):
            self._settle()
        job = self.job() or {}
        record = self._proxy.record
        return Ending(
            self._plain(job.get("status")),
            sorted(self._described(found) for found in self.objects()),
            self._counted(record.creates),
            self._counted(record.deletes),
            record.successes,
            self.later,
        )

    def quota(self, kind: str, limit: int | None) -> None:
        self._scarce = True
        super().quota(kind, limit)

    def _counted(self, by_object: Mapping[tuple[str, str], int]) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for key, count in by_object.items():
            counts[self._plain("/".join(key))] += count
        return dict(sorted(counts.items()))

    def _described(self, found: dict[str, Any]) -> str:
        metadata = found["metadata"]
        going = " on its way out" if "deletionTimestamp" in metadata else ""
        phase = found.get("status", {}).get("phase", "") if found["kind"] == "Pod" else ""
        return self._plain(f"{found['kind']} {metadata['name']} {phase}{going}".rstrip())

    def _plain(self, value: Any) -> Any:
        """Without what differs from run to run: day and hour, the namespace, the UIDs that are parts of names."""
        if isinstance(value, dict):
            # A forced deletion is told in two steps at once: the pod is asked to go, the pod is gone. Who looks between
            # them still knows its node.
            left_out = ("node", "ranSeconds") if value.get("reason") == "Deleted" else ()
            return {key: self._plain(part) for key, part in value.items() if key not in left_out}
        if isinstance(value, list):
            return [self._plain(part) for part in value]
        if not isinstance(value, str):
            return value
        if _TIME.fullmatch(value):
            return (datetime.fromisoformat(value) - self.began).total_seconds()
        plain = re.sub(r"-ssh-[0-9a-f]{8}", "-ssh-UID", value.replace(self.namespace, "NAMESPACE"))
        plain = _TIME_OF_DAY.sub(r"HOUR:\1 UTC", plain)
        # Where there is no room for all pods of a role, whose request comes first has it.
        return re.sub(r"\b(demo-[a-z]+)-\d+-", r"\1-N-", plain) if self._scarce else plain


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_TIME_OF_DAY = re.compile(r"\b\d\d:(\d\d:\d\d) UTC\b")


@dataclass(frozen=True)
class Kill:
    """Of the operator, after (about) so many writes."""

    after: int
    how: Death


@dataclass(frozen=True)
class Played:
    """How a scenario went."""

    ending: Ending
    met: list[str]
    """Faults, and deaths."""
    seconds: float


def play(
    scenario: Scenario,
    control_plane: ControlPlane,
    threads: Threads,
    policy: Policy | None = None,
    kill: Kill | None = None,
) -> Played:
    """In a namespace of its own, which stays: all of them go with the control plane. Raises AssertionError."""
    began = time.monotonic()
    url, ca_file, token = control_plane.url, str(control_plane.ca_file), control_plane.admin_token
    namespace = f"faults-{secrets.token_hex(4)}"
    with (
        contextlib.closing(Api(url, ca_file, token)) as api,
        contextlib.closing(Proxy(threads, url, ca_file, token, policy)) as proxy,
    ):
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        # Pods are refused until it is there, and the controller that makes it has no hurry.
        with contextlib.suppress(ApiError):
            api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}, namespace)
        if kill:
            proxy.kill_after(kill.after, kill.how)
        with contextlib.closing(FaultyWorld(Reached(url, ca_file, token, api), namespace, proxy)) as played:
            try:
                # A killed operator may not have told what it did, and an Event may be lost: those are not looked at.
                run(scenario, played, events=False)
                ending = played.ending()
            except Exception as error:
                error.add_note("\n".join(["what it met:", *(policy.met if policy else ()), f"{played.deaths} deaths"]))
                raise
        met = [*(policy.met if policy else ()), *["killed"] * played.deaths]
    return Played(ending, met, time.monotonic() - began)
