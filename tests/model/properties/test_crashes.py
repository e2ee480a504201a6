"""Kills the operator after its Nth write, for every N: the final state and the numbers of creations and deletions stay
the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from support.accounting import status_up_to

from .budget import note, share
from .jobs import KEY, Spec, specs
from .simulation import Simulation
from .steps import PLAIN, Action, histories

QUIET = tuple(kind for kind in PLAIN if kind != "restart_operator")
REPLAYS = 12
"""Approximate number of replays in one example; they count as histories."""


@share(0.115 / REPLAYS, least=10)
@given(spec=specs(), history=histories(QUIET, 12), seed=st.integers(0, 2**16))
def test_a_crash_after_any_write_changes_nothing_in_the_end(spec: Spec, history: list[Action], seed: int) -> None:
    crash_everywhere(spec, history, seed)


def crash_everywhere(spec: Spec, history: list[Action], seed: int) -> None:
    undisturbed = _play(spec, history, seed, None)
    writes, wanted = undisturbed.cluster.audit.writes, _ending(undisturbed)
    note("\n".join(undisturbed.log))
    for killed_after in range(1, writes + 1):
        note(f"killed after write {killed_after} of {writes}")
        found = _ending(_play(spec, history, seed, killed_after))
        for what in wanted:
            assert found[what] == wanted[what], what


def _play(spec: Spec, history: list[Action], seed: int, killed_after: int | None) -> Simulation:
    simulation = Simulation(spec, seed, killed_after=killed_after)
    simulation.play(history)
    simulation.calm()
    return simulation


def _ending(simulation: Simulation) -> dict[str, Any]:
    audit, names = simulation.cluster.audit, simulation.tally.names
    own = [o for o in simulation.cluster.store.all() if o["metadata"]["uid"] in names]
    return {
        "status": status_up_to(simulation.cluster.job(KEY), simulation.cluster.now),
        "objects": sorted((o["kind"], o["metadata"]["name"], repr(o.get("status"))) for o in own),
        "creates": audit.creates,
        "deletes": Counter({names.get(uid, "the job"): times for uid, times in audit.deletes.items()}),
    }
