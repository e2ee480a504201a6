"""Invariants: checked at every write, for every decision, and when nothing more is due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from allranks.api.status import Failure as RecordedFailure
from allranks.api.status import Status
from allranks.core.diagnosis.pod_ends import SETTLING
from allranks.core.facts import development
from allranks.core.facts.model import Exit, Observed, Plan, Pod
from allranks.core.facts.naming import ATTEMPT_LABEL, RESTART_LABEL, decode_indices
from support.simulator import Audit, Cluster
from support.simulator.store import GRACE_SECONDS, Change, Key, controller_of, ended
from support.simulator.supervisors import Supervisor

from .jobs import JOB, KEY
from .reference import BAD_STARTS, Failure, Reference, restarts_individually, rule_on, target

Manifest = dict[str, Any]

DISRUPTIONS = {
    "PreemptionByScheduler": "Preempted",
    "EvictionByEvictionAPI": "Evicted",
    "DeletionByTaintManager": "NodeLost",
    "SomethingNew": "Disrupted",
}
"""Reason of condition DisruptionTarget -> reason of the failure."""
UNCOUNTED = {*DISRUPTIONS.values(), "Deleted"}


class Violation(AssertionError):
    """An invariant does not hold."""


def hold(condition: bool, message: str) -> None:
    """Raises Violation unless the condition holds."""
    if not condition:
        raise Violation(message)


@dataclass
class Tally:
    """Injected failures and their effects, recorded independently of the operator."""

    uid: str = ""
    """UID of the job."""
    failures: dict[str, list[str]] = field(default_factory=dict)
    """Pod name -> reasons of the injected failures, in order."""
    names: dict[str, str] = field(default_factory=dict)
    """UID -> name of every object that the job ever owned."""
    foreign: dict[Key, Manifest] = field(default_factory=dict)
    """Objects of other owners, as they were created."""
    root_causes: list[tuple[str, int]] = field(default_factory=list)
    """Pods whose failure led to a restart, with the attempt, in order."""


class Watchdog:
    """Checks every write to the store immediately, by any client."""

    def __init__(self, cluster: Cluster, tally: Tally, late_requests: bool) -> None:
        self._cluster, self._tally, self._late_requests = cluster, tally, late_requests
        self._before: Manifest | None = None
        self._began: set[tuple[str, int, int]] = set()
        """(role, index, attempt) of the pods whose containers have run."""
        self._alone: list[Manifest] = []
        """The failures of replicas that restarted individually."""
        # First of all watchers: the reactions of the others to a change must come after it.
        cluster.store.watchers.insert(0, self._changed)
        cluster.supervisors.before_start.append(self._program_starts)

    def _program_starts(self, supervisor: Supervisor, attempt: int, code: str | None) -> None:
        """No program starts before all pods of its attempt are down, so that no two attempts run at once. All ranks of
        an attempt have the same code."""
        generation = place_of_name(supervisor.pod[2])[2]
        if supervisor.waits_to_begin:
            self._all_are_there(attempt)
        for other in self._cluster.supervisors.of_pod.values():
            pod = self._cluster.store.find(other.pod)
            if other.owner != supervisor.owner or pod is None or is_going(pod) or other is supervisor:
                continue
            if place_of_name(other.pod[2])[2] != generation or self._is_superseded(pod):
                continue
            process, name = other.process, other.pod[2]
            hold(process.attempt >= attempt, f"attempt {attempt} starts, and {name} is {process}")
            mixed = process.state == "Running" and process.attempt != attempt
            hold(not mixed, f"attempt {attempt} starts, and {name} runs attempt {process.attempt}")
            differs = process.state == "Running" and None not in (code, process.code) and process.code != code
            hold(not differs, f"attempt {attempt} starts with {code}, and {name} runs {process.code}")
        status = self._before or {}
        written = status.get("code", {}).get("sha256")
        hold(
            None in (code, written) or status["attempt"] != attempt or code == written,
            f"attempt {attempt} starts with {code}, and {written} is written",
        )
        waits = status.get("code", {}).get("awaitsChange") and status["attempt"] == attempt
        ends = status.get("restartTime") if waits else None
        early = ends is not None and self._cluster.now < datetime.fromisoformat(ends)
        hold(not early, f"attempt {attempt} starts although it waits for other code")
        self._restart_is_written(supervisor)

    def _restart_is_written(self, supervisor: Supervisor) -> None:
        """A program restarts alone in its pod only after the status says so."""
        pod, restart = self._cluster.store.find(supervisor.pod), supervisor.process.number[1]
        if restart and pod is not None and not is_going(pod) and not self._is_superseded(pod):
            role, index, _ = place_of(pod)
            entry = (self._before or {}).get("replicaRestarts", {}).get(f"{role}-{index}", {})
            written = entry.get("inPod") or 0
            hold(restart <= written, f"restart {restart} in {supervisor.pod[2]} starts, and {written} is written")

    def _all_are_there(self, attempt: int) -> None:
        """The first program of a pod is started when the containers of all replicas run that restart together."""
        status, job = self._before or {}, self._cluster.job(KEY)
        if job is None or status.get("attempt") != attempt:
            return
        sizes = {role: counts["desired"] for role, counts in status["roles"].items()}
        done = {role: decode_indices(text) for role, text in status.get("done", {}).items()}
        for role, index in ((role, index) for role, size in sizes.items() for index in range(size)):
            settled = index in done.get(role, ()) or f"{role}-{index}" in status.get("ignored", ())
            alone = restarts_individually(job["spec"], role, index)
            there = (role, index, attempt) in self._began
            hold(there or settled or alone, f"attempt {attempt} starts without {role}-{index}")

    def _is_superseded(self, pod: Manifest) -> bool:
        """The replica was restarted alone since, or it is ignored."""
        status, (role, index, _) = self._before or {}, place_of(pod)
        entry = _pod_number(status.get("replicaRestarts", {}).get(f"{role}-{index}", {}))
        restart = int(pod["metadata"]["labels"].get(RESTART_LABEL, 0))
        return restart != entry or f"{role}-{index}" in status.get("ignored", [])

    def _changed(self, change: Change) -> None:
        kind, _, name = change.key
        if change.key == KEY:
            self._tally.uid = change.object["metadata"]["uid"]
            if change.kind == "MODIFIED" and "status" in change.object:
                self._status_written(change.object["status"])
        elif kind == "Pod" and controller_of(change.object) != self._tally.uid:
            hold(change.kind == "ADDED", f"{name} of another owner was modified")
        elif change.kind == "ADDED":
            self._tally.names[change.object["metadata"]["uid"]] = name
            hold(controller_of(change.object) == self._tally.uid, f"{kind} {name} is not owned by the job")
            if kind == "Pod":
                self._pod_created(change.object)
        elif kind == "Pod" and change.object["status"].get("phase") != "Pending":
            self._began.add(place_of(change.object))

    def _pod_created(self, pod: Manifest) -> None:
        name, labels = name_of(pod), pod["metadata"]["labels"]
        role, index, attempt = place_of(pod)
        restart = int(labels.get(RESTART_LABEL, 0))
        hold(name == pod_name(role, index, attempt, restart), f"{name} is not the computed name")
        hold(labels[ATTEMPT_LABEL] == str(attempt), f"{name} has the label of attempt {labels[ATTEMPT_LABEL]}")
        if self._late_requests:
            return
        status = self._before or {}
        entry = _pod_number(status.get("replicaRestarts", {}).get(f"{role}-{index}", {}))
        # A small job begins with the pods of attempt 0, before its first status.
        written = (status.get("podsOfAttempt", status["attempt"]) if status else 0, entry)
        hold(written == (attempt, restart), f"{name} was created before the status was written: {status}")
        hold(status.get("phase") not in ("Succeeded", "Failed", "Suspended"), f"{name} in phase {status.get('phase')}")
        for other in self._cluster.pods():
            if controller_of(other) == self._tally.uid and name_of(other) != name and not ended(other["status"]):
                twin = place_of(other) == (role, index, attempt) and not is_going(other)
                hold(not twin, f"{name} and {name_of(other)} run at the same time")

    def _status_written(self, status: Manifest) -> None:
        before, self._before = self._before, status
        conditions = {c["type"]: c for c in status["conditions"]}
        true = {kind for kind, condition in conditions.items() if condition["status"] == "True"}
        expected = {"Pending": set(), "Succeeded": {"Complete"}}.get(status["phase"], {status["phase"]})
        hold(true - {"ReportsLost"} == expected, f"phase {status['phase']} with conditions {sorted(true)}")
        hold(not {"Complete", "Failed"} <= set(conditions), "both Complete and Failed")
        restarts = status["restarts"]
        hold(sum(restarts["byReason"].values()) == restarts["counted"] + restarts["disruptions"], f"{restarts}")
        self._times_add_up(status.get("times"))
        if before is not None:
            self._status_changed(before, status)

    def _times_add_up(self, times: Manifest | None) -> None:
        """The four times add up to the job's age; the reasons add up to the lost time."""
        job = self._cluster.job(KEY)
        if times is None or job is None:
            return
        created = datetime.fromisoformat(job["metadata"]["creationTimestamp"])
        age = (datetime.fromisoformat(times["since"]) - created).total_seconds()
        total = sum(times[kind] for kind in ("queued", "starting", "productive", "lost"))
        hold(abs(total - age) < 0.001, f"{times} is {total} s of {age} s")
        hold(abs(sum(times["byReason"].values()) - times["lost"]) < 0.001, f"reasons of lost time: {times}")

    def _status_changed(self, before: Manifest, status: Manifest) -> None:
        attempts = status["attempt"] - before["attempt"]
        counts = [status["restarts"][kind] - before["restarts"][kind] for kind in ("counted", "disruptions")]
        hold(attempts in (0, 1), f"attempt went from {before['attempt']} to {status['attempt']}")
        alone = [] if attempts else _restarted_alone(before, status)
        self._alone += [entry["failure"] for entry in alone if "failure" in entry]
        corrected = counts == [-1, 1] and not attempts and not alone  # a counted failure turned out to be a disruption
        # Individual restarts are written together, and with a group restart that follows them.
        most = 1 + len(self._of_attempt(before["attempt"])) if attempts else len(alone)
        expected = min(counts) >= 0 and sum(counts) <= most
        hold(expected or corrected, f"restarts: {before['restarts']}, then {status['restarts']}, {alone}")
        hold(corrected or attempts or not all(counts), f"counted and uncounted in one write: {counts}")
        if before["phase"] in ("Succeeded", "Failed"):
            verdict = ("phase", "attempt", "restarts", "completionTime", "lastFailure", "conditions")
            same = all(status.get(part) == before.get(part) for part in verdict)
            hold(same, f"the verdict changed: {before}, then {status}")
        if sum(counts) and attempts:
            self._check_root_cause(status["lastFailure"])
        elif sum(counts):
            causes = [entry["failure"] for entry in alone if entry["counted"] == bool(counts[0])]
            hold(len(causes) >= sum(counts), f"{counts}, and {alone} were restarted")
            # Some uncounted ones may be consequences of an earlier root cause.
            for failure in causes if len(causes) == sum(counts) else []:
                self._check_root_cause(failure, alone=True)
        elif attempts:
            resumed = before["phase"] == "Suspended" and status["phase"] == "Pending"
            reasons = {c["type"]: c["reason"] for c in status["conditions"]}
            resized = reasons.get("Restarting") in ("Restarted", "Resized", "Shrunk", "Grown", "CodeChanged")
            # The cause may itself not be counted, if another replica failed in the same way in that minute.
            lost = status["history"][-1].get("failure") if status["history"] else None
            followed = lost is not None and any(_same(lost, failure) for failure in self._alone)
            hold(
                resumed or resized or followed or (lost is not None and self._is_developed()),
                f"attempt {status['attempt']} has no reason",
            )

    def _is_developed(self) -> bool:
        """Whether failures wait for other code, which counts for nothing."""
        job = self._cluster.job(KEY)
        return job is not None and development.ANNOTATION in job["metadata"].get("annotations", {})

    def _of_attempt(self, attempt: int) -> list[Manifest]:
        ours = (pod for pod in self._cluster.pods() if controller_of(pod) == self._tally.uid)
        return [pod for pod in ours if place_of(pod)[2] == attempt]

    def _check_root_cause(self, failure: Manifest, alone: bool = False) -> None:
        pod, reason, attempt = failure["pod"], failure["reason"], failure["attempt"]
        injected = self._tally.failures.get(pod, [])
        # If the pod disappears before the operator observes its failure, only the deletion is visible.
        unobserved = reason == "Deleted" and bool(UNCOUNTED.intersection(injected))
        # A replica that restarts alone in its pod can fail there several times.
        most = len(injected) if alone else 1
        hold(
            self._tally.root_causes.count((pod, attempt)) < max(1, most),
            f"{pod} was counted twice in attempt {attempt}",
        )
        hold(reason in injected or unobserved, f"{pod} has root cause {reason}, but {injected} were injected")
        self._tally.root_causes.append((pod, attempt))


def check_settled(cluster: Cluster, tally: Tally) -> None:
    """The operator's cache equals the store, its plan is empty, and the plan is deterministic.

    If the job was deleted, so were all objects that it owned.
    """
    job, operator = cluster.job(KEY), cluster.operator
    if job is None or operator is None:
        left = [name_of(o) for o in cluster.store.all() if o["metadata"]["uid"] in tally.names]
        hold(not left, f"the job was deleted, and these objects remain: {left}")
        return
    cached = operator.observe(operator.informer.jobs[KEY])
    operator.informer.relist()
    observed = operator.observe(job)
    hold(_sorted(cached) == _sorted(observed), "the operator's cache differs from the store after all events")
    left = [pod.name for pod in observed.pods if pod.owned and not pod.deleted_at and _is_old(pod, observed.persisted)]
    hold(not left, f"pods of older attempts remain: {left}")
    if observed.persisted.phase in ("Succeeded", "Failed"):
        policy = observed.job.spec.clean_pod_policy
        idle = [pod for pod in observed.pods if pod.owned and (policy == "All" or not pod.ended)]
        hold(
            policy == "None" or observed.persisted.hold or not idle,
            f"cleanPodPolicy is {policy}, and these pods remain: {idle}",
        )
    plan = cluster.reconcile(observed)
    if observed.refused:
        hold(plan.next is None and not plan.delete, f"only rejected creations remain, but the plan is: {plan}")
    else:
        hold(plan.empty and not plan.orders, f"not settled: {plan}")
    check_function(cluster.reconcile, observed, plan)


def _is_held(observed: Observed) -> bool:
    """Whether restart.holdSeconds keeps the pods of this finished job."""
    spec, status = observed.job.spec, observed.persisted
    seconds = spec.restart.hold_seconds or 0
    failed = status.phase == "Failed" and not spec.suspend and status.completion_time is not None
    return failed and (observed.now - status.completion_time).total_seconds() < seconds


def check_function(reconcile: Callable[[Observed], Plan], observed: Observed, plan: Plan) -> None:
    """The same observation gives the same plan, whatever the order of pods."""
    hold(plan == reconcile(observed), "not deterministic")
    turned = replace(observed, pods=tuple(reversed(observed.pods)))
    hold(plan == reconcile(turned), "depends on the order of pods")


def check_untouched(cluster: Cluster, tally: Tally) -> None:
    """Objects of other owners are unmodified in the whole history, and only objects of the job were deleted."""
    for key, foreign in tally.foreign.items():
        hold(cluster.store.find(key) == foreign, f"{key} was modified")
    strangers = [uid for uid in cluster.audit.deletes if uid not in tally.names and uid != tally.uid]
    hold(not strangers, f"deleted objects of other owners: {strangers}")


def check_decisions(audit: Audit, reconcile: Callable[[Observed], Plan]) -> None:
    """Checks each decision against the observation that it was made on."""
    for number, (observed, plan) in enumerate(audit.decisions):
        if number % 3 == 0:
            check_function(reconcile, observed, plan)
        if plan.write_ahead and plan.next and plan.next.phase == "Suspended" != observed.persisted.phase:
            _check_asked(observed)
        if plan.write_ahead and plan.next and plan.next.last_failure != observed.persisted.last_failure:
            _check_cause(observed, plan.next)


def _check_asked(observed: Observed) -> None:
    """Before a suspension, ranks that store checkpoints on request were asked for one, and stored it or had their
    time, unless pods failed or the ranks are silent."""
    before, reports = observed.persisted, observed.reports
    pods = [pod for pod in observed.pods if pod.owned and _holds_a_place(pod, before)]
    size = sum(role.desired for role in before.roles.values())
    silent = any(c.type == "ReportsLost" and c.status == "True" for c in before.conditions)
    if reports is None or silent or len(pods) < size or any(_has_failed(pod) for pod in pods):
        return
    ranks = [rank for rank in reports.ranks if not rank.done]
    stepped = before.progress is not None and before.progress.first_step_time is not None
    if not stepped or before.running_time is None or any(rank.checkpoint_at for rank in ranks):
        asked = before.checkpoint_request
        new = asked and any(rank.checkpoint_at and rank.checkpoint_at >= asked.time for rank in reports.ranks)
        hold(not asked or bool(new) or asked.deadline <= observed.now, f"suspended too early: {asked}")
    elif any(rank.saves_on_request for rank in ranks):
        asked = before.checkpoint_request
        hold(asked is not None, "suspended, and the ranks were not asked for a checkpoint")
        hold(asked is not None and asked.deadline <= observed.now, f"suspended without a checkpoint: {asked}")


def _check_cause(observed: Observed, status: Status) -> None:
    """The earliest failure is the root cause, and the rules determine whether it counts."""
    before, failure = observed.persisted, status.last_failure
    assert failure is not None
    if any(
        restarted.failure and restarted.failure.pod == failure.pod for restarted in before.replica_restarts.values()
    ):
        return  # an earlier root cause that made the others fail
    if failure.attempt < before.attempt:
        _check_reattribution(observed, failure)
        return
    if failure.reason in BAD_STARTS:
        return  # it never ran, so failures of other pods in the meantime do not matter
    present = [_with_crash(pod, observed) for pod in observed.pods if pod.owned and _holds_a_place(pod, before)]
    times = {pod.name: _failed_at(pod, observed.now) for pod in present if _has_failed(pod)}
    replaced = _replaced(before, status) or [failure]
    ignored = set(status.ignored) - set(before.ignored)
    without = {
        pod.name for pod in present if pod.name in times and "{}-{}".format(*place_of_name(pod.name)[:2]) in ignored
    }
    with_it = {failure.pod} | {other.pod for other in replaced} | without
    decided, others = ([at for pod, at in times.items() if (pod in with_it) == is_it] for is_it in (True, False))
    hold(not times or bool(decided), f"the root cause {failure.pod} is not among the failed pods: {times}")
    hold(not others or max(decided) <= min(others), f"{with_it} were not the first of {times}")
    counted = status.restarts.counted - before.restarts.counted
    if counted + status.restarts.disruptions - before.restarts.disruptions != len(replaced):
        return  # some are consequences of an earlier root cause
    spec = observed.job.spec.model_dump(by_alias=True, exclude_none=True)
    for number, each in enumerate(replaced):
        if each.because:
            continue  # the decision depends on the failure before
        expected = Failure(each.reason, each.reason in UNCOUNTED, each.exit_code)
        places = [(role, index) for role, of in before.roles.items() for index in range(of.desired)]
        left = [(role, index) for role, index in target(spec, places) if f"{role}-{index}" not in before.ignored]
        last = left == [(each.role, each.index)]
        action = rule_on(spec, before.restarts.counted + (number if counted else 0), expected, None, last)
        hold(action == ("Restart" if counted else "RestartUncounted"), f"{action} was due for {each}")


def _with_crash(pod: Pod, observed: Observed) -> Pod:
    """The pod as failed if its program has, although its container runs."""
    process = observed.processes.by_pod.get(pod.uid) if observed.processes else None
    if process is None or process.state != "Ended" or process.last_exit is None or pod.exit:
        return pod
    if process.attempt != observed.persisted.attempt:
        return pod
    last = process.last_exit
    return replace(pod, phase="Failed", exit=Exit(last.code, last.finished_at, message=last.message))


def _replaced(before: Status, status: Status) -> list[RecordedFailure]:
    """The failures of replicas that this status restarts individually."""
    if status.attempt != before.attempt:
        return []
    previous = before.replica_restarts
    new = (r for name, r in status.replica_restarts.items() if name not in previous or r.count > previous[name].count)
    return [restarted.failure for restarted in new if restarted.failure]


def _check_reattribution(observed: Observed, found: RecordedFailure) -> None:
    """A corrected root cause: a lost node, or a pod of that attempt whose end began no later than the recorded one."""
    if found.reason == "NodeLost":
        return
    pods = (*observed.pods, *observed.removed.values())
    # A pod that its kubelet ended for its node has failed, whatever its exit code.
    ended = {pod.name for pod in pods if pod.owned and pod.exit and (pod.exit.code != 0 or pod.disruption)}
    reported = observed.processes.by_pod if observed.processes else {}
    ended |= {pod.name for pod in pods if pod.uid in reported and reported[pod.uid].last_exit}
    recorded = next((past.failure for past in observed.persisted.history if past.attempt == found.attempt), None)
    hold(found.pod in ended, f"{found} corrects a past attempt, but that pod did not fail")
    # The kubelet may also say late why it ended the recorded pod itself.
    same = recorded is not None and (recorded.pod, recorded.reason) == (found.pod, found.reason)
    hold(recorded is not None and not same, f"{found} corrects nothing: {recorded} was recorded")
    # A kubelet that ends a pod writes so at the end of its grace period, and the peers may fail before that.
    later = timedelta(seconds=GRACE_SECONDS) + SETTLING if found.reason == "Evicted" else timedelta()
    hold(recorded is not None and found.time <= recorded.time + later, f"{found} came after {recorded}")


def check_against(reference: Reference, cluster: Cluster) -> None:
    """The state of the job equals that of the reference."""
    job = cluster.job(KEY)
    hold(
        (job is None) == reference.deleted,
        f"the job {'is gone' if job is None else 'exists'}, unlike the reference",
    )
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
    root_cause = last and (last["attempt"], last["role"], last["index"], last.get("exitCode"), last["reason"])
    hold(root_cause == reference.root_cause, f"root cause {root_cause}, and the reference says {reference.root_cause}")
    if reference.over:
        return
    pods = [pod for pod in cluster.pods() if controller_of(pod) == job["metadata"]["uid"] and not is_going(pod)]
    # A replica that is done keeps its pod, or loses it: nothing follows.
    settled = reference.ignored | {place for place, there in reference.places.items() if there.phase == "Done"}
    present = {name_of(pod) for pod in pods if place_of(pod)[:2] not in settled}
    due = {
        pod_name(role, index, reference.attempt, there.restarts)
        for (role, index), there in reference.places.items()
        if there.decided <= cluster.now and (role, index) not in settled
    }
    if reference.phase == "Running" and reference.probes_for_room:
        size = len([place for place in reference.places if place[0] == "worker"])
        due |= {pod_name("worker", size + more, reference.attempt) for more in range(reference.waiting)}
    hold(present == due, f"pods {sorted(present)}, and the reference says {sorted(due)}")


def pod_name(role: str, index: int, attempt: int, restart: int = 0) -> str:
    """The computed name, defined here independently of the core."""
    return f"{JOB}-{role}-{index}-{attempt}" + (f"-{restart}" if restart else "")


def name_of(pod: Manifest) -> str:
    name: str = pod["metadata"]["name"]
    return name


def place_of(pod: Manifest) -> tuple[str, int, int]:
    """(role, index, attempt) from the name: labels may have been edited."""
    return place_of_name(name_of(pod))


def place_of_name(name: str) -> tuple[str, int, int]:
    role, index, attempt = name.removeprefix(f"{JOB}-").split("-")[:3]
    return role, int(index), int(attempt)


def is_going(pod: Manifest) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _pod_number(entry: Manifest) -> int:
    """The number of the individual restart for which the replica's pod is created."""
    return int(entry.get("count", 0) - (entry.get("inPod") or 0))


def _restarted_alone(before: Manifest, status: Manifest) -> list[Manifest]:
    """The status entries of the replicas that this write restarts individually, each of them once."""
    previous, out = before.get("replicaRestarts", {}), []
    for replica, entry in status.get("replicaRestarts", {}).items():
        more = entry["count"] - previous.get(replica, {}).get("count", 0)
        hold(more in (0, 1), f"{replica} was restarted {more} times in one write")
        out += [entry] * more
    return out


def _same(failure: Manifest, other: Manifest) -> bool:
    """Whether two failures are the same one, or failures of the program in the same way."""
    if failure["reason"] != "Error":
        return bool(failure["pod"] == other["pod"])
    return all(failure.get(fact) == other.get(fact) for fact in ("reason", "exitCode", "signal", "message"))


def _sorted(observed: Observed) -> Observed:
    return replace(observed, pods=tuple(sorted(observed.pods, key=lambda pod: pod.uid)), refused=())


def _has_failed(pod: Pod) -> bool:
    going = [moment for moment in (pod.disruption and pod.disruption.at, pod.deleted_at) if moment]
    # A program that saves and exits with 0 on SIGTERM has not completed.
    well = pod.exit is not None and pod.exit.code == 0 and not (going and min(going) <= pod.exit.finished_at)
    return not well and (pod.phase == "Failed" or pod.deleted_at is not None or pod.disruption is not None)


def _failed_at(pod: Pod, now: datetime) -> datetime:
    """A pod whose program never ran has no time of failure: use the time of the observation."""
    moments = (pod.exit and pod.exit.finished_at, pod.disruption and pod.disruption.at, pod.deleted_at)
    return min((moment for moment in moments if moment), default=now)


def _is_old(pod: Pod, status: Status) -> bool:
    return int(pod.name.removeprefix(f"{JOB}-").split("-")[2]) < status.pod_attempt


def _holds_a_place(pod: Pod, status: Status) -> bool:
    """The pod's name is that of a replica of the current attempt whose failure is not ignored."""
    if pod.name.count("-") not in (3, 4):
        return False
    role, index, attempt, *restart = pod.name.removeprefix(f"{JOB}-").split("-")
    entry = status.replica_restarts.get(f"{role}-{index}")
    wanted = (status.pod_attempt, entry.pod_number if entry else 0)
    there = int(index) < (status.roles[role].desired if role in status.roles else 0)
    return (int(attempt), int(*restart or "0")) == wanted and there and f"{role}-{index}" not in status.ignored
