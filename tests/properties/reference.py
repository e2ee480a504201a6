"""A job's life as the semantics tell it, one event at a time: what the operator must come to, told independently of it.

It knows no pods' manifests, no status, no lag and no crash: it is told what happened, in order, and when. It shares no
code with the core. Two numbers are agreed: an attempt that ran 120 s has made progress, backoff doubles up to 300 s.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

PROGRESS = timedelta(seconds=120)
ALONE = {"ps", "evaluator"}
"""Roles that restart alone."""
BAD_STARTS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"}


@dataclass(frozen=True)
class Failure:
    """`code` None: the pod was taken away, or its program never ran."""

    reason: str
    disruption: bool
    code: int | None = None
    message: str = ""
    ran: timedelta = timedelta(0)


@dataclass
class Place:
    """One replica of the present attempt."""

    decided: datetime
    """Its pod is made from then on."""
    restarts: int = 0
    phase: str = "Pending"
    started: datetime | None = None
    waits_for: str = ""
    gone: bool = False
    last: Failure | None = None
    """Its last failure in this attempt."""


def rule_on(spec: dict[str, Any], counted: int, failure: Failure, before: Failure | None) -> str:
    """`before` is the failure just before this one: of the attempt before, or of the same replica restarting alone."""
    restart = spec["restart"]
    action = next((rule["action"] for rule in restart.get("rules", ()) if _matches(rule, failure)), None)
    if action is None:
        if failure.disruption:
            action = "restartUncounted"
        elif failure.reason == "OOMKilled":
            action = "fail" if before is not None and before.reason == "OOMKilled" else "restart"
        elif failure.code is not None and failure.code < 128 and before is not None:
            same = (before.code, before.message, before.reason) == (failure.code, failure.message, failure.reason)
            no_progress = before.ran < PROGRESS and failure.ran < PROGRESS
            action = "fail" if same and no_progress else "restart"
        else:
            action = "restart"
    return "fail" if action == "restart" and counted >= restart["maxRestarts"] else action


def _matches(rule: dict[str, Any], failure: Failure) -> bool:
    signal = failure.code - 128 if failure.code is not None and 128 < failure.code <= 192 else None
    return (
        failure.code in rule.get("exitCodes", ())
        or signal in rule.get("signals", ())
        or failure.reason in rule.get("reasons", ())
    )


def stands_alone(spec: dict[str, Any], role: str) -> bool:
    """Whether a pod of this role is replaced alone."""
    scope = spec["restart"].get("scope")
    return role in ALONE if scope is None else bool(scope == "pod")


def backoff(spec: dict[str, Any], counted: int) -> timedelta:
    """Before counted restart number `counted`."""
    seconds = spec["restart"]["backoffSeconds"]
    return timedelta(seconds=0 if counted == 1 else min(300, seconds * 2 ** (counted - 2)))


@dataclass
class Reference:
    """The job. `spec` is as the user wrote it, with every default filled in."""

    spec: dict[str, Any]
    now: datetime
    phase: str = ""
    attempt: int = 0
    counted: int = 0
    disruptions: int = 0
    by_reason: Counter[str] = field(default_factory=Counter)
    places: dict[tuple[str, int], Place] = field(default_factory=dict)
    ignored: set[tuple[str, int]] = field(default_factory=set)
    blamed: tuple[int, str, int, int | None, str] | None = None
    """(attempt, role, index, exit code, reason) of the last failure that was ruled on."""
    before: tuple[int, Failure] | None = None
    """(attempt, failure) that ended an attempt."""
    ends: dict[int, str] = field(default_factory=dict)
    """Attempt -> reason of the failure of a rank that ended it, where that counted."""
    begun: bool = False
    active_since: datetime | None = None
    active: timedelta = timedelta(0)
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

    # What happens

    def tick(self, now: datetime, leapt: bool = False) -> None:
        """Time has passed, or leapt: of what was due meanwhile, the first comes true, when it is due, or now."""
        due: list[tuple[datetime, int]] = []
        limit = self.spec.get("activeDeadlineSeconds")
        if self.live and limit is not None and self.active_since is not None:
            due.append((self.active_since + timedelta(seconds=limit) - self.active, 0))
        if self.live:
            patience = timedelta(seconds=self.spec["startupDeadlineSeconds"])
            due += [(p.decided + patience, 1) for p in self.places.values() if p.waits_for in BAD_STARTS]
        if due and min(due)[0] <= now:
            self._end("Failed", now if leapt else max(self.now, min(due)[0]))
        self.now = now
        ttl = self.spec.get("ttlSecondsAfterFinished")
        if self.over and ttl is not None and self.over_at is not None and self.over_at + timedelta(seconds=ttl) <= now:
            self.deleted = True

    def ran(self, place: tuple[str, int]) -> None:
        if place in self.places:
            self.places[place].phase, self.places[place].started = "Running", self.now
            self.places[place].waits_for = ""
        self._look()

    def waits(self, place: tuple[str, int], reason: str) -> None:
        if place in self.places:
            self.places[place].waits_for = reason
        self.tick(self.now)

    def ended(self, place: tuple[str, int], code: int, reason: str, message: str) -> None:
        there = self.places.get(place)
        if there is None:
            return
        there.phase, there.waits_for = ("Done" if code == 0 else "Failed"), ""
        if code:
            ran = self.now - there.started if there.started else timedelta(0)
            self._failed(place, Failure(reason, False, code, message, ran))
        self._look()

    def never_ran(self, place: tuple[str, int], reason: str) -> None:
        if place in self.places:
            self.places[place].phase, self.places[place].waits_for = "Failed", ""
            self._failed(place, Failure(reason, False))

    def lost(self, place: tuple[str, int], reason: str, gone: bool) -> None:
        """The pod is taken away; `gone`: nothing of it is left to see."""
        there = self.places.get(place)
        if there is None or (there.phase == "Done" and not gone):
            return
        there.gone, there.waits_for = gone, ""
        self._failed(place, Failure(reason, True))
        self._look()

    def found_lost(self, attempt: int, place: tuple[str, int]) -> None:
        """The node is lost on which a pod of a past attempt has still to end: that was why the attempt failed."""
        role, index = place
        was = self.ends.get(attempt)
        if self.over or was is None or was == "NodeLost" or stands_alone(self.spec, role):
            return
        cause = Failure("NodeLost", True)
        action = rule_on(self.spec, -1, cause, None)
        if action == "restartUncounted":
            self.counted, self.disruptions = self.counted - 1, self.disruptions + 1
            del self.ends[attempt]
        elif action == "restart":
            self.ends[attempt] = "NodeLost"
        else:
            return
        self.by_reason[was] -= 1
        self.by_reason["NodeLost"] += 1
        self.by_reason = +self.by_reason
        if self.blamed and self.blamed[0] == attempt:
            self.blamed = (attempt, role, index, None, "NodeLost")
        if self.before and self.before[0] == attempt:
            self.before = (attempt, cause)

    def patched(self, change: dict[str, Any]) -> None:
        """A merge patch of the spec."""
        for name, value in change.items():
            self.spec[name] = {**self.spec[name], **value} if isinstance(value, dict) else value
        self._look()
        if self.live and self.spec["suspend"]:
            self.active += self.now - (self.active_since or self.now)
            self.active_since, self.phase, self.places = None, "Suspended", {}
        elif self.phase == "Suspended" and not self.spec["suspend"]:
            self._begin(self.attempt + 1 if self.begun else 0, "Pending")
        self.tick(self.now)
        if self.live and Counter(role for role, _ in self.places) != Counter(self._sizes()):
            self._begin(self.attempt + 1, "Restarting")

    # What follows

    def _sizes(self) -> dict[str, int]:
        return {role: of["replicas"] for role, of in self.spec["roles"].items() if of["replicas"]}

    def _begin(self, attempt: int, phase: str, wait: timedelta = timedelta(0)) -> None:
        self.attempt, self.phase, self.begun, self.ignored = attempt, phase, True, set()
        self.active_since = self.active_since or self.now
        self.places = {(role, i): Place(self.now + wait) for role, n in self._sizes().items() for i in range(n)}

    def _failed(self, place: tuple[str, int], failure: Failure) -> None:
        if not self.live or place in self.ignored:
            return
        role, index = place
        there = self.places[place]
        alone = stands_alone(self.spec, role)
        before = there.last if alone else None
        if not alone and self.before and self.before[0] == self.attempt - 1:
            before = self.before[1]
        action = rule_on(self.spec, self.counted, failure, before)
        self.blamed = (self.attempt, role, index, failure.code, failure.reason)
        if action == "fail":
            self._end("Failed", self.now)
        elif action == "ignore":
            self.ignored.add(place)
        else:
            counts = action == "restart"
            self.counted += counts
            self.disruptions += not counts
            self.by_reason[failure.reason] += 1
            wait = backoff(self.spec, self.counted) if counts else timedelta(0)
            if alone:
                self.places[place] = Place(self.now + wait, there.restarts + 1, last=failure)
            else:
                self.before = (self.attempt, failure)
                if counts and not failure.disruption:
                    self.ends[self.attempt] = failure.reason
                self._begin(self.attempt + 1, "Restarting", wait)

    def _look(self) -> None:
        if not self.live:
            return
        if all(place in self.ignored or self.places[place].phase == "Done" for place in self._target()):
            self._end("Succeeded", self.now)
        elif all(there.phase in ("Running", "Done") for p, there in self.places.items() if p not in self.ignored):
            self.phase = "Running"

    def _target(self) -> list[tuple[str, int]]:
        """Whose completion ends the job."""
        success, framework = self.spec.get("success"), self.spec["framework"]
        roles = {role for role, _ in self.places}
        if success == "all":
            # Parameter servers never end, nor does who only serves a chief or a launcher.
            serves = {"launcher"} <= roles or {"chief", "ps"} <= roles
            return [p for p in self.places if p[0] != "ps" and not (serves and p[0] == "worker")]
        if success is not None:
            return [place for place in self.places if place[0] == success]
        first = {"pytorch": ("master", 0), "tensorflow": ("chief", 0), "horovod": ("launcher", 0)}[framework]
        if first[0] in roles:
            return [first]
        workers = [place for place in self.places if place[0] == "worker"]
        return workers[:1] if framework == "tensorflow" else workers

    def _end(self, phase: str, when: datetime) -> None:
        self.phase, self.over_at, self.active_since = phase, when, None
