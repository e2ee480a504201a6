"""One job, its cluster and its history: plays what happens, and checks what must hold."""

from __future__ import annotations

from copy import deepcopy

from support.simulator import Cluster, Lag

from .invariants import Tally, Watchdog, check_against, check_decisions, check_settled, check_untouched, hold
from .jobs import JOB, KEY, Spec, manifest
from .reference import Reference
from .steps import Action, Happenings, Manifest


class Simulation:
    """With a perfect watch the operator sees each event before the next one happens: then a reference can follow."""

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
        self.happenings = Happenings(self.cluster, self.tally, self.reference)
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
            self.happenings.happen(action)
            if self.reference:
                check_against(self.reference, self.cluster)

    def delete(self, foreground: bool) -> None:
        """Somebody deletes the job, right in the midst of it."""
        if self.cluster.job(KEY):
            self.cluster.delete_job(KEY, foreground)

    def calm(self) -> None:
        """Faults end, everything is seen, and time passes until nothing more is due."""
        self.happenings.end_faults()
        for seconds in (1, 60, 300, 300, 3600):
            self.cluster.advance(seconds)
        check_settled(self.cluster, self.tally)

    def finish(self) -> None:
        """From now on everything runs well, round after round: the job must come to its end."""
        self.happenings.patch({"suspend": False, "activeDeadlineSeconds": None})
        for _ in range(4):
            if self.over:
                break
            self.happenings.happen(("run_all", 0, 0))
            self.cluster.advance(10)
            self.happenings.happen(("done_all", 0, 0))
            self.calm()
        blocked = any(name.startswith(f"{JOB}-") for _, _, name in self.tally.foreign)
        hold(self.over or blocked, "everything ran well, and the job is not over")

    @property
    def over(self) -> bool:
        return self.cluster.job(KEY) is None or self.status.get("phase") in ("Succeeded", "Failed")

    def check(self) -> None:
        """What must hold over the whole history."""
        check_untouched(self.cluster, self.tally)
        check_decisions(self.cluster.audit, self.cluster.reconcile)
