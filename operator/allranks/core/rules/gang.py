"""Gang scheduling: the backend of an attempt, and two jobs that wait for each other without one."""

from __future__ import annotations

from dataclasses import replace

from allranks.core import transitions
from allranks.core.diagnosis import contention
from allranks.core.facts.model import Event
from allranks.core.objects.gangs import choice as gang_choice
from allranks.core.outcomes import Outcome, WaitUntil, write
from allranks.core.snapshot import Snapshot


def choose_backend(snapshot: Snapshot) -> Outcome:
    """Persist the backend that places the attempt's pods together, before the first of them is created.

    The decision that begins an attempt contains the choice already. This rule is for a backend that appeared later,
    while the job waited for it.
    """
    o = snapshot.observed
    if o.current.gang or o.current.launched or snapshot.pods or o.current.attempt_time is None:
        return None
    chosen = gang_choice.choose(o.job, o.current, o.platform, o.optional)
    return write(replace(o.current, gang=chosen)) if chosen else None


def give_up_pods(snapshot: Snapshot) -> Outcome:
    """End an attempt that holds nodes for a part of its pods, so that a rival in the same situation can run."""
    o = snapshot.observed
    if not o.contention.others or (contender := contention.contender(o, snapshot.pods)) is None:
        return None
    due = contention.gives_up_at(contender, o.contention)
    if due is None:
        return None
    if o.now < due:
        return WaitUntil(due)
    rival = contention.strongest(contender, o.contention.others)
    assert rival
    namespace, name = rival.job
    which = "has a higher priority" if rival.priority > contender.priority else "is older"
    where = f"job {name}" if namespace == o.job.namespace else "a job of another namespace with the same TrainingPool"
    placed = sum(1 for pod in snapshot.pods.values() if pod.node)
    reason = (
        f"only {placed} of {len(snapshot.replicas)} pods had nodes for {contender.timeout_seconds} s, and {where}, "
        f"which {which}, waits for nodes as well"
    )
    given_up = transitions.give_up(
        o.job, snapshot.summarised, contention.REASON, reason, contention.backoff(o.current), o.now
    )
    return write(
        given_up, Event(contention.REASON, f"{reason}: the pods are deleted, and created again later", warning=True)
    )
