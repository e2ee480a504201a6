"""Selects the runs and compares each with the same scenario without faults."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from support.controlplane import ControlPlane
from support.fault_policy import Policy
from support.fault_proxy import Death, Threads
from support.scenario_runner import Scenario, load

from .world import Kill, Played, play

FILES = sorted((Path(__file__).parents[1] / "model" / "scenarios").glob("*.yaml"))
SCENARIOS = [each for path in FILES for each in load(path) if {"kueue": "absent"} not in each.before]
"""Without those that remove Kueue's API, which runs of other scenarios use at the same time."""
SEEDS = 5
"""Fault seeds per scenario when all runs are requested."""
DEATHS: tuple[Death, ...] = get_args(Death)
_KINDS = ("faults", "kill", "kill", "both")
FOUND = (
    (
        "Without hang, ranks that announced their steps have startupDeadlineSeconds for the first one. "
        "the second time in a row fails the job",
        "both",
        2484931441,
    ),
    (
        "A rank whose own work takes stragglerPercent percent of that of its peers is named once, with its node.",
        "both",
        2321721244,
    ),
    (
        "No progress of any rank for hang.timeoutSeconds is a hang, which restarts the job and counts. "
        "a new operator waits for reports before it decides",
        "kill",
        2494318739,
    ),
    (
        "A restart waits for no terminating pod. (Where a quota still counts the old ones, creation is retried as they "
        "go.)",
        "both",
        343889479,
    ),
    (
        "When a lost node or preemption leaves fewer than desired but at least `minReplicas` schedulable, the job "
        "continues with fewer workers and grows back when room returns. after a failed scale-up there is a backoff",
        "faults",
        1087200667,
    ),
    (
        "`rules`: list of {exitCodes | signals | reasons, action: Restart | RestartUncounted | Fail | Ignore}, first "
        "match wins ignore continues without the pod, even if it is deleted later",
        "faults",
        1588424762,
    ),
    (
        "Silence of all ranks is no hang. After two minutes condition ReportsLost is True. an outage of the report "
        "path restarts nothing, and afterwards a hang takes the whole timeout again",
        "kill",
        3692711560,
    ),
    (
        "Pods of an admitted job get the node labels and tolerations of its flavors and what admission checks add, and "
        "keep them when ranks restart.",
        "faults",
        702189325,
    ),
    (
        "Before pods are deleted for a suspension, ranks are asked for a checkpoint. a failure ends the wait, because "
        "the other ranks cannot save without the failed one",
        "kill",
        321706927,
    ),
    (
        "While the program runs, the condition says which checkpoint is uploaded, and that others follow.",
        "kill",
        2530713744,
    ),
    (
        "While the program runs, the condition says which checkpoint is uploaded, and that others follow.",
        "both",
        1367630814,
    ),
    ("A job with low utilization is suspended once, and continues when it is resumed.", "both", 1003761587),
)
"""(scenario and case, kind, seed) of runs that failed before. They always run."""


@dataclass(frozen=True)
class Run:
    """`kind`: faults; kill (after the Nth write); both; every kill (one run per N)."""

    number: int
    scenario: int
    kind: str
    seed: int

    def __str__(self) -> str:
        scenario = SCENARIOS[self.scenario]
        return f"{self.number} {self.kind} {self.seed}: {scenario.name} {scenario.case}".strip()


@dataclass(frozen=True)
class Verdict:
    differences: list[str]
    """Empty: the run ended like the reference."""
    met: list[str]
    """Faults and kills of the last run."""


def selection(number: str, seed: int) -> list[Run]:
    """The runs that failed before, and `number` drawn ones, or all."""
    dice = random.Random(seed)
    scenarios = range(len(SCENARIOS))
    if number == "all":
        drawn = [(scenario, "every kill") for scenario in scenarios]
        drawn += [(scenario, kind) for scenario in scenarios for kind in ("faults", "both") for _ in range(SEEDS)]
    else:
        drawn = [(dice.choice(scenarios), dice.choice(_KINDS)) for _ in range(int(number))]
    runs = [Run(index, *run, dice.getrandbits(32)) for index, run in enumerate(drawn)]
    names = [f"{scenario.name} {scenario.case}".strip() for scenario in SCENARIOS]
    found = [(names.index(name), kind, seed) for name, kind, seed in FOUND]
    return runs + [Run(len(runs) + index, *run) for index, run in enumerate(found)]


class Referee:
    """Plays each scenario without faults once, when it is first needed. Thread-safe."""

    def __init__(self, control_plane: ControlPlane, threads: Threads) -> None:
        self._where = control_plane, threads
        self._references: dict[int, Played] = {}
        self.stopped = False
        """No test waits for the remaining runs."""
        self._locks: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)

    def judge(self, run: Run) -> Verdict:
        """Raises AssertionError when a step does not meet the expectations of the scenario."""
        wanted = self._reference(run.scenario)
        if run.kind == "every kill":
            return self._every_kill(SCENARIOS[run.scenario], wanted)
        policy = Policy(run.seed) if run.kind in ("faults", "both") else None
        dice = random.Random(run.seed)
        kill = Kill(dice.randint(1, wanted.ending.writes), dice.choice(DEATHS)) if run.kind != "faults" else None
        return self._compare(SCENARIOS[run.scenario], wanted, policy, kill)

    def _every_kill(self, scenario: Scenario, wanted: Played) -> Verdict:
        for after in range(1, 1000):
            for how in DEATHS:
                verdict = self._compare(scenario, wanted, None, Kill(after, how))
                if verdict.differences or not verdict.met or self.stopped:
                    return verdict
        raise AssertionError("it writes forever")

    def _compare(self, scenario: Scenario, wanted: Played, policy: Policy | None, kill: Kill | None) -> Verdict:
        try:
            found = play(scenario, *self._where, policy, kill)
        except Exception as error:
            error.add_note(str(kill or ""))
            raise
        about = [str(kill), *found.met] if kill else found.met
        return Verdict(found.ending.differences(wanted.ending), about if found.met else [])

    def _reference(self, scenario: int) -> Played:
        with self._locks[scenario]:
            if scenario not in self._references:
                self._references[scenario] = play(SCENARIOS[scenario], *self._where)
            return self._references[scenario]
