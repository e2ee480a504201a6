"""What must hold: at every write, at every decision, and when all is quiet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from allranks.api.status import Failure as Told
from allranks.api.status import Status
from allranks.core.model import Observed, Plan, Pod
from allranks.core.naming import ATTEMPT_LABEL, RESTART_LABEL
from support.simulator import Audit, Cluster
from support.simulator.store import Change, Key, controller_of, ended

from .jobs import JOB, KEY
from .reference import BAD_STARTS, Failure, Reference, rule_on

Manifest = dict[str, Any]

DISRUPTIONS = {
    "PreemptionByScheduler": "Preempted",
    "EvictionByEvictionAPI": "Evicted",
    "DeletionByTaintManager": "NodeLost",
    "SomethingNew": "Disrupted",
}
"""Reason of condition DisruptionTarget -> reason of the failure."""
UNCOUNTED = {*DISRUPTIONS.values(), "Deleted"}


class Broken(AssertionError):
    """Something that must always hold does not."""


def hold(condition: bool, message: str) -> None:
    """Raises Broken."""
    if not condition:
        raise Broken(message)


@dataclass
class Tally:
    """What was done to pods, and what became of the job: kept without asking the operator."""

    uid: str = ""
    """The job's."""
    failures: dict[str, list[str]] = field(default_factory=dict)
    """Pod name -> reasons of the failures that were injected into it, in order."""
    names: dict[str, str] = field(default_factory=dict)
    """UID -> name of every object that was ever the job's."""
    foreign: dict[Key, Manifest] = field(default_factory=dict)
    """Somebody else's objects, as they were made."""
    blamed: list[str] = field(default_factory=list)
    """Pods whose failure a restart was written for, in order."""


class Watchdog:
    """Looks at every write to the store as it happens, whoever writes."""

    def __init__(self, cluster: Cluster, tally: Tally, late_requests: bool) -> None:
        self._cluster, self._tally, self._late_requests = cluster, tally, late_requests
        self._before: Manifest | None = None
        # Before all others: what they do about a change must not be seen before it.
        cluster.store.watchers.insert(0, self._changed)

    def _changed(self, change: Change) -> None:
        kind, _, name = change.key
        if change.key == KEY:
            self._tally.uid = change.object["metadata"]["uid"]
            if change.kind == "MODIFIED" and "status" in change.object:
                self._status_written(change.object["status"])
        elif kind == "Pod" and controller_of(change.object) != self._tally.uid:
            hold(change.kind == "ADDED", f"{name} is somebody else's, and was touched")
        elif change.kind == "ADDED":
            self._tally.names[change.object["metadata"]["uid"]] = name
            hold(controller_of(change.object) == self._tally.uid, f"{kind} {name} is not owned by the job")
            if kind == "Pod":
                self._pod_created(change.object)

    def _pod_created(self, pod: Manifest) -> None:
        name, labels = name_of(pod), pod["metadata"]["labels"]
        role, index, attempt = place_of(pod)
        restart = int(labels.get(RESTART_LABEL, 0))
        hold(name == pod_name(role, index, attempt, restart), f"{name} is not the computed name")
        hold(labels[ATTEMPT_LABEL] == str(attempt), f"{name} says it is of attempt {labels[ATTEMPT_LABEL]}")
        if self._late_requests:
            return
        status = self._before or {}
        entry = status.get("replicaRestarts", {}).get(f"{role}-{index}", {}).get("count", 0)
        # A small job begins with its pods, which are those of attempt 0.
        written = (status["attempt"] if status else 0, entry)
        hold(written == (attempt, restart), f"{name} was created before status said so: {status}")
        hold(status.get("phase") not in ("Succeeded", "Failed", "Suspended"), f"{name} in phase {status.get('phase')}")
        for other in self._cluster.pods():
            if controller_of(other) == self._tally.uid and name_of(other) != name and not ended(other["status"]):
                twin = place_of(other) == (role, index, attempt) and not is_going(other)
                hold(not twin, f"{name} and {name_of(other)} live at the same time")

    def _status_written(self, status: Manifest) -> None:
        before, self._before = self._before, status
        conditions = {c["type"]: c for c in status["conditions"]}
        true = {kind for kind, condition in conditions.items() if condition["status"] == "True"}
        expected = {"Pending": set(), "Succeeded": {"Complete"}}.get(status["phase"], {status["phase"]})
        hold(true == expected, f"phase {status['phase']} with conditions {sorted(true)}")
        hold(not {"Complete", "Failed"} <= set(conditions), "both Complete and Failed")
        restarts = status["restarts"]
        hold(sum(restarts["byReason"].values()) == restarts["counted"] + restarts["disruptions"], f"{restarts}")
        self._times_add_up(status.get("times"))
        if before is not None:
            self._status_changed(before, status)

    def _times_add_up(self, times: Manifest | None) -> None:
        """The four times are the job's age, whatever has happened to it; what was lost has reasons."""
        job = self._cluster.job(KEY)
        if times is None or job is None:
            return
        created = datetime.fromisoformat(job["metadata"]["creationTimestamp"])
        age = (datetime.fromisoformat(times["since"]) - created).total_seconds()
        total = sum(times[kind] for kind in ("queued", "starting", "productive", "lost"))
        hold(abs(total - age) < 0.001, f"{times} is {total} s of {age} s")
        hold(abs(sum(times["byReason"].values()) - times["lost"]) < 0.001, f"reasons of what is lost: {times}")

    def _status_changed(self, before: Manifest, status: Manifest) -> None:
        attempts = status["attempt"] - before["attempt"]
        counts = [status["restarts"][kind] - before["restarts"][kind] for kind in ("counted", "disruptions")]
        hold(attempts in (0, 1), f"attempt went from {before['attempt']} to {status['attempt']}")
        alone = [] if attempts else _restarted_alone(before, status)
        corrected = counts == [-1, 1] and not attempts and not alone  # what was counted turned out to be a disruption
        # Pods that restart alone are written together, and with the restart of all that comes next.
        most = 1 + len(self._of_attempt(before["attempt"])) if attempts else len(alone)
        expected = min(counts) >= 0 and sum(counts) <= most
        hold(expected or corrected, f"restarts: {before['restarts']}, then {status['restarts']}, {alone}")
        hold(corrected or attempts or not all(counts), f"counted and uncounted in one write: {counts}")
        if before["phase"] in ("Succeeded", "Failed"):
            verdict = ("phase", "attempt", "restarts", "completionTime", "lastFailure", "conditions")
            same = all(status.get(part) == before.get(part) for part in verdict)
            hold(same, f"the verdict changed: {before}, then {status}")
        if sum(counts) and attempts:
            self._blamed(status["lastFailure"])
        elif sum(counts):
            blamed = [entry["failure"] for entry in alone if entry["counted"] == bool(counts[0])]
            hold(len(blamed) >= sum(counts), f"{counts}, and {alone} were restarted")
            # Of what does not count, some may follow what was blamed before.
            for failure in blamed if len(blamed) == sum(counts) else []:
                self._blamed(failure)
        elif attempts:
            resumed = before["phase"] == "Suspended" and status["phase"] == "Pending"
            told = {c["type"]: c["reason"] for c in status["conditions"]}
            fitted = told.get("Restarting") in ("Resized", "Shrunk", "Grown")
            lost = status["history"][-1].get("failure") if status["history"] else None
            followed = lost is not None and lost["pod"] in self._tally.blamed
            hold(resumed or fitted or followed, f"attempt {status['attempt']} counts as nothing")

    def _of_attempt(self, attempt: int) -> list[Manifest]:
        ours = (pod for pod in self._cluster.pods() if controller_of(pod) == self._tally.uid)
        return [pod for pod in ours if place_of(pod)[2] == attempt]

    def _blamed(self, failure: Manifest) -> None:
        pod, reason = failure["pod"], failure["reason"]
        injected = self._tally.failures.get(pod, [])
        # Of a pod that is gone before the operator looks, only that it is gone can be told.
        vanished = reason == "Deleted" and bool(UNCOUNTED.intersection(injected))
        hold(pod not in self._tally.blamed, f"{pod} was counted twice")
        hold(reason in injected or vanished, f"{pod} is blamed for {reason}, and it did {injected}")
        self._tally.blamed.append(pod)


def check_settled(cluster: Cluster, tally: Tally) -> None:
    """What the operator knows is the truth, it finds nothing to do, and it would find so again.

    If the job is gone, so is all that was its own.
    """
    job, operator = cluster.job(KEY), cluster.operator
    if job is None or operator is None:
        left = [name_of(o) for o in cluster.store.all() if o["metadata"]["uid"] in tally.names]
        hold(not left, f"the job is gone, and these are left: {left}")
        return
    known = operator.observe(operator.informer.jobs[KEY])
    operator.informer.relist()
    observed = operator.observe(job)
    hold(_sorted(known) == _sorted(observed), "the operator's view is not the truth after everything arrived")
    left = [pod.name for pod in observed.pods if pod.owned and not pod.deleted_at and _is_old(pod, observed.status)]
    hold(not left, f"pods of older attempts are left: {left}")
    if observed.status.phase in ("Succeeded", "Failed"):
        policy = observed.job.spec.clean_pod_policy
        idle = [pod for pod in observed.pods if pod.owned and (policy == "All" or not pod.ended)]
        hold(policy == "None" or not idle, f"cleanPodPolicy is {policy}, and these are left: {idle}")
    plan = cluster.reconcile(observed)
    if observed.refused:
        hold(plan.status is None and not plan.delete, f"only refused creations are left, and still: {plan}")
    else:
        hold(plan.empty, f"not settled: {plan}")
    check_function(cluster.reconcile, observed, plan)


def check_function(reconcile: Callable[[Observed], Plan], observed: Observed, plan: Plan) -> None:
    """The same observation gives the same plan, whatever the order of pods."""
    hold(plan == reconcile(observed), "not deterministic")
    turned = replace(observed, pods=tuple(reversed(observed.pods)))
    hold(plan == reconcile(turned), "depends on the order of pods")


def check_untouched(cluster: Cluster, tally: Tally) -> None:
    """Over the whole history: nobody else's object was touched, and every deletion was of the job's own."""
    for key, foreign in tally.foreign.items():
        hold(cluster.store.find(key) == foreign, f"{key} was touched")
    strangers = [uid for uid in cluster.audit.deletes if uid not in tally.names and uid != tally.uid]
    hold(not strangers, f"deleted what was not the job's: {strangers}")


def check_decisions(audit: Audit, reconcile: Callable[[Observed], Plan]) -> None:
    """Each decision, against what the operator could see then."""
    for number, (observed, plan) in enumerate(audit.decisions):
        if number % 3 == 0:
            check_function(reconcile, observed, plan)
        if plan.write_ahead and plan.status and plan.status.last_failure != observed.status.last_failure:
            _check_cause(observed, plan.status)


def _check_cause(observed: Observed, status: Status) -> None:
    """The first that failed is blamed, and it is counted as the rules say."""
    before, failure = observed.status, status.last_failure
    assert failure is not None
    if any(
        restarted.failure and restarted.failure.pod == failure.pod for restarted in before.replica_restarts.values()
    ):
        return  # it was blamed before, and took the others along
    if failure.attempt < before.attempt:
        _check_hindsight(observed, failure)
        return
    if failure.reason in BAD_STARTS:
        return  # it never ran, and whoever failed meanwhile changes nothing about it
    seen = [pod for pod in observed.pods if pod.owned and _holds_a_place(pod, before) and _fell(pod)]
    fell = {pod.name: _fell_at(pod, observed.now) for pod in seen}
    given_up = _given_up(before, status) or [failure]
    with_it = {failure.pod} | {told.pod for told in given_up}
    decided, others = ([at for pod, at in fell.items() if (pod in with_it) == is_it] for is_it in (True, False))
    hold(not fell or bool(decided), f"{failure.pod} is blamed, and not among those that fell: {fell}")
    hold(not others or max(decided) <= min(others), f"{with_it} were not the first of {fell}")
    counted = status.restarts.counted - before.restarts.counted
    if counted + status.restarts.disruptions - before.restarts.disruptions != len(given_up):
        return  # some follow what was blamed before
    spec = observed.job.spec.model_dump(by_alias=True, exclude_none=True)
    for number, each in enumerate(given_up):
        told = Failure(each.reason, each.reason in UNCOUNTED, each.exit_code)
        action = rule_on(spec, before.restarts.counted + (number if counted else 0), told, None)
        hold(action == ("restart" if counted else "restartUncounted"), f"{action} was due for {each}")


def _given_up(before: Status, status: Status) -> list[Told]:
    """The failures for which one pod each is restarted by this status."""
    if status.attempt != before.attempt:
        return []
    known = before.replica_restarts
    news = (r for name, r in status.replica_restarts.items() if name not in known or r.count > known[name].count)
    return [restarted.failure for restarted in news if restarted.failure]


def _check_hindsight(observed: Observed, found: Told) -> None:
    """A cause that shows only later: a lost node, or a pod of that attempt that ended no later than the one blamed."""
    if found.reason == "NodeLost":
        return
    ended = {pod.name for pod in observed.pods if pod.owned and pod.exit and pod.exit.code != 0}
    blamed = next((past.failure for past in observed.status.history if past.attempt == found.attempt), None)
    hold(found.pod in ended, f"{found} is told of an attempt that is over, and that pod did not fail")
    hold(blamed is not None and blamed.pod != found.pod, f"{found} is no news: {blamed} was blamed")
    hold(blamed is not None and found.time <= blamed.time, f"{found} came after {blamed}")


def check_against(reference: Reference, cluster: Cluster) -> None:
    """The job is where the reference says it is."""
    job = cluster.job(KEY)
    hold((job is None) == reference.deleted, f"the job is {'gone' if job is None else 'there'}, unlike the reference")
    if job is None:
        return
    status, counts = job["status"], job["status"]["restarts"]
    found = (status["phase"], status["attempt"], counts["counted"], counts["disruptions"], counts["byReason"])
    wanted = (
        *(reference.phase, reference.attempt, reference.counted, reference.disruptions),
        dict(reference.by_reason),
    )
    hold(found == wanted, f"{found}, and the reference says {wanted}")
    last = status.get("lastFailure")
    blamed = last and (last["attempt"], last["role"], last["index"], last.get("exitCode"), last["reason"])
    hold(blamed == reference.blamed, f"blamed {blamed}, and the reference says {reference.blamed}")
    if reference.over:
        return
    pods = [pod for pod in cluster.pods() if controller_of(pod) == job["metadata"]["uid"] and not is_going(pod)]
    present = {name_of(pod) for pod in pods if place_of(pod)[:2] not in reference.ignored}
    due = {
        pod_name(role, index, reference.attempt, there.restarts)
        for (role, index), there in reference.places.items()
        if there.decided <= cluster.now and (role, index) not in reference.ignored
    }
    if reference.phase == "Running" and reference.seeks_room:
        size = len([place for place in reference.places if place[0] == "worker"])
        due |= {pod_name("worker", size + more, reference.attempt) for more in range(reference.lacking)}
    hold(present == due, f"pods {sorted(present)}, and the reference says {sorted(due)}")


def pod_name(role: str, index: int, attempt: int, restart: int = 0) -> str:
    """As the semantics say: told here once more, so that the core cannot change it unseen."""
    return f"{JOB}-{role}-{index}-{attempt}" + (f"-{restart}" if restart else "")


def name_of(pod: Manifest) -> str:
    name: str = pod["metadata"]["name"]
    return name


def place_of(pod: Manifest) -> tuple[str, int, int]:
    """(role, index, attempt), from the name: labels may have been played with."""
    role, index, attempt = name_of(pod).removeprefix(f"{JOB}-").split("-")[:3]
    return role, int(index), int(attempt)


def is_going(pod: Manifest) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _restarted_alone(before: Manifest, status: Manifest) -> list[Manifest]:
    """What status says of the replicas that this write restarts alone, each of them once."""
    known, out = before.get("replicaRestarts", {}), []
    for replica, entry in status.get("replicaRestarts", {}).items():
        more = entry["count"] - known.get(replica, {}).get("count", 0)
        hold(more in (0, 1), f"{replica} was restarted {more} times in one write")
        out += [entry] * more
    return out


def _sorted(observed: Observed) -> Observed:
    return replace(observed, pods=tuple(sorted(observed.pods, key=lambda pod: pod.uid)), refused=())


def _fell(pod: Pod) -> bool:
    going = [moment for moment in (pod.disruption and pod.disruption.at, pod.deleted_at) if moment]
    # A program that saves and exits with 0 because it was told to go has not done its work.
    well = pod.exit is not None and pod.exit.code == 0 and not (going and min(going) <= pod.exit.finished_at)
    return not well and (pod.phase == "Failed" or pod.deleted_at is not None or pod.disruption is not None)


def _fell_at(pod: Pod, now: datetime) -> datetime:
    """A pod whose program never ran does not say when it failed: no later than now."""
    moments = (pod.exit and pod.exit.finished_at, pod.disruption and pod.disruption.at, pod.deleted_at)
    return min((moment for moment in moments if moment), default=now)


def _is_old(pod: Pod, status: Status) -> bool:
    return int(pod.name.removeprefix(f"{JOB}-").split("-")[2]) < status.attempt


def _holds_a_place(pod: Pod, status: Status) -> bool:
    """By its name, in the attempt that status speaks of, and not one whose failure is ignored."""
    if pod.name.count("-") not in (3, 4):
        return False
    role, index, attempt, *restart = pod.name.removeprefix(f"{JOB}-").split("-")
    entry = status.replica_restarts.get(f"{role}-{index}")
    wanted = (status.attempt, entry.count if entry else 0)
    there = int(index) < (status.roles[role].desired if role in status.roles else 0)
    return (int(attempt), int(*restart or "0")) == wanted and there and f"{role}-{index}" not in status.ignored
