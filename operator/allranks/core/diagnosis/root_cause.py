"""Finds the root cause: the earliest failure of an attempt by the `finishedAt` of containers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

from allranks.api.job import Job
from allranks.api.status import Because, Failure, Status
from allranks.core.diagnosis import last_words
from allranks.core.diagnosis.last_words import LastWords
from allranks.core.diagnosis.pod_ends import failed
from allranks.core.diagnosis.reasons import DISRUPTIONS, LOST_PEER, SIGTERM, possible_signal
from allranks.core.facts import naming, topology
from allranks.core.facts.attempt import Ranks
from allranks.core.facts.model import ANY_PLATFORM, INIT_FAILED, UNKNOWN_END, Platform, Pod
from allranks.frameworks.base import Replica
from allranks.frameworks.hints import RootCause
from allranks.text import without_exit_warnings

MESSAGE_LINES = 20
MESSAGE_CHARACTERS = 2048


def failures(
    job: Job,
    status: Status,
    pods: Iterable[Pod],
    missing: Iterable[Replica],
    now: datetime,
    platform: Platform = ANY_PLATFORM,
    removed: Mapping[str, Pod] | None = None,
) -> Iterator[Failure]:
    """Yield the failures of `pods` (all failed), earliest first, then the failures of `missing` (replicas whose pod was
    deleted).

    `removed` (name -> last state) are deleted pods whose status says what ended them: a missing replica with such a pod
    counts as one of `pods`. A failure is described when it is taken: often the first one decides.
    """
    framework, ranks = topology.framework_of(job), Ranks(job, status, platform)
    gone = {pod_name(job, status, replica): replica for replica in missing}
    last = [pod for name in gone if (pod := (removed or {}).get(name)) and failed(pod)]
    endings = [
        _Ending(pod, framework.log.root_cause(pod.exit.message) if pod.exit else None, now) for pod in (*pods, *last)
    ]
    for ending in _in_order(endings):
        yield _describe(status, ending, ranks)
    for pod in last:
        del gone[pod.name]
    for replica in sorted(gone.values(), key=lambda r: (r.node_rank is None, r.node_rank or 0, r.role, r.index)):
        yield Failure(
            attempt=status.attempt,
            role=replica.role,
            index=replica.index,
            rank=ranks.rank(replica.role, replica.index),
            pod=pod_name(job, status, replica),
            reason="Deleted",
            message=_DELETED,
            time=now,
        )


def _in_order(endings: list[_Ending]) -> list[_Ending]:
    """Return the endings with the likely cause first.

    Ranks that only lost a peer are last, and with them ranks that were ended after that: whatever ended the peer
    was first, also if its process took longer to end.
    """
    lost_at = min((ending.time for ending in endings if ending.lost_peer), default=None)

    def key(ending: _Ending) -> tuple[bool, Order, str, int]:
        stopped = lost_at is not None and ending.was_stopped and ending.time >= lost_at
        return ending.lost_peer or stopped, ending.order, ending.pod.role, ending.pod.index

    return sorted(endings, key=key)


def pod_name(job: Job, status: Status, replica: Replica) -> str:
    """Return the name of the replica's pod in the current attempt."""
    restart = status.replica_restarts.get(naming.replica_key(replica.role, replica.index))
    number = restart.pod_number if restart else 0
    return naming.pod_name(job.name, replica.role, replica.index, status.pod_attempt, number)


_DELETED = "the pod was deleted by someone"


Order = tuple[datetime, int, int]
"""Sort key of failures: the time, then within one second typical causes before typical consequences, then the
microsecond that a launcher logged."""

_END_OF_SECOND = 1_000_000


def _precedence(reason: str, code: int | None, signal: int | None) -> int:
    if code is None or reason == "OOMKilled":
        return 0
    if signal in (6, SIGTERM):  # SIGABRT by a watchdog, SIGTERM by a launcher
        return 3
    return 1 if signal else 2


@dataclass(frozen=True)
class _Ending:
    """A failed pod with the report of its launcher."""

    pod: Pod
    cause: RootCause | None
    now: datetime

    @cached_property
    def disrupted(self) -> bool:
        """The pod was removed before the program ended by itself."""
        return self.pod.terminating

    @cached_property
    def time(self) -> datetime:
        """Time of the failure. A launcher stops its other workers before it exits, so its report is more exact."""
        pod = self.pod
        ended = pod.exit.finished_at if pod.exit else None
        if ended and self.cause and self.cause.time and not self.disrupted:
            # The report has no time zone. Zones differ by multiples of 15 minutes, and a launcher exits much faster.
            return ended - (ended.replace(tzinfo=None) - self.cause.time) % timedelta(minutes=15)
        return min((moment for moment in (ended, pod.termination_requested_at) if moment), default=self.now)

    @property
    def order(self) -> Order:
        # An unknown microsecond comes last: torchrun often logs a failure at the end of a second in the next one.
        microsecond = self.cause.microsecond if self.cause and not self.disrupted else None
        precedence = _precedence(self.reason, self.code, possible_signal(self.code, self.signal))
        return self.time, precedence, _END_OF_SECOND if microsecond is None else microsecond

    @property
    def sure(self) -> bool:
        """The program certainly ended by itself, and not because of a deletion later in the same second."""
        return self.reason == "OOMKilled" or (self.cause is not None and self.cause.time is not None)

    @cached_property
    def words(self) -> LastWords | None:
        """What the program printed about its end; None without an exception or a fatal error, and of a removed pod."""
        return last_words.last_words(self.message, self.code) if self.by_itself else None

    @property
    def by_itself(self) -> bool:
        return not self.disrupted and self.pod.exit is not None

    @cached_property
    def lost_peer(self) -> bool:
        """The program only says that other ranks were gone, so it is not the one that failed first."""
        return self.by_itself and self.reason == "Error" and last_words.lost_peer(self.message, self.words)

    @property
    def because(self) -> Because | None:
        """The evidence in the output of the pod, or in its init container."""
        if self.lost_peer:
            return LOST_PEER
        if self.by_itself and self.reason == "Error":
            return last_words.kind_of_error(self.message, self.words)
        init = self.pod.init
        of_user = init is not None and not init.name.startswith(_ADDED_CONTAINERS)
        return "InitContainer" if of_user and self.reason == INIT_FAILED else None

    @property
    def was_stopped(self) -> bool:
        return possible_signal(self.code, self.signal) == SIGTERM

    @cached_property
    def watched(self) -> re.Match[str] | None:
        """The last line of the log if the helper in the pod (inpod/watch.py) reports the signal of its child."""
        ended = self.pod.exit
        match = _WATCHED.search(ended.message) if ended else None
        return match if ended and match and ended.code == 128 + int(match["signal"]) else None

    @property
    def code(self) -> int | None:
        if self.disrupted or self.pod.exit is None or self.pod.exit.reason == UNKNOWN_END:
            return None
        reported = self.cause.exit_code if self.cause else None
        return self.pod.exit.code if reported is None else reported

    @property
    def signal(self) -> int | None:
        if self.disrupted or self.pod.exit is None or self.pod.exit.reason == UNKNOWN_END:
            return None
        if self.cause and self.cause.exit_code is not None:
            return self.cause.signal
        return self.pod.exit.signal or (self.watched and int(self.watched["signal"])) or None

    @property
    def reason(self) -> str:
        pod = self.pod
        if not self.disrupted and pod.exit:
            return pod.exit.reason or "Error"
        if pod.disruption:
            return DISRUPTIONS.get(pod.disruption.reason, "Disrupted")
        if pod.deleted_at:
            return "Deleted"
        # An init container failed, or the kubelet rejected the pod.
        return pod.start_error or pod.waiting_reason or "PodFailed"

    @property
    def message(self) -> str:
        pod = self.pod
        if not self.disrupted and pod.exit:
            return self._output
        if pod.disruption:
            return pod.disruption.message
        return _DELETED if pod.deleted_at else pod.waiting_text if pod.start_error else pod.waiting_message

    @cached_property
    def _output(self) -> str:
        """What the program printed; without the lines of other ranks of the pod, if these lost the one that failed."""
        ended, cause = self.pod.exit, self.cause
        text = ended.message if ended else ""
        text = (cause.message if cause else None) or without_exit_warnings(
            text[: self.watched.start()] if self.watched else text
        )
        if cause is None or cause.rank is None:
            return text
        words = last_words.last_words(text, self.code)
        lost = words is not None and words.lost_peer and words.rank not in (None, cause.rank)
        return last_words.of_rank(text, cause.rank) if lost else text


_ADDED_CONTAINERS = "allranks"
"""The beginning of the names of init containers that allranks adds."""
_WATCHED = re.compile(r"^allranks: the program was ended by signal (?P<signal>[0-9]{1,2}) \(\w+\)\s*\Z", re.MULTILINE)


def _describe(status: Status, ending: _Ending, ranks: Ranks) -> Failure:
    """Return the failure of one pod as in `status.lastFailure`."""
    pod = ending.pod
    reported = ending.cause.rank if ending.cause else None
    if ending.words and ending.words.rank is not None:
        reported = ending.words.rank
    code = _within(ending.code, -(2**31))
    rank = ranks.rank(pod.role, pod.index) if reported is None else _within(reported, 0)
    return Failure(
        attempt=status.attempt,
        role=pod.role,
        index=pod.index,
        rank=None if ending.words and ending.words.of_child else rank,
        pod=pod.name,
        node=pod.node,
        exit_code=code,
        signal=_within(ending.signal, 1, 128),
        reason=ending.reason[:128],
        because=ending.because,
        message=last_words.excerpt(ending.message, code, MESSAGE_LINES, MESSAGE_CHARACTERS),
        time=ending.time,
        ran_seconds=max(0.0, (ending.time - pod.started_at).total_seconds()) if pod.started_at else 0.0,
    )


def _within(number: int | None, least: int, most: int = 2**31 - 1) -> int | None:
    """Return the number, or None if it is out of range: a launcher's report comes from a log, which can contain
    anything."""
    return number if number is not None and least <= number <= most else None


def end_of_pod(job: Job, status: Status, pod: Pod, now: datetime, platform: Platform = ANY_PLATFORM) -> Failure:
    """Return the end of a pod, as its kubelet or the node controller describes it, as a failure of its attempt.

    `status`: with the number of this attempt. The deletion of the pod was our own.
    """
    return _describe(status, _Ending(replace(pod, deleted_at=None), None, now), Ranks(job, status, platform))


def earlier_failure(
    job: Job, status: Status, recorded: Failure, pod: Pod, now: datetime, ranks: Ranks
) -> Failure | None:
    """Return the failure of a pod that was deleted with its attempt, if it was earlier than the recorded root cause.

    `status`: with the number of the attempt.

    The deletion was our own and is no evidence, nor is an exit that the deletion may have caused. Clocks differ and
    Kubernetes has whole seconds: within one second, only a launcher's report shows that a failure was earlier.
    """
    if pod.exit is None or pod.exit.code == 0 or pod.exit.reason == UNKNOWN_END:
        return None
    report = topology.framework_of(job).log.root_cause(pod.exit.message)
    ending = _Ending(replace(pod, deleted_at=None), report, now)
    failure = _describe(status, ending, ranks)
    after_deletion = pod.deleted_at is not None and pod.exit.finished_at >= pod.deleted_at.replace(microsecond=0)
    if recorded.because == LOST_PEER and ending.words and not ending.lost_peer and not ending.words.from_launcher:
        # It was raised before the peers were lost; only its process took longer to end. A signal was the deletion's.
        return replace(failure, exit_code=None, signal=None) if ending.was_stopped else failure
    if ending.lost_peer and recorded.because != LOST_PEER:
        return None  # whatever the clocks say: it lost the rank that is recorded
    if after_deletion and (not ending.sure or possible_signal(failure.exit_code, failure.signal) == SIGTERM):
        return None
    at, then = failure.time.replace(microsecond=0), recorded.time.replace(microsecond=0)
    earlier = (at, _precedence_of(failure)) < (then, _precedence_of(recorded))
    return failure if earlier and (at < then or ending.sure) else None


def _precedence_of(failure: Failure) -> int:
    return _precedence(failure.reason, failure.exit_code, possible_signal(failure.exit_code, failure.signal))
