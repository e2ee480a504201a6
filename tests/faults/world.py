"""The world of a scenario whose operator uses a proxy that injects faults, and the comparison of outcomes."""

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

from allranks.core.diagnosis.hang_detection import STACK_DUMP_WAIT
from allranks.kube.auth import Connection
from allranks.operator.settings import Settings
from support import kubernetes_world
from support.accounting import status_up_to
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
"""A late status write is delivered after this many changes of the world."""
_HANG_SECONDS = 2.0
"""Seconds in which the operator does everything that needs no further scenario time."""
_AGO = timedelta(days=7)
"""Longer than any scenario, in scenario time."""
_QUOTA_SECONDS = 4.0
"""After an injected quota conflict, all jobs are queued. The operator has tried again to create the object within these
seconds, if it still needs it."""


@dataclass(frozen=True)
class Reached:
    """A control plane with its own API client per thread."""

    url: str
    ca_file: str
    admin_token: str
    api: Api


@dataclass(frozen=True)
class Ending:
    """The outcome of a run. Times are scenario seconds since its start."""

    status: Any
    objects: list[str]
    creates: dict[str, int]
    """Per object; only those of the operator."""
    deletes: dict[str, int]
    writes: int
    """Successful writes. Not compared; the number of moments at which the operator can be killed."""
    later: bool
    """It took more scenario time than the reference, so times are not compared."""
    killed: bool
    """The next operator does not have the reports of this one, and pods that have ended do not report again."""

    def differences(self, other: Ending) -> list[str]:
        """Differences from the reference."""
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in _COMPARED]
        found = [difference for name, mine, theirs in pairs for difference in _differ(name, mine, theirs)]
        left_out = [pattern for pattern, applies in ((_OF_TIME, self.later), (_OF_REPORTS, self.killed)) if applies]
        return [message for where, message in found if not any(pattern.search(where) for pattern in left_out)]


def _differ(where: str, mine: Any, theirs: Any) -> Iterator[tuple[str, str]]:
    """(path, message) per difference."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for key in mine.keys() | theirs.keys():
            yield from _differ(f"{where}.{key}", mine.get(key), theirs.get(key))
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        for index, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            yield from _differ(f"{where}[{index}]", one, other)
    elif mine != theirs:
        yield where, f"{where}: {mine}, reference: {theirs}"


_OF_TIME = re.compile(r"\.(times\..*|goodput|time|since|\w+(Time|Since|Seconds))$")


_OF_REPORTS = re.compile(r"\.(lastStep|progress\.reporting|progress\.savesOnRequest)$")


_COMPARED = ("status", "objects", "creates", "deletes")


class FaultyWorld(KubernetesWorld):
    """Restarts the operator after the proxy has killed it, at the next check."""

    def __init__(self, reached: Reached, namespace: str, proxy: Proxy) -> None:
        self._proxy = proxy
        self.deaths = 0
        self._rests = 0
        """How often the world has settled since the operator was killed."""
        self.later = False
        """It was given additional time in which ranks report again."""
        self.began: datetime | None = None
        self._nudged: dict[float, float] = {}
        """Times of rejected creates that the operator was asked to retry."""
        self._scarce = False
        """Whether there was a quota."""
        try:
            super().__init__(reached, namespace)  # type: ignore[arg-type]
        except BaseException:
            self.stop_operator()
            raise

    def start_operator(self) -> None:
        if self.began is None:
            # In the past: the API server sets creationTimestamp by its own clock, and the operator would count the time
            # by which its clock is ahead. On the hour: the time in a launcher's report is read in any time zone.
            self.began = (self.clock.now() - _AGO).replace(minute=0, second=0)
            self.clock.set(self.began)
        self._begin()
        self._settle()

    def stop_operator(self) -> None:
        super().stop_operator()
        if self._proxy.dead.is_set():
            self._proxy.revive()

    def eventually(self, differences: Callable[[], list[str]]) -> list[str]:
        """An operator that is killed while it handles a hang needs the full timeout again after its restart. If
        something is missing, that time passes once."""
        began = time.monotonic()

        def with_more_time() -> list[str]:
            found = differences()
            waited = time.monotonic() - began > _HANG_SECONDS
            if found and waited and self.deaths and not self.later and (seconds := self._until_detected()):
                self.later = True
                self.advance(seconds)
                found = differences()
            return found

        return super().eventually(with_more_time)

    def _until_detected(self) -> float:
        """0 for a job without hang detection, unless its ranks announced steps: then the first step has a deadline."""
        job = self.job() or {}
        hang, progress = job.get("spec", {}).get("hang"), job.get("status", {}).get("progress") or {}
        if not hang and ("firstStepTime" in progress or "totalSteps" not in progress):
            return 0.0
        limit = hang["timeoutSeconds"] if "firstStepTime" in progress else job["spec"]["startupDeadlineSeconds"]
        return float(limit) + STACK_DUMP_WAIT.total_seconds() + 1

    def remove_node(self, node: str) -> None:
        """First sets the reason on its pods, then deletes them: an operator that observes both at once would treat
        them as deleted by a user."""
        for pod in self._hand._on(node):
            if not ended(pod["status"]):
                self._hand._report(pod["metadata"]["name"], pod_status.collected)
        self._settle()
        super().remove_node(node)

    def _begin(self) -> None:
        settings = Settings(
            namespaces=(self.namespace,), request_timeout=REQUEST_SECONDS, queues=self._queues, **SETTINGS
        )
        connection = Connection(self._proxy.url, token=self._connection.token)
        self._operator = RunningOperator(settings, connection, TIMING, self.clock)

    def _at_once(self, change: Callable[[], None]) -> None:
        """Holds writes of the operator: it could delete a pod between the two steps of an eviction, and the deletion
        would count as its own."""
        with self._proxy.held():
            super()._at_once(change)

    def _settle(self) -> None:
        """Raises AssertionError when the world does not settle in time."""
        began = time.monotonic()
        super()._settle()
        if time.monotonic() - began >= kubernetes_world.PATIENCE_SECONDS and (found := list(self._pending())):
            raise AssertionError(f"not settled after {kubernetes_world.PATIENCE_SECONDS} s: {found}")
        if self.deaths and self._proxy.late:
            # A status write names its resourceVersion, so a late one has no effect.
            self._rests += 1
            if self._proxy.deliver(statuses=self._rests > LATE_RESTS):
                self._settle()

    def _pending(self) -> Iterator[str]:
        if self._operator and self._proxy.dead.is_set():
            self.deaths += 1
            self._operator.kill()
            self._supervisors.disconnect()
            self._proxy.revive()
            self._begin()
        yield from super()._pending()
        for (kind, name), since in list(self._proxy.record.to_come.items()):
            if self._operator and since not in self._nudged:
                # Its backoff grows with each rejection.
                self._nudged[since] = time.monotonic()
                self._operator.enqueue_all()
            if self._operator and time.monotonic() - self._nudged[since] < _QUOTA_SECONDS:
                yield f"{kind} {name} must still be created"

    def _operator_lives(self) -> bool:
        return super()._operator_lives() and not self._proxy.dead.is_set()

    def ending(self) -> Ending:
        if self._proxy.deliver(statuses=True):
            self._settle()
        record = self._proxy.record
        return Ending(
            self._plain(status_up_to(self.job(), self.clock.now())),
            sorted(self._described(found) for found in self.objects()),
            self._counted(record.creates),
            self._counted(record.deletes),
            record.successes,
            self.later,
            self.deaths > 0,
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
        """Replaces what differs between runs: day and hour, the namespace, UIDs in names."""
        if isinstance(value, dict):
            # A forced deletion is two events. Only between them the node of the pod is visible.
            left_out = ("node", "ranSeconds") if value.get("reason") == "Deleted" else ()
            return {key: self._plain(part) for key, part in value.items() if key not in left_out}
        if isinstance(value, list):
            return [self._plain(part) for part in value]
        if not isinstance(value, str):
            return value
        if _TIME.fullmatch(value):
            return self._since_start(value)
        value = _TIME.sub(lambda found: f"{self._since_start(found[0])} s after the start", value)
        plain = _UID.sub("UID", value.replace(self.namespace, "NAMESPACE"))
        plain = re.sub(r"\b(ssh|rendezvous|dt-demo)-[0-9a-f]{8}\b", r"\1-UID", plain)
        plain = _TIME_OF_DAY.sub(r"HOUR:\1 UTC", plain)
        # When a quota admits only some pods, the order of requests decides which ones.
        return re.sub(r"\bdemo-[a-z]+-\d+-", "demo-ROLE-N-", plain) if self._scarce else plain

    def _since_start(self, moment: str) -> float:
        assert self.began
        return (datetime.fromisoformat(moment) - self.began).total_seconds()


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_UID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_TIME_OF_DAY = re.compile(r"\b\d\d:(\d\d:\d\d) UTC\b")


@dataclass(frozen=True)
class Kill:
    """Kills the operator after (about) this many writes."""

    after: int
    how: Death


@dataclass(frozen=True)
class Played:
    """A played scenario."""

    ending: Ending
    met: list[str]
    """Faults and kills."""
    seconds: float


def play(
    scenario: Scenario,
    control_plane: ControlPlane,
    threads: Threads,
    policy: Policy | None = None,
    kill: Kill | None = None,
) -> Played:
    """Plays the scenario in its own namespace, which remains until the control plane ends. Raises AssertionError."""
    began = time.monotonic()
    url, ca_file, token = control_plane.url, str(control_plane.ca_file), control_plane.admin_token
    namespace = f"faults-{secrets.token_hex(4)}"
    with (
        contextlib.closing(Api(url, ca_file, token)) as api,
        contextlib.closing(Proxy(threads, url, ca_file, token, policy)) as proxy,
    ):
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        # Pods are rejected until it exists, and its controller creates it later.
        with contextlib.suppress(ApiError):
            api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}, namespace)
        if kill:
            proxy.kill_after(kill.after, kill.how)
        with contextlib.closing(FaultyWorld(Reached(url, ca_file, token, api), namespace, proxy)) as played:
            try:
                # Without Events: a killed operator may have lost some.
                run(scenario, played, events=False)
                ending = played.ending()
            except Exception as error:
                error.add_note("\n".join(["faults:", *(policy.met if policy else ()), f"{played.deaths} kills"]))
                raise
        met = [*(policy.met if policy else ()), *["killed"] * played.deaths]
    return Played(ending, met, time.monotonic() - began)
