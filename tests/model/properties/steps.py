"""Actions on a job: on its pods, nodes and operator, and changes by users.

An action is (name, which, what). `which` selects one of the suitable pods, `what` a variant. Any numbers are valid, so
that hypothesis can shrink them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from allranks.core.diagnosis.pod_ends import SETTLING
from allranks.core.facts import development
from allranks.core.facts.naming import ATTEMPT_LABEL, INDEX_LABEL, JOB_LABEL, PLACEHOLDER, ROLE_LABEL
from allranks.core.facts.restarts import RESTART_ANNOTATION
from support.simulator import Cluster, Node
from support.simulator.store import Key, controller_of, ended, key_of
from support.simulator.supervisors import FAULTS

from .invariants import DISRUPTIONS, Tally, is_going, name_of, place_of, pod_name
from .jobs import CODES as CODES_OF_JOB
from .jobs import JOB, KEY
from .reference import SERVICES, Reference

Manifest = dict[str, Any]
Action = tuple[str, int, int]

CODES = (1, 137, 1, 3, 127, 138, 139, 143, 2, 255)
MESSAGES = ("boom", "bang")
BAD_STARTS = ("ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError", "ContainerCreating")
SECONDS = (1, 5, 10, 20, 60, 119, 120, 300, 600, 3600)

PLAIN = (
    *("run_all", "run_all", "run_all", "run", "done", "done_all", "exit", "exit", "exit", "oom", "evict", "disrupt"),
    *("delete", "force_delete", "lose_node", "recover_node", "remove_node", "bad_start", "unschedulable", "init_fail"),
    *("fail", "fail", "fail", "fail", "advance", "advance", "advance", "jump", "suspend", "resume", "resume"),
    *("resize", "max_restarts", "ttl", "deadline", "annotate", "restart_operator", "stranger"),
    *("pause", "crowded", "crowded", "room", "room", "no_room"),
)
"""Actions that a reference can follow step by step."""
KILLING = (*PLAIN, "kill_after", "kill_after", "kill_after")
"""A kill and the restart take no time, so they do not concern the reference."""
RESIZING = (
    *("crowded", "run_all", "resize", "room", "room", "crowded", "no_room", "run", "unschedulable", "resize"),
    *("advance", "exit", "disrupt", "lose_node", "recover_node", "done", "suspend", "resume", "oom", "delete"),
    *("kill_after", "kill_after", "fail", "deadline", "restart_operator", "jump"),
)
"""Actions that make an elastic job grow and shrink, and others in between."""
ROUGH = (
    *PLAIN,
    *("avalanche", "avalanche", "mark", "squatter", "usurp", "quota", "relabel"),
    *("kill_after", "kill_after", "stop_operator", "start_operator", "step", "step", "step", "save", "ask", "ask"),
)
IN_PODS = (
    *("crash", "crash", "crash", "crash", "crash", "crash", "crash", "crash", "misbehave", "misbehave", "misbehave"),
    *("misbehave", "misbehave", "ask_restart", "run", "run", "unschedulable", "run_all", "run_all", "done"),
    *("exit", "oom", "evict", "disrupt", "delete", "force_delete", "lose_node", "recover_node", "remove_node"),
    *("advance", "advance", "advance", "jump", "suspend", "resume", "pause", "resize", "max_restarts", "deadline"),
    *("kill_after", "kill_after", "stop_operator", "start_operator", "restart_operator", "step", "step", "save"),
    *("avalanche", "relabel", "mark", "usurp", "quota", "done_all"),
    *("edit", "edit", "edit", "develop", "develop", "kill_helper", "kill_helper"),
)
"""Actions on pods whose supervisors restart programs, with faults of the supervisors, and edits of their code."""
"""Adds actions that make the operator see several events at once, late, or not at all."""


@st.composite
def histories(draw: st.DrawFn, kinds: tuple[str, ...], most: int) -> list[Action]:
    """Draws the length first: otherwise most lists are short."""
    one = st.integers(0, len(kinds) * 60 - 1).map(lambda n: (kinds[n // 60], n % 6, n // 6 % 10))
    length = draw(st.integers(0, most))
    return draw(st.lists(one, min_size=length, max_size=length))


class Injector:
    """Applies actions to a cluster, records them in the tally, and forwards them to the reference if there is one."""

    def __init__(self, cluster: Cluster, tally: Tally, reference: Reference | None) -> None:
        self.cluster, self.tally, self.reference = cluster, tally, reference
        self._lost_nodes: set[str] = set()

    def apply(self, action: Action) -> None:
        name, which, what = action
        getattr(self, f"_{name}")(which, what)
        self.cluster.settle()

    def pods(self) -> list[Manifest]:
        """The job's pods by name, without terminating ones; the reference has no placeholders."""
        own = [pod for pod in self.cluster.pods() if controller_of(pod) == self.tally.uid and not is_going(pod)]
        return sorted((pod for pod in own if not (self.reference and is_placeholder(pod))), key=name_of)

    def _placeholders(self, suits: Callable[[Manifest], bool]) -> list[Manifest]:
        own = (pod for pod in self.cluster.pods() if controller_of(pod) == self.tally.uid and not is_going(pod))
        return sorted((pod for pod in own if is_placeholder(pod) and suits(pod)), key=name_of)

    def _choose(self, which: int, suits: Callable[[Manifest], bool]) -> Manifest | None:
        suited = [pod for pod in self.pods() if suits(pod)]
        return suited[which % len(suited)] if suited else None

    def _inject(self, pod: Manifest, reason: str) -> None:
        self.tally.failures.setdefault(name_of(pod), []).append(reason)

    def _notify(self, what: str, pod: Manifest, *facts: Any) -> None:
        """Forwards the event to the reference after the operator handled it, if the pod is still in use."""
        self.cluster.settle()
        model, (role, index, _) = self.reference, place_of(pod)
        there = model.places.get((role, index)) if model else None
        if model and there and name_of(pod) == pod_name(role, index, model.attempt, there.restarts):
            getattr(model, what)((role, index), *facts)

    # Programs

    def _run_all(self, which: int, what: int) -> None:
        for pod in [pod for pod in self.pods() if is_pending(pod)]:
            self._start(pod)

    def _room(self, which: int, what: int) -> None:
        """There is room for one more worker of an elastic job."""
        for pod in self._placeholders(is_pending)[:1]:
            self._place(key_of(pod))
            self.cluster.kubelets.start(key_of(pod))
            self.cluster.settle()
            if self.reference:
                self.reference.has_room()

    def _no_room(self, which: int, what: int) -> None:
        """The room is gone before the job used it."""
        for pod in self._placeholders(is_running)[:1]:
            self.cluster.store.delete(key_of(pod), grace=0)
            self.cluster.settle()
            if self.reference:
                self.reference.has_no_room()

    def _crowded(self, which: int, what: int) -> None:
        """There is room for some of the pods only, for some time."""
        for number, pod in enumerate(self.pods()):
            if is_pending(pod) and self.cluster.store.find(key_of(pod)):
                if number <= which % 3:
                    self._start(pod)
                elif "nodeName" not in pod["spec"]:
                    self.cluster.kubelets.cannot_place(key_of(pod), "0/4 nodes are available")
                    self._notify("waits", pod, "Unschedulable")
        self._advance(0, what)

    def _run(self, which: int, what: int) -> None:
        if pod := self._choose(which, is_pending):
            self._start(pod)

    def _start(self, pod: Manifest) -> None:
        if self.cluster.store.find(key_of(pod)):
            self._place(key_of(pod))
            self.cluster.kubelets.start(key_of(pod))
            self._notify("ran", pod)

    def _done(self, which: int, what: int) -> None:
        if pod := self._choose(which, self._trains):
            self._end(pod, 0, "Completed", "")

    def _done_all(self, which: int, what: int) -> None:
        for pod in [pod for pod in self.pods() if is_running(pod) and place_of(pod)[0] not in SERVICES]:
            present = self.cluster.store.find(key_of(pod))
            if present and self._trains(present) and not is_going(present):
                self._end(pod, 0, "Completed", "")

    def _exit(self, which: int, what: int) -> None:
        if pod := self._choose(which, self._trains):
            self._end(pod, CODES[what], "Error", MESSAGES[which == 5])

    def _oom(self, which: int, what: int) -> None:
        if pod := self._choose(which, is_running):
            self._end(pod, 137, "OOMKilled", "")

    def _step(self, which: int, what: int) -> None:
        if pod := self._choose(which, is_running):
            ranks = self.cluster.ranks.latest.get(pod["metadata"]["uid"])
            step = (ranks.step or 0 if ranks else 0) + what
            self.cluster.report(key_of(pod), step=step, total_steps=100)

    def _save(self, which: int, what: int) -> None:
        if pod := self._choose(which, is_running):
            self.cluster.report(key_of(pod), checkpoint=True)

    def _ask(self, which: int, what: int) -> None:
        """All pods run, ranks store checkpoints on request, and a user suspends the job."""
        self._run_all(0, 0)
        for number, pod in enumerate(self.pods()):
            if is_running(pod) and self.cluster.store.find(key_of(pod)):
                saves = number <= which % 2
                self.cluster.report(key_of(pod), step=10 + what, total_steps=100, saves_on_request=saves)
        self.cluster.advance(1)
        self._suspend(0, 0)
        if what % 2:
            self.cluster.settle()
            self.cluster.advance(1)
            self._save(0, 0)

    def _fail(self, which: int, what: int) -> None:
        """All pods run, and one of them fails."""
        self._run_all(0, 0)
        (self._exit if what % 3 else self._oom)(which, what)

    def _avalanche(self, which: int, what: int) -> None:
        """All pods run, and several fail one after the other while the operator is down."""
        self._run_all(0, 0)
        self.cluster.stop_operator()
        for fail in (self._exit, self._evict, self._oom, self._delete)[what % 4 :]:
            fail(which, what)
            self.cluster.advance(1 + what % 3)
        self.cluster.start_operator()

    def _crash(self, which: int, what: int) -> None:
        """All pods run, and a program fails in its pod, whose supervisor waits."""
        self._run_all(0, 0)
        if pod := self._choose(which, self._trains_supervised):
            self._inject(pod, "Error")
            self.cluster.supervisors.fail(pod["metadata"]["uid"], CODES[what], message=MESSAGES[which == 5])

    def _misbehave(self, which: int, what: int) -> None:
        """A supervisor does not answer, answers late, claims another attempt, behaves again, or ends slowly."""
        if pod := self._choose(which, lambda pod: pod["metadata"]["uid"] in self.cluster.supervisors.of_pod):
            uid = pod["metadata"]["uid"]
            if what >= len(FAULTS):
                self.cluster.supervisors.of_pod[uid].stop_seconds = SECONDS[what % 5]
            else:
                self.cluster.supervisors.misbehave(uid, FAULTS[what])

    def _kill_helper(self, which: int, what: int) -> None:
        """A supervisor is killed, whatever it waits for, and so its container ends."""
        if pod := self._choose(which, lambda pod: pod["metadata"]["uid"] in self.cluster.supervisors.of_pod):
            self._end(pod, 137, "Error", "")

    def _ask_restart(self, which: int, what: int) -> None:
        """A user asks for a new attempt."""
        if job := self.cluster.job(KEY):
            attempt = str(job.get("status", {}).get("attempt", 0))
            self.cluster.store.patch(KEY, {"metadata": {"annotations": {RESTART_ANNOTATION: attempt}}})

    def _edit(self, which: int, what: int) -> None:
        """A user ships other code, or the same again."""
        if (job := self.cluster.job(KEY)) and "code" in job["spec"]:
            self.patch({"code": CODES_OF_JOB[what % len(CODES_OF_JOB)]})

    def _develop(self, which: int, what: int) -> None:
        """`allranks dev` is attached from now on, or for longer, or leaves."""
        if self.cluster.job(KEY):
            end = self.cluster.now + timedelta(seconds=SECONDS[what])
            value = end.isoformat().replace("+00:00", "Z") if which % 4 else None
            self.cluster.store.patch(KEY, {"metadata": {"annotations": {development.ANNOTATION: value}}})

    def _trains(self, pod: Manifest) -> bool:
        """Whether the program of the pod runs."""
        supervisor = self.cluster.supervisors.of_pod.get(pod["metadata"]["uid"])
        return is_running(pod) and (supervisor is None or supervisor.process.state == "Running")

    def _trains_supervised(self, pod: Manifest) -> bool:
        return self._trains(pod) and pod["metadata"]["uid"] in self.cluster.supervisors.of_pod

    def _end(self, pod: Manifest, code: int, reason: str, message: str) -> None:
        if code:
            self._inject(pod, reason)
        self.cluster.kubelets.end(key_of(pod), code, reason, message)
        self._notify("ended", pod, code, reason, message)

    def _init_fail(self, which: int, what: int) -> None:
        if pod := self._choose(which, is_pending):
            self._inject(pod, "InitContainerFailed")
            self._place(key_of(pod))
            self.cluster.kubelets.fail_init(key_of(pod), 2, "no such file")
            init = [container["name"] for container in pod["spec"].get("initContainers", [])] or ["init"]
            container = "" if init[0].startswith("allranks") else init[0]
            self._notify("never_ran", pod, "InitContainerFailed", container)

    def _bad_start(self, which: int, what: int) -> None:
        if pod := self._choose(which, is_pending):
            reason = BAD_STARTS[what % len(BAD_STARTS)]
            self._place(key_of(pod))
            self.cluster.kubelets.wait(key_of(pod), reason, "it does not start")
            self._notify("waits", pod, reason)

    def _unschedulable(self, which: int, what: int) -> None:
        if pod := self._choose(which, lambda pod: is_pending(pod) and "nodeName" not in pod["spec"]):
            self.cluster.kubelets.cannot_place(key_of(pod), "0/4 nodes are available")
            self._notify("waits", pod, "Unschedulable")

    # Disruptions

    def _evict(self, which: int, what: int) -> None:
        if pod := self._choose(which, is_running):
            self._inject(pod, "Evicted")
            if what % 2:
                if self.cluster.lag.longest >= SETTLING:
                    self._inject(pod, "Error")  # the end is judged before the operator sees why
                self.cluster.kubelets.stop(key_of(pod), (0, 1, 143)[what % 3])
                self.cluster.settle()
            self.cluster.kubelets.evict(key_of(pod))
            self._notify("lost", pod, "Evicted", False)

    def _mark(self, which: int, what: int) -> None:
        """Condition DisruptionTarget without a deletion."""
        if pod := self._choose(which, lambda pod: not ended(pod["status"])):
            self._mark_disrupted(pod, what)

    def _disrupt(self, which: int, what: int) -> None:
        if pod := self._choose(which, lambda pod: not ended(pod["status"])):
            self._mark_disrupted(pod, what)
            if self.cluster.store.find(key_of(pod)):
                self._inject(pod, "Deleted")
                self.cluster.store.delete(key_of(pod))

    def _mark_disrupted(self, pod: Manifest, what: int) -> None:
        reason = sorted(DISRUPTIONS)[what % len(DISRUPTIONS)]
        self._inject(pod, DISRUPTIONS[reason])
        self.cluster.kubelets.mark(key_of(pod), reason)
        self._notify("lost", pod, DISRUPTIONS[reason], False)

    def _delete(self, which: int, what: int) -> None:
        if pod := self._choose(which, lambda pod: True):
            self._delete_pod(pod, None)

    def _force_delete(self, which: int, what: int) -> None:
        if pod := self._choose(which, lambda pod: True):
            self._delete_pod(pod, 0)

    def _delete_pod(self, pod: Manifest, grace: int | None) -> None:
        self._inject(pod, "Deleted")
        self.cluster.store.delete(key_of(pod), grace=grace)
        gone = self.cluster.store.find(key_of(pod)) is None
        self._notify("lost", pod, "Deleted", gone)

    # Nodes: one for each replica

    def _place(self, key: Key) -> None:
        pod = self.cluster.store.get(key)
        if "nodeName" in pod["spec"]:
            return
        role, index, _ = place_of(pod)
        node = f"{role}-{index}"
        while node in self._lost_nodes:
            node += "-more"
        self.cluster.kubelets.nodes.setdefault(node, Node(node))
        self.cluster.kubelets.place(key, node)

    def _lose_node(self, which: int, what: int) -> None:
        pod = self._choose(which, lambda p: p["spec"].get("nodeName") in self._nodes() and not ended(p["status"]))
        if pod is None:
            return
        node = pod["spec"]["nodeName"]
        self._lost_nodes.add(node)
        hit = [p for p in self.pods() if p["spec"].get("nodeName") == node and not ended(p["status"])]
        for other in hit:
            self._inject(other, "NodeLost")
        own = [p for p in self.cluster.pods() if controller_of(p) == self.tally.uid and is_going(p)]
        former = [p for p in own if p["spec"].get("nodeName") == node and not ended(p["status"])]
        self.cluster.kubelets.lose(node)
        self.cluster.settle()
        for other in former:
            role, index, attempt = place_of(other)
            self._inject(other, "NodeLost")
            if self.reference:
                self.reference.found_lost(attempt, (role, index))
        for other in hit:
            self._notify("lost", other, "NodeLost", False)

    def _recover_node(self, which: int, what: int) -> None:
        for node in sorted(self._lost_nodes.intersection(self._nodes())):
            self.cluster.kubelets.recover(node)
        self._lost_nodes.clear()

    def _remove_node(self, which: int, what: int) -> None:
        """The pod garbage collector marks the pod as Failed and deletes it."""
        if pod := self._choose(which, is_running):
            self._inject(pod, "NodeLost")
            self.cluster.kubelets.collect(key_of(pod))
            self._notify("lost", pod, "NodeLost", False)
            if self.cluster.store.find(key_of(pod)):
                self._delete_pod(pod, 0)

    def _nodes(self) -> dict[str, Node]:
        return self.cluster.kubelets.nodes

    # Time

    def _advance(self, which: int, what: int) -> None:
        if self.reference is None or SECONDS[what] > 20:
            self.cluster.advance(SECONDS[what])
        else:
            for _ in range(SECONDS[what]):
                self.cluster.advance(1)
                self.reference.tick(self.cluster.now)
        if self.reference:
            self.reference.tick(self.cluster.now)

    def _jump(self, which: int, what: int) -> None:
        self.cluster.jump(SECONDS[what])
        if self.reference:
            self.reference.tick(self.cluster.now, leapt=True)

    # Users

    def _suspend(self, which: int, what: int) -> None:
        self.patch({"suspend": True})

    def _resume(self, which: int, what: int) -> None:
        self.patch({"suspend": False})

    def _pause(self, which: int, what: int) -> None:
        self._suspend(0, 0)
        self._advance(0, what)
        self._resume(0, 0)

    def _resize(self, which: int, what: int) -> None:
        job = self.cluster.job(KEY)
        role = next((role for role in ("worker", "ps") if job and role in job["spec"]["roles"]), None)
        if role:
            self.patch({"roles": {role: {"replicas": 1 + what % 3}}})

    def _max_restarts(self, which: int, what: int) -> None:
        self.patch({"restart": {"maxRestarts": what % 4}})

    def _ttl(self, which: int, what: int) -> None:
        self.patch({"ttlSecondsAfterFinished": SECONDS[what] if what else None})

    def _deadline(self, which: int, what: int) -> None:
        self.patch({"activeDeadlineSeconds": SECONDS[what] if what else None})

    def patch(self, change: Manifest) -> None:
        if self.cluster.job(KEY):
            self.cluster.patch_job(KEY, change)
            self.cluster.settle()
            if self.reference:
                self.reference.patched(change)

    def _annotate(self, which: int, what: int) -> None:
        """Another client changes the job's resourceVersion."""
        if self.cluster.job(KEY):
            self.cluster.store.patch(KEY, {"metadata": {"annotations": {"note": str(what)}}})

    def _relabel(self, which: int, what: int) -> None:
        """A user edits labels; names stay."""
        if pod := self._choose(which, lambda pod: True):
            changed = {INDEX_LABEL: str(what), ATTEMPT_LABEL: str(what)}
            self.cluster.store.patch(key_of(pod), {"metadata": {"labels": changed}})

    def _quota(self, which: int, what: int) -> None:
        if what % 2:
            self.cluster.store.quota["Pod"] = which
        else:
            self.cluster.store.quota.clear()

    def _stranger(self, which: int, what: int) -> None:
        """A pod with this job's labels that belongs to another job."""
        self._make_foreign(f"other-{which}", owner="00000000-0000-4000-8000-aaaaaaaaaaaa")

    def _squatter(self, which: int, what: int) -> None:
        """Another owner's pod with a name that the job will need."""
        attempt = (self.cluster.job(KEY) or {}).get("status", {}).get("attempt", 0) + 1 + what % 2
        self._make_foreign(f"{JOB}-worker-{which % 3}-{attempt}", owner=None)

    def _usurp(self, which: int, what: int) -> None:
        """One of the job's pods is replaced by another owner's pod of the same name."""
        if pod := self._choose(which, lambda pod: True):
            self._inject(pod, "Deleted")
            self.cluster.store.delete(key_of(pod), grace=0)
            self._make_foreign(name_of(pod), owner=None)

    def _make_foreign(self, name: str, owner: str | None) -> None:
        labels = {JOB_LABEL: JOB, ROLE_LABEL: "worker", INDEX_LABEL: "0", ATTEMPT_LABEL: "0"}
        metadata: Manifest = {"name": name, "namespace": "default", "labels": labels}
        if owner:
            metadata["ownerReferences"] = [{"kind": "Job", "name": JOB, "uid": owner, "controller": True}]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [{"name": "main"}]}}
        if self.cluster.store.find(key_of(pod)) is None and not self.cluster.store.quota:
            self.tally.foreign[key_of(pod)] = self.cluster.store.create(pod)

    # The operator

    def _restart_operator(self, which: int, what: int) -> None:
        self.cluster.restart_operator()

    def _stop_operator(self, which: int, what: int) -> None:
        self.cluster.stop_operator()

    def _start_operator(self, which: int, what: int) -> None:
        if self.cluster.operator is None:
            self.cluster.start_operator()

    def _kill_after(self, which: int, what: int) -> None:
        self.cluster.kill_operator_after(1 + what)

    def end_faults(self) -> None:
        self.cluster.store.quota.clear()
        self._recover_node(0, 0)
        for uid in list(self.cluster.supervisors.of_pod):
            self.cluster.supervisors.misbehave(uid, "")
        self._start_operator(0, 0)


def is_placeholder(pod: Manifest) -> bool:
    return bool(pod["metadata"]["labels"].get(ROLE_LABEL) == PLACEHOLDER)


def is_pending(pod: Manifest) -> bool:
    return bool(pod["status"]["phase"] == "Pending")


def is_running(pod: Manifest) -> bool:
    return bool(pod["status"]["phase"] == "Running")
