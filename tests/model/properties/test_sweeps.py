"""Sweeps whose operator is killed after every write have the trials of an undisturbed sweep, and run none twice."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from allranks.api.sweep_validation import parse_sweep
from support.sweep_world import World, share
from unit.api.test_sweep import sweep

SEED = 20260304
ALGORITHMS = ("Random", "Grid", "TPE")


def world(algorithm: str, seed: int, trials: int, dies_after: int = -1) -> World:
    """A sweep whose trials have different fates: most succeed, some fail, some jobs are lost to disruptions."""

    def fate(job: str, parameters: dict[str, str]) -> str:
        chance = share(seed, job)
        return "Disrupted" if chance < 0.15 else "Failed" if chance < 0.25 else "Succeeded"

    rng = random.Random(seed)
    points = {"points": trials} if algorithm == "Grid" else {}
    document = sweep(
        parameters={"lr": {"logUniform": {"min": 0.0001, "max": 0.1, **points}}},
        algorithm=algorithm,
        seed=seed,
        trials=trials,
        parallel=rng.randint(1, 8),
        stop={"rule": rng.choice(["ASHA", "Median"]), "minSteps": 10, "factor": rng.choice([2, 3])},
    )
    return World(parse_sweep(document), fate=fate, dies_after=dies_after)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_200_trials_are_the_same_with_an_operator_that_is_killed_after_every_write(algorithm):
    print(f"seed {SEED}")
    undisturbed = world(algorithm, SEED, trials=200)
    killed = world(algorithm, SEED, trials=200, dies_after=0)
    expected, found = undisturbed.run(), killed.run()
    assert found == expected
    assert len(found.trials) == 200
    assert killed.creates == undisturbed.creates
    assert set(killed.creates.values()) == {1}, "a job was created twice"
    assert killed.parameters == undisturbed.parameters
    assert found.disruptions > 0
    assert found.counts.stopped > 20
    assert found.counts.failed > 0


@pytest.mark.parametrize("number", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(3, 12))])
def test_small_sweeps_killed_once_after_each_write_end_the_same(number):
    seed = SEED + number
    print(f"seed {seed}")
    algorithm = ALGORITHMS[number % 3]
    undisturbed = world(algorithm, seed, trials=14)
    expected = undisturbed.run()
    for write in range(1, undisturbed.writes + 1):
        killed = world(algorithm, seed, trials=14, dies_after=write)
        assert killed.run() == expected, f"seed {seed}, killed after write {write}"
        assert set(killed.creates.values()) == {1}, f"seed {seed}, killed after write {write}"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_never_more_trials_than_parallel_are_active(algorithm):
    one = world(algorithm, SEED, trials=40)
    most = 0
    while not one.status.finished:
        one.settle()
        most = max(most, sum(not trial.ended for trial in one.status.trials))
        one._train()
    assert most == one.sweep.spec.parallel


@pytest.mark.parametrize("seed", range(5))
def test_a_sweep_that_is_suspended_now_and_then_has_the_same_trials_whatever_write_kills_its_operator(seed):
    print(f"seed {SEED + seed}")
    rng = random.Random(SEED + seed)
    expected, one = world("Random", seed, trials=30).run(), world("Random", seed, trials=30, dies_after=0)
    for _ in range(60):
        spec = one.sweep.spec.model_copy(update={"suspend": rng.random() < 0.4})
        one.sweep = replace(one.sweep, spec=spec)
        one.settle()
        created = len(one.creates)
        one._train()
        one.settle()
        if spec.suspend:
            assert len(one.creates) == created
            assert all(job.suspended or job.status.phase in ("Succeeded", "Failed") for job in one.jobs.values())
    one.sweep = replace(one.sweep, spec=one.sweep.spec.model_copy(update={"suspend": False}))
    found = one.run()
    assert [trial.parameters for trial in found.trials] == [trial.parameters for trial in expected.trials]
    assert set(one.creates.values()) == {1}
