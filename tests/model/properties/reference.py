"""A reference model of a job, independent of the core: the state that the operator must reach after each event.

It has no manifests, status, lag or crashes: it receives the events in order, with their times. It shares no code with
the core. Two numbers are the same by definition: an attempt of 120 s has made progress, the backoff doubles to 300 s.
No program of a followed history reports steps.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

PROGRESS = timedelta(seconds=120)
ALONE = {"ps", "evaluator", "data"}
"""Roles whose replicas restart individually."""
SERVICES = {"ps", "data"}
"""Roles whose programs never end."""
ORDER = ("master", "chief", "head", "worker", "ps", "evaluator", "launcher", "data")
SETTLE = timedelta(seconds=10)
"""Delay before growth, if there is room for some of the waiting workers only."""
NOT_EXECUTED = {126, 127}
"""Exit codes of a shell that cannot execute a command."""
FAULTS = {132, 133, 134, 135, 136, 139, 159}
"""Exit codes of signals that a process causes itself, such as SIGSEGV."""
BAD_STARTS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"}


@dataclass(frozen=True)
class Failure:
    """`code` is None if the pod was removed, or its program never ran."""

    reason: str
    disruption: bool
    code: int | None = None
    message: str = ""
    ran: timedelta = timedelta(0)
    place: tuple[str, int] | None = None


@dataclass
class Place:
    """One replica of the current attempt."""

    decided: datetime
    """Its pod is created from then on."""
    restarts: int = 0
    phase: str = "Pending"
    started: datetime | None = None
    waits_for: str = ""
    placed: bool = False
    """It has a node. Without a node and without a waiting reason, the scheduler has not handled it yet."""
    placed_at: datetime | None = None
    counted: bool = False
    """Its last failure was counted."""
    gone: bool = False
    own: bool = False
    """It was restarted individually, or added to the attempt."""
    idle: int = 0
    """Its individual restarts in a row without progress."""
    last: Failure | None = None
    """Its last failure in this attempt."""
    failed_at: datetime | None = None

    @property
    def pulled_since(self) -> datetime:
        return max(self.decided, self.placed_at or self.decided)

    def place(self, now: datetime) -> None:
        self.placed, self.placed_at = True, self.placed_at or now


def rule_on(
    spec: dict[str, Any],
    counted: int,
    failure: Failure,
    before: Failure | None,
    last: bool = False,
    trained: bool = True,
    before_counted: bool = False,
) -> str:
    """`before` is the previous failure: of the previous attempt, or of the same replica if it restarts individually;
    `before_counted`: it counted. `last`: only this replica can still complete the job, so its failure is not ignored.
    `trained`: the job ever made progress."""
    restart, before_reason = spec["restart"], before.reason if before else ""
    rules = [rule for rule in restart.get("rules", ()) if not (last and rule["action"] == "Ignore")]
    action = next((rule["action"] for rule in rules if _matches(rule, failure)), None)
    if action is None:
        if failure.disruption:
            action = "RestartUncounted"
        elif (
            failure.reason == before_reason == "InitContainerFailed"
            and before_counted
            and before is not None
            and failure.message
            and before.place == failure.place
        ):
            action = "RestartUncounted"  # on the same node, which is avoided
        elif failure.reason == "OOMKilled":
            action = "Fail" if before is not None and before.reason == "OOMKilled" else "Restart"
        elif failure.code in NOT_EXECUTED and not trained:
            action = "Fail"
        elif failure.code is not None and (failure.code < 128 or failure.code in FAULTS) and before is not None:
            same = (before.code, before.message, before.reason) == (failure.code, failure.message, failure.reason)
            same = same and (failure.code < 128 or before.place == failure.place)
            no_progress = before.ran < PROGRESS and failure.ran < PROGRESS
            action = "Fail" if same and no_progress else "Restart"
        else:
            action = "Restart"
    return "Fail" if action == "Restart" and counted >= restart["maxRestarts"] else action


def _matches(rule: dict[str, Any], failure: Failure) -> bool:
    signal = failure.code - 128 if failure.code is not None and 128 < failure.code <= 192 else None
    return (
        failure.code in rule.get("exitCodes", ())
        or signal in rule.get("signals", ())
        or failure.reason in rule.get("reasons", ())
    )


def restarts_individually(spec: dict[str, Any], role: str, index: int) -> bool:
    """Whether this replica restarts individually."""
    scope = spec["restart"].get("scope")
    if scope is not None:
        return bool(scope == "Pod")
    if spec["framework"] == "ray":
        return role == "worker"
    if absorbs_resize(spec):
        return index > 0
    # With parameter servers, the chief schedules work on workers that may leave and join.
    served = role == "worker" and {"chief", "ps"} <= {role for role, of in spec["roles"].items() if of["replicas"]}
    return role in ALONE or served


def absorbs_resize(spec: dict[str, Any]) -> bool:
    """Workers join and leave an attempt."""
    return "elastic" in spec and spec["framework"] in ("horovod", "ray")


def restarts_to_resize(spec: dict[str, Any]) -> bool:
    """All ranks restart at the size for which there is room."""
    return "elastic" in spec and spec["framework"] == "pytorch"


def backoff(spec: dict[str, Any], counted: int | None, idle: int) -> timedelta:
    """Delay of counted restart number `counted` (None: uncounted) and number `idle` without progress."""
    seconds = spec["restart"]["backoffSeconds"]
    if counted is None:
        seconds = max(1, seconds)
    number = max(counted or 0, idle)
    return timedelta(seconds=0 if number <= 1 else min(300, seconds * 2 ** (number - 2)))


def target(spec: dict[str, Any], places: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The replicas whose completion ends the job."""
    success, framework = spec.get("success"), spec["framework"]
    roles = {role for role, _ in places}
    if success == "All":
        # Services never end, nor do workers that only serve a chief, a launcher or a head.
        serves = bool({"launcher", "head"} & roles) or {"chief", "ps"} <= roles
        return [p for p in places if p[0] not in SERVICES and not (serves and p[0] == "worker")]
    if success is not None:
        return [place for place in places if place[0] == success]
    first = {
        "pytorch": "master",
        "tensorflow": "chief",
        "horovod": "launcher",
        "mpi": "launcher",
        "ray": "head",
    }.get(framework)
    if first in roles:
        return [(first, 0)]
    if absorbs_resize(spec):
        return [("worker", 0)]
    workers = [place for place in places if place[0] == "worker"]
    return workers[:1] if framework == "tensorflow" else workers


@dataclass
class Reference:
    """The state of a job. `spec` contains every default."""

    spec: dict[str, Any]
    now: datetime
    phase: str = ""
    attempt: int = 0
    counted: int = 0
    disruptions: int = 0
    by_reason: Counter[str] = field(default_factory=Counter)
    idle: int = 0
    """Restarts of the group in a row without progress."""
    places: dict[tuple[str, int], Place] = field(default_factory=dict)
    ignored: set[tuple[str, int]] = field(default_factory=set)
    root_cause: tuple[int, str, int, int | None, str] | None = None
    """(attempt, role, index, exit code, reason) of the last failure that led to a decision."""
    before: tuple[int, Failure] | None = None
    """The last (attempt, failure) that ended an attempt."""
    ends: dict[int, str] = field(default_factory=dict)
    """Attempt -> reason of the counted failure that ended it."""
    begun: bool = False
    active_since: datetime | None = None
    active: timedelta = timedelta(0)
    waiting: int = 0
    """Requested workers for which the current attempt found no room."""
    room: list[datetime] = field(default_factory=list)
    """For each waiting worker with room: since when."""
    left: dict[int, int] = field(default_factory=dict)
    """Index of a removed worker -> the restart number it would have if it is added again."""
    past: list[tuple[str, datetime]] = field(default_factory=list)
    """Reason and time of the end of each attempt."""
    ran_at: datetime | None = None
    """Time at which the current attempt was running."""
    first_ran_at: datetime | None = None
    """Time at which an attempt was running: from then on the job waits for its images without a deadline."""
    created_at: datetime | None = None
    """Time of creation of the current attempt's pods."""
    over_at: datetime | None = None
    deleted: bool = False

    def __post_init__(self) -> None:
        self.phase = "Suspended"
        if not self.spec["suspend"]:
            self._begin(0, "Pending")

    @property
    def over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def live(self) -> bool:
        return not self.over and self.phase != "Suspended"

    # Events

    def tick(self, now: datetime, leapt: bool = False) -> None:
        """Advances time, in steps or at once (`leapt`): the first deadline in between fires, at its time or now."""
        over, refit = self._over_at(), self._refit_at()
        if refit and refit <= now and (over is None or over > (now if leapt else refit)):
            self.now = now if leapt else max(self.now, refit)
            self._refit()
            over = self._over_at()
        if over and over <= now:
            self._record_start_error(now if leapt else over)
            self._end("Failed", now if leapt else max(self.now, over))
        self.now = now
        ttl = self.spec.get("ttlSecondsAfterFinished")
        if self.over and ttl is not None and self.over_at is not None and self.over_at + timedelta(seconds=ttl) <= now:
            self.deleted = True

    def _record_start_error(self, when: datetime) -> None:
        """Records the first pod with an expired startup deadline, unless the active deadline was exceeded."""
        limit = self.spec.get("activeDeadlineSeconds")
        if (
            limit is not None
            and self.active_since
            and self.active_since + timedelta(seconds=limit) - self.active <= when
        ):
            return
        patience = timedelta(seconds=self.spec["startupDeadlineSeconds"])
        bad = [p for p, of in self.places.items() if of.waits_for in BAD_STARTS and of.pulled_since + patience <= when]
        role, index = min(bad, key=lambda place: (ORDER.index(place[0]), place[1]))
        self.root_cause = (self.attempt, role, index, None, self.places[role, index].waits_for)

    def _over_at(self) -> datetime | None:
        """Time at which a deadline fails the job."""
        if not self.live:
            return None
        patience = timedelta(seconds=self.spec["startupDeadlineSeconds"])
        bad = [place for place in self.places.values() if place.waits_for in BAD_STARTS and not self.first_ran_at]
        due = [place.pulled_since + patience for place in bad]
        limit = self.spec.get("activeDeadlineSeconds")
        if limit is not None and self.active_since is not None:
            due.append(self.active_since + timedelta(seconds=limit) - self.active)
        return min(due, default=None)

    def ran(self, place: tuple[str, int]) -> None:
        if place in self.places:
            self.places[place].phase, self.places[place].started = "Running", self.now
            self.places[place].waits_for = ""
            self.places[place].place(self.now)
        self._update()

    def has_room(self) -> None:
        """There is room for one more worker."""
        self.room.append(self.now)
        self._update()

    def has_no_room(self) -> None:
        """The room of the first waiting worker is taken."""
        self.room.pop(0)

    def waits(self, place: tuple[str, int], reason: str) -> None:
        if place in self.places:
            self.places[place].waits_for = reason
            if reason != "Unschedulable":
                self.places[place].place(self.now)
        self.tick(self.now)

    def ended(self, place: tuple[str, int], code: int, reason: str, message: str) -> None:
        there = self.places.get(place)
        if there is None:
            return
        there.phase, there.waits_for = ("Done" if code == 0 else "Failed"), ""
        self.room = []  # an attempt with an ended pod does not grow
        if code:
            ran = self.now - there.started if there.started else timedelta(0)
            self._failed(place, Failure(reason, False, code, message, ran, place))
        self._update()

    def never_ran(self, place: tuple[str, int], reason: str, container: str = "") -> None:
        """`container`: the init container of the user that failed."""
        if place in self.places:
            self.places[place].phase, self.places[place].waits_for = "Failed", ""
            self._failed(place, Failure(reason, False, message=container))

    def lost(self, place: tuple[str, int], reason: str, gone: bool) -> None:
        """The pod is removed; `gone`: its object is deleted too."""
        there = self.places.get(place)
        if there is None or there.phase == "Done":
            if there and gone:
                there.gone = True
            return
        there.gone, there.waits_for = gone, ""
        # The start of a pod that is gone is unknown: its own decision or that of the attempt counts.
        since = there.started if not gone else there.decided if there.own else self.ran_at
        self._failed(place, Failure(reason, True, ran=self.now - since if since else timedelta(0)))
        self._update()

    def found_lost(self, attempt: int, place: tuple[str, int]) -> None:
        """The node of a terminating pod of a past attempt is lost: this was the root cause of that attempt."""
        role, index = place
        was = self.ends.get(attempt)
        if self.over or was is None or was == "NodeLost" or restarts_individually(self.spec, role, index):
            return
        cause = Failure("NodeLost", True)
        action = rule_on(self.spec, -1, cause, None)
        if action == "RestartUncounted":
            self.counted, self.disruptions = self.counted - 1, self.disruptions + 1
            del self.ends[attempt]
        elif action == "Restart":
            self.ends[attempt] = "NodeLost"
        else:
            return
        self.by_reason[was] -= 1
        self.by_reason["NodeLost"] += 1
        self.by_reason = +self.by_reason
        if self.root_cause and self.root_cause[0] == attempt:
            self.root_cause = (attempt, role, index, None, "NodeLost")
        if self.before and self.before[0] == attempt:
            self.before = (attempt, cause)

    def patched(self, change: dict[str, Any]) -> None:
        """Applies a merge patch to the spec."""
        for name, value in change.items():
            self.spec[name] = {**self.spec[name], **value} if isinstance(value, dict) else value
        self._update()
        if self.live and self.spec["suspend"]:
            self.active += self.now - (self.active_since or self.now)
            self.active_since, self.phase, self.places = None, "Suspended", {}
            self.past.append(("Suspended", self.now))
        elif self.phase == "Suspended" and not self.spec["suspend"]:
            self.waiting = self.idle = 0
            self._begin(self.attempt + 1 if self.begun else 0, "Pending")
        self.tick(self.now)
        if self.live:
            self._resize(Counter(role for role, _ in self.places))

    # Consequences

    def _sizes(self) -> dict[str, int]:
        return {role: of["replicas"] for role, of in self.spec["roles"].items() if of["replicas"]}

    def _resize(self, there: Counter[str]) -> None:
        workers, wanted = there["worker"], self._sizes().get("worker", 0)
        if restarts_to_resize(self.spec) and wanted >= workers:
            self.waiting = wanted - workers
            self.room = self.room[: self.waiting]
            self._update()
        elif absorbs_resize(self.spec):
            for index in range(workers, wanted):
                self.places["worker", index] = Place(self.now, self.left.get(index, 0), own=True)
            for index in range(wanted, workers):
                self.left[index] = self.places.pop(("worker", index)).restarts + 1
                self.ignored.discard(("worker", index))
            self._update()
        elif there != Counter(self._sizes()):
            self.waiting = 0
            self._begin(self.attempt + 1, "Restarting")

    def _refit_at(self) -> datetime | None:
        """Time at which the job restarts with fewer or more workers."""
        if not self.live or not restarts_to_resize(self.spec):
            return None
        if self.phase == "Running":
            if not self.probes_for_room:
                return None
            return (self.now if len(self.room) >= self.waiting else self.room[0] + SETTLE) if self.room else None
        unplaced = self._unplaced()
        roomless = [place for place in unplaced if place.waits_for]
        decided = len(roomless) == len(unplaced)
        fewest = self.spec["elastic"]["minReplicas"]
        if not roomless or not decided or self._workers() - len(roomless) < fewest or self.created_at is None:
            return None
        # Pods of the previous attempt have 30 s of grace, and the scheduler retries within 15 s.
        seconds = max(self.spec["elastic"]["waitSeconds"], 45 if self.attempt else 0)
        return max(self.now, self.created_at + timedelta(seconds=seconds))

    def _refit(self) -> None:
        why = "Grown" if self.phase == "Running" else "Shrunk"
        if why == "Grown":
            self.waiting -= len(self.room)
        else:
            self.waiting += len(self._unplaced())
        self._begin(self.attempt + 1, "Restarting", why=why)

    def _unplaced(self) -> list[Place]:
        """Replicas without a node. An ignored one needs none, so its room counts as free."""
        return [there for place, there in self.places.items() if not there.placed and place not in self.ignored]

    @property
    def probes_for_room(self) -> bool:
        """Growth may be tried: 4, 16, then 60 minutes after failed scale-ups in the last 6 hours and ten attempts."""
        if self.ran_at is None or any(place.phase in ("Done", "Failed") for place in self.places.values()):
            return False
        last, since = self.past[-10:], self.ran_at - timedelta(hours=6)
        failures = [one for one, two in pairwise(last) if (one[0], two[0]) == ("Grown", "Shrunk") and two[1] > since]
        minutes = (0, 4, 16, 60, 60, 60, 60)[len(failures)]
        return self.now >= self.ran_at + timedelta(minutes=minutes)

    def _workers(self) -> int:
        return sum(role == "worker" for role, _ in self.places)

    def _begin(self, attempt: int, phase: str, wait: timedelta = timedelta(0), why: str = "") -> None:
        if self.live and self.begun:
            self.past.append((why, self.now))
        self.ran_at = None
        self.attempt, self.phase, self.begun, self.ignored = attempt, phase, True, set()
        self.active_since = self.active_since or self.now
        self.created_at, self.room, self.left = self.now + wait, [], {}
        sizes = self._sizes()
        if self.waiting:
            sizes["worker"] -= self.waiting
        self.places = {(role, i): Place(self.now + wait) for role, n in sizes.items() for i in range(n)}

    def _failed(self, place: tuple[str, int], failure: Failure) -> None:
        if not self.live or place in self.ignored:
            return
        role, index = place
        there = self.places[place]
        alone = restarts_individually(self.spec, role, index)
        if not alone and failure.reason == "Error" and failure.code not in (None, 137) and self._has_upstream(failure):
            return
        before = there.last if alone else None
        if before is None and self.before and self.before[0] == self.attempt - 1:
            before = self.before[1]
        left = [one for one in self._target() if one not in self.ignored]
        since = self.first_ran_at
        trained = failure.ran >= PROGRESS or (since is not None and self.now - since >= PROGRESS)
        failure = replace(failure, place=place)
        before_counted = there.counted if alone and there.last is not None else self.attempt - 1 in self.ends
        action = rule_on(self.spec, self.counted, failure, before, left == [place], trained, before_counted)
        self.root_cause = (self.attempt, role, index, failure.code, failure.reason)
        idle = there.idle + 1 if failure.ran < PROGRESS else 0
        if alone and self._is_correlated(place, failure):
            again = {"last": failure, "failed_at": self.now, "own": True, "idle": idle}
            self.places[place] = Place(self.now + backoff(self.spec, None, idle), there.restarts + 1, **again)
        elif action == "Fail":
            self._end("Failed", self.now)
        elif action == "Ignore":
            self.ignored.add(place)
        else:
            counts = action == "Restart"
            self.counted += counts
            self.disruptions += not counts
            self.by_reason[failure.reason] += 1
            if alone:
                wait = backoff(self.spec, self.counted if counts else None, idle)
                last = {"last": failure, "failed_at": self.now, "counted": counts, "own": True, "idle": idle}
                self.places[place] = Place(self.now + wait, there.restarts + 1, **last)
            else:
                self._count_idle(failure, self.now)
                wait = backoff(self.spec, self.counted if counts else None, self.idle)
                self.before = (self.attempt, failure)
                if counts and not failure.disruption:
                    self.ends[self.attempt] = failure.reason
                self._begin(self.attempt + 1, "Restarting", wait)

    def _is_correlated(self, place: tuple[str, int], failure: Failure) -> bool:
        """Another replica failed in the same way within the last minute, while this one ran, and was counted."""
        return failure.reason == "Error" and any(
            other != place
            and there.counted
            and there.failed_at is not None
            and self.now - failure.ran < there.failed_at
            and self.now - there.failed_at <= timedelta(seconds=60)
            and there.last is not None
            and (there.last.code, there.last.message, there.last.reason)
            == (failure.code, failure.message, failure.reason)
            for other, there in self.places.items()
        )

    def _has_upstream(self, failure: Failure) -> bool:
        """Restarts all if an individually restarted replica failed within the last minute; it is already counted."""
        if self.before and self.before[0] == self.attempt - 1:
            was = self.before[1]
            if (was.code, was.message, was.reason) == (failure.code, failure.message, failure.reason):
                return False
        lost = [
            (there.failed_at, place)
            for place, there in self.places.items()
            if place[0] != "evaluator" and there.failed_at and self.now - there.failed_at <= timedelta(seconds=60)
        ]
        if not lost:
            return False
        _, place = min(lost)
        there = self.places[place]
        assert there.last
        self.before = (self.attempt, there.last)
        self.root_cause = (self.attempt, *place, there.last.code, there.last.reason)
        assert there.failed_at
        self._count_idle(there.last, there.failed_at)
        wait = max(there.decided - self.now, backoff(self.spec, None, self.idle))
        self._begin(self.attempt + 1, "Restarting", wait)
        return True

    def _count_idle(self, failure: Failure, when: datetime) -> None:
        """Counts a restart of the group without progress, or begins at 0 after progress."""
        ran = max(failure.ran, when - self.ran_at if self.ran_at else timedelta(0))
        self.idle = self.idle + 1 if ran < PROGRESS else 0

    def _update(self) -> None:
        if not self.live:
            return
        left = [place for place in self._target() if place not in self.ignored]
        if left and all(self.places[place].phase == "Done" for place in left):
            self._end("Succeeded", self.now)
        elif self._all_run():
            self.phase, self.ran_at = "Running", self.ran_at or self.now
            self.first_ran_at = self.first_ran_at or self.now
        if (due := self._refit_at()) and due <= self.now:
            self._refit()

    def _all_run(self) -> bool:
        must = {p: there.phase in ("Running", "Done") for p, there in self.places.items() if p not in self.ignored}
        first = ("head" if self.spec["framework"] == "ray" else "worker", 0)
        if absorbs_resize(self.spec) and must.get(first):
            workers = sum(run for (role, _), run in must.items() if role == "worker")
            return workers >= int(self.spec["elastic"]["minReplicas"])
        return all(must.values())

    def _target(self) -> list[tuple[str, int]]:
        return target(self.spec, list(self.places))

    def _end(self, phase: str, when: datetime) -> None:
        self.phase, self.over_at, self.active_since = phase, when, None
