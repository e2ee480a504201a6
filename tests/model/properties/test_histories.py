"""The invariants hold for any history, any order of events, and kills of the operator at any point."""

from __future__ import annotations

from hypothesis import currently_in_test_context, event, given
from hypothesis import strategies as st

from support.simulator import Lag

from .budget import note, share
from .jobs import Spec, specs
from .simulation import Simulation
from .steps import IN_PODS, KILLING, RESIZING, ROUGH, Action, histories

SEEDS = st.integers(0, 2**16)
# Not both a delayed watch and a cache without the driver's own creations: `Observed` excludes it. With both, a pod that
# a user deletes before all were observed is created twice.
LAGS = st.sampled_from(
    [
        Lag(),
        Lag(own_writes=False),
        Lag(seconds=2.0),
        Lag(seconds=30.0, repeated=0.3),
        Lag(seconds=5.0, lost=0.3),
        Lag(lost=0.6, repeated=0.5, relist_seconds=30.0),
    ]
)
LATE = st.sampled_from([0.0, 0.0, 0.7])
SHARP = st.sampled_from([Lag(), Lag(own_writes=False), Lag(repeated=0.5)])
"""Watches without delay."""
DELETIONS = st.sampled_from([None] * 7 + ["Background", "Foreground"])


@share(0.27)
@given(spec=specs(), history=histories(ROUGH, 25), lag=LAGS, seed=SEEDS, late=LATE, deletion=DELETIONS)
def test_it_holds_in_any_order_with_lost_and_late_events_and_crashes(
    spec: Spec, history: list[Action], lag: Lag, seed: int, late: float, deletion: str | None
) -> None:
    roughly(spec, history, lag, seed, late, deletion)


@share(0.16)
@given(spec=specs(), history=histories(KILLING, 25), lag=SHARP, seed=SEEDS)
def test_the_job_equals_the_reference_after_every_step(spec: Spec, history: list[Action], lag: Lag, seed: int) -> None:
    step_by_step(spec, history, lag, seed)


@share(0.125)
@given(spec=specs(elastic=True), history=histories(RESIZING, 25), lag=SHARP, seed=SEEDS)
def test_an_elastic_job_has_the_size_that_the_reference_says(
    spec: Spec, history: list[Action], lag: Lag, seed: int
) -> None:
    step_by_step(spec, history, lag, seed)


@share(0.1)
@given(spec=specs(supervised=True), history=histories(IN_PODS, 25), lag=LAGS, seed=SEEDS, late=LATE, deletion=DELETIONS)
def test_ranks_that_restart_in_their_pods_hold_in_any_order(
    spec: Spec, history: list[Action], lag: Lag, seed: int, late: float, deletion: str | None
) -> None:
    roughly(spec, history, lag, seed, late, deletion)


def roughly_in_pods(spec: Spec, history: list[Action], lag: Lag, seed: int, late: float) -> None:
    roughly(spec, history, lag, seed, late, None)


@share(0.08)
@given(spec=specs(elastic=True), history=histories((*RESIZING, *ROUGH), 25), lag=LAGS, seed=SEEDS, late=LATE)
def test_elastic_jobs_hold_in_any_order_too(
    spec: Spec, history: list[Action], lag: Lag, seed: int, late: float
) -> None:
    roughly(spec, history, lag, seed, late, None)


def roughly(spec: Spec, history: list[Action], lag: Lag, seed: int, late: float, deletion: str | None) -> None:
    simulation = Simulation(spec, seed, lag=lag, late_requests=late)
    simulation.cluster.supervisors.reconnect_seconds = lag.seconds / 2
    try:
        simulation.play(history)
        if deletion:
            simulation.delete(foreground=deletion == "Foreground")
        simulation.calm()
        simulation.finish()
        simulation.check()
    finally:
        _report(simulation)


def step_by_step(spec: Spec, history: list[Action], lag: Lag, seed: int) -> None:
    simulation = Simulation(spec, seed, lag=lag, follow=True)
    try:
        simulation.play(history)
        simulation.calm()
        simulation.check()
    finally:
        _report(simulation)


def _report(simulation: Simulation) -> None:
    """Reports the history of a failing example, and the final phase for the statistics of hypothesis."""
    note("\n".join(simulation.log))
    if currently_in_test_context():
        event(f"ends {simulation.status.get('phase', 'deleted')}")
