"""What a sweep decides: new trials, early stopping, disruptions, repeated failures, and its end."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from allranks.api.status import CurvePoint, MetricRecord, ProgressStatus, Status
from allranks.api.sweep_status import Check, SweepStatus, Trial
from allranks.api.sweep_validation import parse_sweep
from allranks.core.sweeps import suggestions, trial_job
from allranks.core.sweeps import trials as of_trials
from allranks.core.sweeps.model import SweepObserved, TrialJob
from allranks.core.sweeps.plan import plan
from support.builders import table
from support.sweep_world import NOW, World, failed_status
from unit.api.test_sweep import sweep

ASHA = {"rule": "ASHA", "minSteps": 10, "factor": 3}


def world(fate: str = "Succeeded", **spec: Any) -> World:
    return World(parse_sweep(sweep(**spec)), fate=lambda job, parameters: fate)


def test_the_parameters_are_stored_before_any_job_is_created():
    one = world(trials=5, parallel=2)
    first = plan(SweepObserved(one.sweep, SweepStatus(), {}, NOW))
    assert first.write_ahead
    assert not first.create
    assert first.status is not None
    assert [trial.job for trial in first.status.trials] == ["search-0", "search-1"]
    second = plan(SweepObserved(one.sweep, first.status, {}, NOW))
    assert [job["metadata"]["name"] for job in second.create] == ["search-0", "search-1"]
    assert not second.write_ahead


def test_a_sweep_ends_with_the_best_trial():
    done = world(trials=6, parallel=3).run()
    assert (done.phase, done.counts.succeeded, done.summary) == ("Succeeded", 6, "6/6")
    assert done.best is not None
    assert done.best.value == min(trial.value for trial in done.trials if trial.value is not None)
    [running, complete] = done.conditions
    assert (running.status, complete.type, complete.reason) == ("False", "Complete", "TrialsEnded")


def test_the_largest_value_is_the_best_of_a_metric_that_is_maximized():
    done = world(trials=6, objective={"metric": "loss", "goal": "Maximize"}).run()
    assert done.best is not None
    assert done.best.value == max(trial.value for trial in done.trials if trial.value is not None)


@table(
    ("by default, the latest value", {"goal": "Minimize"}, 0.3),
    ("Last", {"goal": "Minimize", "value": "Last"}, 0.3),
    ("Best of a metric that is minimized", {"goal": "Minimize", "value": "Best"}, 0.1),
    ("Best of a metric that is maximized", {"goal": "Maximize", "value": "Best"}, 0.9),
)
def test_the_value_of_a_trial_is_the_latest_or_the_best_one(case):
    objective, value = case
    one = world(trials=1, parallel=1, objective={"metric": "loss", **objective})
    created = plan(SweepObserved(one.sweep, SweepStatus(), {}, NOW)).status
    assert created is not None
    record = MetricRecord(first_step=1, first=0.9, last_step=9, lowest_step=5, lowest=0.1, highest_step=1, highest=0.9)
    progress = ProgressStatus(step=9, metrics={"loss": 0.3}, records={"loss": record})
    ended = TrialJob("search-0", Status(phase="Succeeded", progress=progress))
    after = plan(SweepObserved(one.sweep, created, {"search-0": ended}, NOW)).status
    assert after is not None
    assert after.best is not None
    assert after.best.value == value


def test_a_sweep_without_an_objective_runs_all_trials_and_names_no_best_one():
    one = world(trials=6, parallel=3, objective=None)
    one.fate = lambda job, parameters: "Failed" if job == "search-2" else "Succeeded"
    done = one.run()
    assert (done.phase, done.summary, done.best, done.best_summary) == ("Succeeded", "6/6", None, "")
    assert [trial.value for trial in done.trials] == [None] * 6
    complete = done.condition("Complete")
    assert complete is not None
    assert complete.message == "5 of 6 trials succeeded"


def test_a_sweep_without_an_objective_fails_if_no_trial_succeeds():
    one = world(trials=4, parallel=4, objective=None)
    one.fate = lambda job, parameters: "Disrupted"
    condition = one.run().condition("Failed")
    assert condition is not None
    assert (condition.reason, condition.message) == ("NoResult", "no trial succeeded")


def test_the_same_failure_of_the_first_three_trials_ends_the_sweep_and_stops_the_others():
    one = world("Failed", trials=20, parallel=4)
    one.fate = lambda job, parameters: "Failed" if job in ("search-0", "search-1", "search-2") else "Succeeded"
    done = one.run()
    assert (done.phase, len(done.trials), done.counts.failed, done.counts.stopped) == ("Failed", 4, 3, 1)
    condition = done.condition("Failed")
    assert condition is not None
    assert condition.reason == "SameFailure"
    assert condition.message == (
        "the first 3 trials failed in the same way (Error(1)): ValueError: bad shape; the sweep was stopped"
    )
    assert one.jobs["search-3"].suspended


def test_different_failures_of_the_first_trials_do_not_end_the_sweep():
    one = world(trials=5)
    one.fate = lambda job, parameters: "Failed" if job in ("search-0", "search-1") else "Succeeded"
    done = one.run()
    assert (done.phase, done.counts.failed, done.counts.succeeded) == ("Succeeded", 2, 3)


def test_a_metric_that_no_trial_reports_is_the_same_failure_and_names_those_that_are_reported():
    one = world(trials=5, objective={"metric": "accuracy", "goal": "Maximize"})
    done = one.run()
    condition = done.condition("Failed")
    assert condition is not None
    assert "there is no value of accuracy: the program reported loss" in condition.message
    assert len(done.trials) == 3


def test_a_misspelt_metric_is_answered_with_the_one_that_is_reported():
    condition = world(trials=5, objective={"metric": "lss", "goal": "Minimize"}).run().condition("Failed")
    assert condition is not None
    assert "there is no value of lss (did you mean loss?): the program reported loss" in condition.message


def test_a_trial_whose_job_is_lost_to_a_disruption_is_run_again_with_its_parameters_and_checkpoints():
    one = world(trials=2, template={"spec": {**sweep()["spec"]["template"]["spec"], "checkpoint": {"claim": "c"}}})
    one.fate = lambda job, parameters: "Disrupted" if job == "search-0" else "Succeeded"
    done = one.run()
    assert [(trial.job, trial.phase) for trial in done.trials] == [
        ("search-0-r1", "Succeeded"),
        ("search-1", "Succeeded"),
    ]
    assert done.disruptions == 1
    assert one.parameters["search-0"] == one.parameters["search-0-r1"]
    again = trial_job.manifest(one.sweep, done.trials[0])
    assert again["spec"]["checkpoint"] == {"claim": "c", "subPath": "search-0"}


def test_a_trial_that_disruptions_end_four_times_is_lost_and_no_bad_trial():
    one = world(trials=4)
    one.fate = lambda job, parameters: "Disrupted" if job.startswith("search-0") else "Succeeded"
    done = one.run()
    assert (done.phase, done.counts.lost, done.counts.failed, done.disruptions) == ("Succeeded", 1, 0, 4)


def test_a_job_that_was_deleted_is_created_again_under_another_name():
    one = world(trials=1)
    one.settle()
    one._train()
    one.settle()
    del one.jobs["search-0"]
    assert one.run().trials[0].job == "search-0-r1"


def test_a_job_that_is_being_deleted_is_waited_for():
    one = world(trials=1)
    one.settle()
    one.settle()
    one.jobs["search-0"] = replace(one.jobs["search-0"], deleting=True, status=failed_status("Deleted", NOW))
    one.settle()
    assert one.status.trials[0].job == "search-0"


def test_a_job_of_another_owner_is_left_alone_and_named():
    one = world(trials=1)
    one.jobs["search-0"] = TrialJob("search-0", Status(phase="Running"), owned=False)
    one.settle()
    [condition] = one.status.conditions
    assert condition.reason == "NameTaken"
    assert "delete it, or rename the sweep" in condition.message
    assert not one.creates


def test_a_refused_job_is_named_with_the_reason():
    one = world(trials=1)
    one.settle()
    rejected = {"search-0": ("Forbidden", "exceeded quota: gpus")}
    wanted = plan(SweepObserved(one.sweep, replace_jobs(one.status), {}, NOW, rejected=rejected))
    assert wanted.status is not None
    [condition] = wanted.status.conditions
    assert (condition.status, condition.reason) == ("False", "Forbidden")
    assert condition.message == "the job of trial 0 is refused: exceeded quota: gpus"


def replace_jobs(status: SweepStatus) -> SweepStatus:
    """The status before any job was observed."""
    trials = [replace(trial, observed=False, phase="Pending") for trial in status.trials]
    return replace(status, trials=trials)


def test_more_trials_may_be_requested_while_the_sweep_runs():
    one = world(trials=2)
    one.settle()
    one.sweep = parse_sweep(sweep(trials=4))
    assert len(one.run().trials) == 4


# --- early stopping ---------------------------------------------------------------------------------------------------


def trial(number: int, *values: float) -> Trial:
    """Values at the checks 10, 30, 90."""
    checks = [Check(step=10 * 3**index, value=value) for index, value in enumerate(values)]
    return Trial(number=number, job=f"search-{number}", parameters={}, checks=checks, phase="Running")


@table(
    ("the first at a check continues", [5.0], "ASHA", False),
    ("the best of two continues", [1.0, 5.0], "ASHA", False),
    ("the second of two is stopped", [5.0, 1.0], "ASHA", True),
    ("the second of four continues", [2.0, 1.0, 3.0, 4.0], "ASHA", False),
    ("the third of four is stopped", [3.0, 1.0, 2.0, 4.0], "ASHA", True),
    ("equal values continue", [1.0, 1.0, 1.0, 1.0], "ASHA", False),
    ("two others are no median", [9.0, 1.0, 2.0], "Median", False),
    ("worse than the median of three", [2.5, 1.0, 2.0, 3.0], "Median", True),
    ("as good as the median of three", [2.0, 1.0, 2.0, 3.0], "Median", False),
)
def test_a_trial_is_stopped_if_it_is_worse_at_the_same_check(case):
    values, rule, is_stopped = case
    spec = parse_sweep(sweep(stop={**ASHA, "rule": rule})).spec
    trials = [trial(number, value) for number, value in enumerate(values)]
    assert bool(of_trials.is_worse(trials[0], trials[0].checks, trials, spec)) is is_stopped


def progress(step: int, metric: float = 1.0, points: tuple[tuple[int, float], ...] = ()) -> ProgressStatus:
    curve = [CurvePoint(time=NOW, step=at, value=value) for at, value in points]
    return ProgressStatus(step=step, metrics={"loss": metric}, curve=curve, curve_metric="loss" if points else "")


@table(
    ("before the first check", progress(9), []),
    ("at the first check", progress(10, 2.0), [(10, 2.0)]),
    ("a little after it", progress(14, 2.0), [(10, 2.0)]),
    ("too late for the first check, and not at the second", progress(20, 2.0), []),
    (
        "late, but the curve has the points around both",
        progress(31, 1.0, ((5, 4.0), (15, 3.0), (31, 1.0))),
        [(10, 3.5), (30, 1.125)],
    ),
)
def test_values_are_compared_at_equal_steps(case):
    reported, expected = case
    spec = parse_sweep(sweep(stop=ASHA)).spec
    found = of_trials.new_checks(trial(0), reported, spec, 10)
    assert [(check.step, check.value) for check in found] == expected


def test_a_check_counts_once():
    spec = parse_sweep(sweep(stop=ASHA)).spec
    assert of_trials.new_checks(trial(0, 1.0), progress(12), spec, 10) == ()


def test_without_minSteps_a_trial_has_two_checks():
    one = world(trials=4, parallel=4, stop={"rule": "ASHA"})
    done = one.run()
    assert done.min_steps == 90 // 9
    assert {check.step for each in done.trials for check in each.checks} <= {10, 30, 90}
    assert done.counts.stopped >= 1


def test_a_stopped_trial_is_suspended_so_that_it_keeps_its_checkpoint_and_says_why():
    one = world(trials=8, parallel=4, stop=ASHA)
    done = one.run()
    stopped = [each for each in done.trials if each.phase == "Stopped"]
    assert stopped
    assert all(one.jobs[each.job].suspended for each in stopped)
    assert "is worse than that of the best 1/3" in (stopped[0].message or "")
    assert done.counts.succeeded >= 1


# --- parameters -------------------------------------------------------------------------------------------------------


def test_random_parameters_depend_on_the_seed_and_the_number_alone():
    spec = parse_sweep(sweep()).spec
    assert suggestions.random(spec, 3) == suggestions.random(spec, 3)
    assert suggestions.random(spec, 3) != suggestions.random(spec, 4)
    other = parse_sweep(sweep(seed=1)).spec
    assert suggestions.random(spec, 3) != suggestions.random(other, 3)


def test_random_parameters_stay_the_same_in_later_versions():
    """A sweep continues after an upgrade of the operator."""
    spec = parse_sweep(sweep()).spec
    assert [suggestions.random(spec, number) for number in range(3)] == RANDOM


RANDOM = [
    {"batch": "16", "lr": "0.000470488"},
    {"batch": "32", "lr": "0.000101854"},
    {"batch": "16", "lr": "0.0187207"},
]


def test_random_parameters_cover_their_ranges():
    parameters = {
        "a": {"uniform": {"min": 0, "max": 1}},
        "b": {"logUniform": {"min": "1e-4", "max": 1}},
        "c": {"int": {"min": 1, "max": 4}},
        "d": {"values": ["x", "y"]},
    }
    spec = parse_sweep(sweep(parameters=parameters)).spec
    drawn = [suggestions.random(spec, number) for number in range(400)]
    assert {each["c"] for each in drawn} == {"1", "2", "3", "4"}
    assert {each["d"] for each in drawn} == {"x", "y"}
    assert 0.4 < sum(float(each["a"]) for each in drawn) / 400 < 0.6
    assert 0.4 < sum(float(each["b"]) < 0.01 for each in drawn) / 400 < 0.6
    assert all(0.0001 <= float(each["b"]) <= 1 for each in drawn)


NUMBERS = {
    "beta": {"beta": {"alpha": 2, "beta": 5}},
    "exponential": {"exponential": {"mean": 0.1}},
    "gamma": {"gamma": {"shape": 2, "scale": 0.01}},
    "lognormal": {"logNormal": {"mu": -7, "sigma": 1}},
    "normal": {"normal": {"mu": 0.5, "sigma": 0.1}},
    "quantised": {"normal": {"mu": 100, "sigma": 30, "step": 10}},
    "sizes": {"logUniform": {"min": 8, "max": 512, "step": 8}},
    "small": {"gamma": {"shape": 0.5, "scale": 1}},
    "steps": {"uniform": {"min": 0, "max": 1, "step": 0.25}},
}


def test_random_numbers_of_distributions_stay_the_same_in_later_versions():
    spec = parse_sweep(sweep(parameters=NUMBERS)).spec
    assert [suggestions.random(spec, number) for number in range(2)] == DRAWN


DRAWN = [
    {
        "beta": "0.179016",
        "exponential": "0.166459",
        "gamma": "0.0100227",
        "lognormal": "0.000423692",
        "normal": "0.526494",
        "quantised": "120",
        "sizes": "24",
        "small": "1.89265",
        "steps": "0.75",
    },
    {
        "beta": "0.199573",
        "exponential": "0.230025",
        "gamma": "0.0146643",
        "lognormal": "0.000961208",
        "normal": "0.544765",
        "quantised": "30",
        "sizes": "240",
        "small": "0.0415213",
        "steps": "1.0",
    },
]


def drawn(number: int = 4000, **parameter: Any) -> list[float]:
    spec = parse_sweep(sweep(parameters={"p": parameter})).spec
    return sorted(float(suggestions.random(spec, place)["p"]) for place in range(number))


@table(
    # The quartiles of SciPy's ppf.
    ("normal", {"normal": {"mu": 1, "sigma": 2}}, (-0.34898, 1.0, 2.34898)),
    ("logNormal", {"logNormal": {"mu": 1, "sigma": 0.5}}, (1.94007, 2.71828, 3.80854)),
    ("exponential", {"exponential": {"mean": 2}}, (0.57536, 1.38629, 2.77259)),
    ("gamma", {"gamma": {"shape": 2, "scale": 3}}, (2.88384, 5.03504, 8.07790)),
    ("gamma with a small shape", {"gamma": {"shape": 0.5, "scale": 1}}, (0.050766, 0.227468, 0.661652)),
    ("beta", {"beta": {"alpha": 2, "beta": 5}}, (0.16116, 0.26445, 0.38948)),
    ("beta with small shapes", {"beta": {"alpha": 0.5, "beta": 0.5}}, (0.14645, 0.5, 0.85355)),
    (
        "uniform with a step: each value is equally likely",
        {"uniform": {"min": 0, "max": 3, "step": 1}},
        (0.5, 1.5, 2.5),
    ),
)
def test_a_quarter_of_the_numbers_of_a_distribution_is_below_its_first_quartile(case):
    parameter, quartiles = case
    numbers = drawn(**parameter)
    shares = [sum(number < quartile for number in numbers) / len(numbers) for quartile in quartiles]
    assert shares == pytest.approx([0.25, 0.5, 0.75], abs=0.02)


@table(
    ("multiples of the step", {"normal": {"mu": 0, "sigma": 1, "step": 0.5}}, 0.5, 0.0),
    ("counted from min", {"logUniform": {"min": 1.5, "max": 100, "step": 2}}, 2.0, 1.5),
)
def test_a_step_rounds_the_numbers_of_a_distribution(case):
    parameter, step, first = case
    numbers = {(number - first) / step for number in drawn(400, **parameter)}
    assert len(numbers) > 5
    assert all(number.is_integer() for number in numbers)


def test_a_logarithmic_range_with_a_whole_step_gives_whole_numbers_inside_of_it():
    spec = parse_sweep(sweep(parameters={"p": {"logUniform": {"min": 8, "max": 100, "step": 8}}})).spec
    texts = {suggestions.random(spec, place)["p"] for place in range(400)}
    assert texts == {str(number) for number in range(8, 100, 8)}


@table(
    ("of lognormal numbers", {"logNormal": {"mu": 1e4, "sigma": 1}}),
    ("of gamma numbers", {"gamma": {"shape": 1e-4, "scale": 1e300}}),
    ("of beta numbers", {"beta": {"alpha": 1e-4, "beta": 1e-4}}),
)
def test_extreme_numbers_are_finite(case):
    assert all(math.isfinite(number) for number in drawn(200, **case[0]))


def test_a_grid_has_each_combination_once():
    parameters = {"a": {"values": [1, 2]}, "b": {"int": {"min": 1, "max": 3}}}
    done = world(parameters=parameters, algorithm="Grid", trials=None, parallel=6).run()
    found = [tuple(each.parameters.values()) for each in done.trials]
    assert found == [(a, b) for a in "12" for b in "123"]


def test_the_values_reach_the_program_in_arguments_and_variables():
    spec = sweep()["spec"]["template"]["spec"] | {
        "args": ["--lr=$(lr)", "$$(lr)", "$(OTHER)", "--note=$(note)"],
        "env": [{"name": "RATE", "value": "$(lr)"}],
        "roles": {"worker": {"args": ["$(lr)"], "template": {"spec": {"containers": [{"command": ["x", "$(lr)"]}]}}}},
    }
    one = parse_sweep(
        sweep(
            parameters={"lr": {"values": [0.1]}, "note": {"values": ["$(HOME)"]}},
            template={"spec": sweep()["spec"]["template"]["spec"]},
        )
    )
    one = replace(
        one, spec=one.spec.model_copy(update={"template": one.spec.template.model_copy(update={"spec": spec})})
    )
    first = Trial(number=0, job="search-0", parameters={"lr": "0.1", "note": "$(HOME)"})
    made = trial_job.manifest(one, first)
    assert made["spec"]["args"] == ["--lr=0.1", "$$(lr)", "$(OTHER)", "--note=$$(HOME)"]
    assert made["spec"]["env"] == [
        {"name": "ALLRANKS_PARAM_LR", "value": "0.1"},
        {"name": "ALLRANKS_PARAM_NOTE", "value": "$$(HOME)"},
        {"name": "RATE", "value": "0.1"},
    ]
    worker = made["spec"]["roles"]["worker"]
    assert (worker["args"], worker["template"]["spec"]["containers"][0]["command"]) == (["0.1"], ["x", "0.1"])
    assert spec["args"][0] == "--lr=$(lr)", "the template was changed"


def test_the_job_of_a_trial_is_valid_and_belongs_to_the_sweep():
    from allranks.api.validation import parse

    one = parse_sweep(sweep(template={"metadata": {"labels": {"team": "a"}}, **sweep()["spec"]["template"]}))
    made = trial_job.manifest(one, Trial(number=7, job="search-7", parameters={"lr": "0.1", "batch": "16"}))
    parsed = parse(made)
    assert parsed.metadata.labels == {"team": "a", "allranks.dev/sweep": "search", "allranks.dev/trial": "7"}
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("TrainingSweep", "search", True)


@pytest.mark.parametrize("algorithm", ["Random", "TPE"])
def test_the_first_ten_trials_of_TPE_are_those_of_Random(algorithm):
    done = world(trials=10, algorithm=algorithm, parallel=10).run()
    assert [each.parameters for each in done.trials] == [
        suggestions.random(parse_sweep(sweep()).spec, n) for n in range(10)
    ]


def with_suspend(one: World, suspend: bool) -> None:
    one.sweep = replace(one.sweep, spec=one.sweep.spec.model_copy(update={"suspend": suspend}))


def test_a_suspended_sweep_suspends_its_trials_and_starts_none():
    one = world(trials=5, parallel=2)
    one.settle()
    with_suspend(one, True)
    one.settle()
    assert (one.status.phase, len(one.status.trials)) == ("Suspended", 2)
    assert all(job.suspended for job in one.jobs.values())
    running = one.status.condition("Running")
    assert running is not None
    assert (running.status, running.reason) == ("False", "Suspended")
    for _ in range(20):
        one._train()
        one.settle()
    assert (one.status.phase, len(one.jobs)) == ("Suspended", 2)


def test_a_resumed_sweep_continues_with_the_same_trials():
    undisturbed, one = world(trials=5, parallel=2).run(), world(trials=5, parallel=2)
    one.settle()
    one._train()
    with_suspend(one, True)
    one.settle()
    with_suspend(one, False)
    one.settle()
    assert not any(job.suspended for job in one.jobs.values())
    assert not any(trial.suspended for trial in one.status.trials)
    done = one.run()
    assert [trial.parameters for trial in done.trials] == [trial.parameters for trial in undisturbed.trials]
    assert set(one.creates.values()) == {1}
    assert done.best == undisturbed.best


def test_a_trial_that_a_user_suspended_is_not_resumed_with_the_sweep():
    one = world(trials=2, parallel=2)
    one.settle()
    one.jobs["search-1"] = replace(one.jobs["search-1"], suspended=True)
    with_suspend(one, True)
    one.settle()
    with_suspend(one, False)
    one.settle()
    assert [one.jobs[name].suspended for name in ("search-0", "search-1")] == [False, True]


def test_a_job_that_was_not_created_yet_is_created_after_the_suspension():
    one = world(trials=2, parallel=2)
    one._step()  # the parameters are stored
    with_suspend(one, True)
    one.settle()
    assert one.jobs == {}
    with_suspend(one, False)
    assert one.run().counts.succeeded == 2


def test_a_promoted_trial_starts_from_the_checkpoints_of_its_job_and_stores_its_own_elsewhere():
    document = sweep(trials=2)
    document["spec"]["template"]["spec"]["checkpoint"] = {"claim": "models", "subPath": "team"}
    one = World(parse_sweep(document))
    trial = one.run().trials[1]
    made = trial_job.promoted(one.sweep, trial, "search-1-promoted")
    assert made["spec"]["resumeFrom"] == "search-1"
    assert made["spec"]["checkpoint"] == {"claim": "models", "subPath": "team/search-1-promoted"}
    assert "ownerReferences" not in made["metadata"]
    assert trial_job.manifest(one.sweep, trial)["spec"]["checkpoint"]["subPath"] == "team/search-1"
