"""One job, its cluster and its history: applies the actions and checks the invariants."""

from __future__ import annotations

from copy import deepcopy

from support.simulator import Cluster, Lag

from .invariants import Tally, Watchdog, check_against, check_decisions, check_settled, check_untouched, hold
from .jobs import JOB, KEY, Spec, manifest
from .reference import Reference
from .steps import Action, Injector, Manifest


class Simulation:
    """The operator handles each event before the next one if the watch is perfect; only then a reference can follow."""

    def __init__(
        self,
        spec: Spec,
        seed: int = 0,
        *,
        lag: Lag | None = None,
        late_requests: float = 0.0,
        follow: bool = False,
        killed_after: int | None = None,
    ) -> None:
        self.cluster = Cluster(seed, nodes=(), lag=lag)
        self.cluster.late_requests = late_requests
        self.cluster.max_events = 2_000
        self.tally = Tally()
        Watchdog(self.cluster, self.tally, late_requests > 0)
        self.reference = Reference(deepcopy(spec), self.cluster.now) if follow else None
        self.injector = Injector(self.cluster, self.tally, self.reference)
        self.log: list[str] = [str(spec)]
        if killed_after:
            self.cluster.kill_operator_after(killed_after)
        self.cluster.create_job(manifest(deepcopy(spec)))
        self.cluster.settle()

    @property
    def status(self) -> Manifest:
        return (self.cluster.job(KEY) or {}).get("status", {})

    def play(self, history: list[Action]) -> None:
        for action in history:
            self.log.append(f"{self.cluster.now:%H:%M:%S} {action}")
            self.injector.apply(action)
            if self.reference:
                check_against(self.reference, self.cluster)

    def delete(self, foreground: bool) -> None:
        """A user deletes the job at this point of its history."""
        if self.cluster.job(KEY):
            self.cluster.delete_job(KEY, foreground)

    def calm(self) -> None:
        """Ends all faults, delivers all events, and lets time pass until nothing more is due."""
        self.injector.end_faults()
        for seconds in (1, 60, 300, 300, 3600):
            self.cluster.advance(seconds)
        check_settled(self.cluster, self.tally)

    def finish(self) -> None:
        """Lets all pods run and complete, in several rounds: the job must finish."""
        self.injector.patch({"suspend": False, "activeDeadlineSeconds": None})
        for _ in range(4):
            if self.over:
                break
            self.injector.apply(("run_all", 0, 0))
            self.cluster.advance(10)
            self.injector.apply(("done_all", 0, 0))
            self.calm()
        blocked = any(name.startswith(f"{JOB}-") for _, _, name in self.tally.foreign)
        hold(self.over or blocked, "all pods completed, but the job has not finished")

    @property
    def over(self) -> bool:
        return self.cluster.job(KEY) is None or self.status.get("phase") in ("Succeeded", "Failed")

    def check(self) -> None:
        """Checks the invariants of the whole history."""
        check_untouched(self.cluster, self.tally)
        check_decisions(self.cluster.audit, self.cluster.reconcile)
