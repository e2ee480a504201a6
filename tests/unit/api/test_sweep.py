"""Valid and invalid TrainingSweeps: each problem names the field and says what to write."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from allranks.api import sweep_values
from allranks.api.sweep import SweepSpec
from allranks.api.sweep_validation import parse_sweep
from allranks.errors import InvalidManifest
from support.builders import manifest, table


def sweep(**spec: Any) -> dict[str, Any]:
    """A manifest as decoded YAML. A value of None removes the field."""
    whole = {
        "parameters": {"lr": {"logUniform": {"min": 0.0001, "max": 0.1}}, "batch": {"values": [16, 32, 64]}},
        "objective": {"metric": "loss", "goal": "Minimize"},
        "trials": 20,
        "template": {"spec": manifest(args=["--lr=$(lr)"])["spec"]},
        **spec,
    }
    return {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "TrainingSweep",
        "metadata": {"name": "search", "namespace": "team"},
        "spec": copy.deepcopy({name: value for name, value in whole.items() if value is not None}),
    }


def problems(document: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvalidManifest) as raised:
        parse_sweep(document)
    return raised.value.problems


def test_defaults():
    spec = parse_sweep(sweep()).spec
    assert (spec.algorithm, spec.seed, spec.parallel, spec.stop) == ("Random", 0, 1, None)


def test_a_bound_may_be_1e_4_which_YAML_reads_as_a_text():
    bounds = parse_sweep(sweep(parameters={"lr": {"logUniform": {"min": "1e-4", "max": 0.1}}})).spec.parameters["lr"]
    assert bounds.log_uniform is not None
    assert bounds.log_uniform.min == 0.0001


def test_every_field_is_parsed():
    spec = parse_sweep(
        sweep(
            parameters={
                "a": {"uniform": {"min": 0, "max": 1, "points": 3}},
                "b": {"logUniform": {"min": 1, "max": 10.5, "points": 2}},
                "c": {"int": {"min": 1, "max": 9, "step": 2}},
                "d": {"values": ["x", 1, 0.5, True]},
                "e": {"uniform": {"min": 0, "max": 1, "step": 0.5}},
            },
            algorithm="Grid",
            trials=None,
            seed=7,
            parallel=3,
            suspend=True,
            stop={"rule": "Median", "minSteps": 10, "factor": 2},
            notify=[{"receiver": "team"}],
        )
    ).spec
    assert spec.parameters["d"].values == ["x", 1, 0.5, True]
    assert sweep_values.combinations(spec) == sweep_values.number_of_trials(spec) == 3 * 2 * 5 * 4 * 3
    assert set(SweepSpec.model_fields) == spec.model_fields_set | {"trials"}


def job(**spec: Any) -> dict[str, Any]:
    return {"template": {"spec": manifest(**spec)["spec"]}}


NO_REPLICAS = {"framework": "pytorch", "roles": {"worker": {"replicas": "2"}}, "image": "me/train:1"}

NO_OBJECTIVE = (
    "is required for algorithm TPE and for stop, which compare trials: for example {metric: loss, goal: Minimize}"
)
FIELDS = "uniform, logUniform, int, normal, logNormal, gamma, beta, exponential and values"

INVALID = [
    (
        "a bound that is no number",
        {"parameters": {"lr": {"logUniform": {"min": "small", "max": 0.1}}}},
        [("spec.parameters.lr.logUniform.min", "should be a valid number")],
    ),
    (
        "a logarithm of zero",
        {"parameters": {"lr": {"logUniform": {"min": 0, "max": 0.1}}}},
        [("spec.parameters.lr.logUniform.min", "must be larger than 0: it has a logarithm")],
    ),
    (
        "bounds in the wrong order",
        {"parameters": {"lr": {"int": {"min": 3, "max": 2}}}},
        [("spec.parameters.lr.int.max", "must be larger than min")],
    ),
    (
        "two kinds of values for one parameter",
        {"parameters": {"lr": {"int": {"min": 1, "max": 2}, "values": [1]}}},
        [("spec.parameters.lr", "set exactly one of " + FIELDS)],
    ),
    (
        "a parameter without values",
        {"parameters": {"lr": {}}},
        [("spec.parameters.lr", f"set exactly one of {FIELDS}")],
    ),
    (
        "a distribution without its second number",
        {"parameters": {"lr": {"logNormal": {"mu": -7}}}},
        [("spec.parameters.lr.logNormal.sigma", "is required")],
    ),
    (
        "numbers that must be positive",
        {
            "parameters": {
                "a": {"normal": {"mu": -1, "sigma": 0}},
                "b": {"gamma": {"shape": -1, "scale": 1, "step": 0}},
                "c": {"exponential": {"mean": "-1e-3"}},
            }
        },
        [
            ("spec.parameters.a.normal.sigma", "must be larger than 0"),
            ("spec.parameters.b.gamma.step", "must be larger than 0"),
            ("spec.parameters.b.gamma.shape", "must be larger than 0"),
            ("spec.parameters.c.exponential.mean", "must be larger than 0"),
        ],
    ),
    (
        "a step that is wider than its range",
        {"parameters": {"lr": {"uniform": {"min": 0, "max": 1, "step": 2}}}},
        [("spec.parameters.lr.uniform.step", "must not be larger than the difference of max and min")],
    ),
    (
        "points and a step",
        {"parameters": {"lr": {"uniform": {"min": 0, "max": 1, "step": 0.5, "points": 3}}}},
        [
            (
                "spec.parameters.lr.uniform.points",
                "set either points or step: a step determines the values that algorithm Grid tries",
            )
        ],
    ),
    (
        "a grid of a distribution without bounds",
        {"algorithm": "Grid", "trials": None, "parameters": {"lr": {"normal": {"mu": 0, "sigma": 1, "step": 0.1}}}},
        [
            (
                "spec.parameters.lr.normal",
                "has no finite set of values, which algorithm Grid needs: use values, int, or uniform with points or "
                "step",
            )
        ],
    ),
    (
        "TPE with a distribution without bounds",
        {"algorithm": "TPE", "parameters": {"a": {"values": [1]}, "b": {"beta": {"alpha": 1, "beta": 2}}}},
        [
            (
                "spec.parameters.b.beta",
                "algorithm TPE searches between two bounds: use uniform or logUniform, or algorithm Random",
            )
        ],
    ),
    (
        "early stopping without an objective",
        {"objective": None, "stop": {"rule": "ASHA"}},
        [("spec.objective", NO_OBJECTIVE)],
    ),
    ("TPE without an objective", {"objective": None, "algorithm": "TPE"}, [("spec.objective", NO_OBJECTIVE)]),
    (
        "two parameters with the same variable",
        {"parameters": {"lr": {"values": [1]}, "LR": {"values": [1]}}},
        [("spec.parameters.LR", "has the same variable as lr, ALLRANKS_PARAM_LR: rename one of them")],
    ),
    (
        "a parameter that cannot be used as $(NAME)",
        {"parameters": {"learning rate": {"values": [1]}}},
        [
            (
                "spec.parameters.learning rate",
                "must be letters, digits, '_', '-' and '.', and begin with a letter: it is used as $(NAME)",
            )
        ],
    ),
    ("no trials", {"trials": None}, [("spec.trials", "is required for this algorithm: how many trials to run")]),
    (
        "a grid of a range without points",
        {"algorithm": "Grid", "trials": None},
        [("spec.parameters.lr.logUniform.points", "is required for algorithm Grid: how many values to try")],
    ),
    (
        "a grid that is too large",
        {"algorithm": "Grid", "trials": None, "parameters": {"n": {"int": {"min": 1, "max": 501}}}},
        [("spec.parameters", "have 501 combinations, but a sweep has at most 500 trials: set trials")],
    ),
    (
        "more trials than a grid has",
        {"algorithm": "Grid", "parameters": {"n": {"values": [1, 2]}}},
        [("spec.trials", "there are only 2 combinations: remove trials")],
    ),
    (
        "a mistake in the job",
        {"template": {"spec": NO_REPLICAS}},
        [
            (
                "spec.template.spec.roles.worker.replicas",
                "must be a whole number, not a string: remove the quotes",
            )
        ],
    ),
    (
        "a job that would be deleted when it has finished",
        job(ttlSecondsAfterFinished=60),
        [
            (
                "spec.template.spec.ttlSecondsAfterFinished",
                "the jobs of a sweep are deleted with it: remove ttlSecondsAfterFinished",
            )
        ],
    ),
    (
        "a suspended job",
        job(suspend=True),
        [("spec.template.spec.suspend", "the sweep suspends a trial to stop it: remove suspend")],
    ),
    (
        "a sweep of sweeps",
        {"template": {"kind": "TrainingSweep", "spec": {}}},
        [("spec.template", "a sweep of sweeps is refused: the template is a DistributedTraining")],
    ),
    (
        "a sweep of sweeps without a kind",
        {"template": {"spec": sweep()["spec"]}},
        [("spec.template", "a sweep of sweeps is refused: the template is a DistributedTraining")],
    ),
    (
        "an unknown field",
        {"goal": "Minimize"},
        [
            (
                "spec.goal",
                "unknown field: the fields here are parameters, objective, algorithm, seed, trials, parallel, suspend, "
                "stop, notify, template",
            )
        ],
    ),
    (
        "an unknown algorithm",
        {"algorithm": "bayes"},
        [("spec.algorithm", "should be 'Random', 'Grid' or 'TPE', not 'bayes'")],
    ),
]


@table(*INVALID)
def test_a_problem_names_its_field(case):
    spec, expected = case
    assert problems(sweep(**spec)) == expected


_LARGE = "1234567 1234568 1234569"


def test_a_long_name_leaves_no_room_for_the_numbers_of_trials():
    document = sweep()
    document["metadata"]["name"] = "a" * 35
    assert [path for path, _ in problems(document)] == ["metadata.name"]
    document["metadata"]["name"] = "a" * 34
    assert parse_sweep(document).name == "a" * 34


@table(
    ("a whole number", 32, "32"),
    ("a number", 0.0001, "0.0001"),
    ("a truth value", True, "true"),
    ("a text", "adam", "adam"),
)
def test_a_value_as_the_program_gets_it(case):
    value, expected = case
    assert sweep_values.text(value) == expected


@table(
    ("decimals have no noise of floats", {"uniform": {"min": 0, "max": 0.5, "step": 0.1}}, "0.0 0.1 0.2 0.3 0.4 0.5"),
    ("the last step may not reach the bound", {"uniform": {"min": 0.5, "max": 2.2, "step": 0.5}}, "0.5 1.0 1.5 2.0"),
    ("whole numbers stay whole", {"uniform": {"min": 8, "max": 32, "step": 8}}, "8 16 24 32"),
    ("also of a logarithmic range", {"logUniform": {"min": 8, "max": 32, "step": 8}}, "8 16 24 32"),
    ("large numbers keep their digits", {"uniform": {"min": 1234567, "max": 1234569, "step": 1}}, _LARGE),
)
def test_a_grid_of_a_range_with_a_step_has_its_multiples(case):
    declared, expected = case
    [parameter] = parse_sweep(sweep(algorithm="Grid", trials=None, parameters={"p": declared})).spec.parameters.values()
    values = [sweep_values.grid_value(parameter, index) for index in range(sweep_values.grid_size(parameter) or 0)]
    assert values == expected.split()


def test_points_of_a_grid_include_both_bounds_and_have_few_digits():
    parameters = parse_sweep(
        sweep(
            algorithm="Grid",
            trials=None,
            parameters={"lr": {"logUniform": {"min": 0.0001, "max": 0.1, "points": 4}}},
        )
    ).spec.parameters
    values = [sweep_values.grid_value(parameters["lr"], index) for index in range(4)]
    assert values == ["0.0001", "0.001", "0.01", "0.1"]


def test_a_notification_of_a_sweep_has_one_receiver_and_occasions_of_a_sweep():
    notify = [{"receiver": "team"}, {"webhook": {"url": "https://example.org/x"}, "occasions": ["Failed"]}]
    [every, failures] = parse_sweep(sweep(notify=notify)).spec.notify or []
    assert (every.occasions, failures.occasions) == (["Succeeded", "Failed"], ["Failed"])
    both = [{"receiver": "team", "webhook": {"url": "https://example.org/x"}}]
    assert problems(sweep(notify=both)) == [("spec.notify[0]", "set either receiver or webhook")]
    [(path, _)] = problems(sweep(notify=[{"receiver": "team", "occasions": ["Hung"]}]))
    assert path == "spec.notify[0].occasions[0]"
