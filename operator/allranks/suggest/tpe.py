"""`python -m allranks.suggest.tpe`: the parameters of one trial by Optuna's TPE, from JSON on stdin to JSON on stdout.

The study is built from the trials that have ended each time, so there is no database. The result is a function of the
seed, the number and these trials.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import resource
import sys
from typing import Any

from allranks.api import sweep_values
from allranks.api.sweep import IntRange, LogRange, Parameter, Range
from allranks.api.sweep_status import Trial
from allranks.fields import decode

MOST_BYTES = 192 * 2**20
"""Memory of the process, which is in the operator's container. 100 trials need a third of it."""


def main() -> None:
    """Print parameters as JSON."""
    with contextlib.suppress(OSError, ValueError):  # not on every system
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    request = json.load(sys.stdin)
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    json.dump(suggest(request), sys.stdout)


def suggest(request: dict[str, Any]) -> dict[str, str]:
    """Return the parameters of a trial. `request` has seed, number, goal, parameters by name, and the trials that have
    ended."""
    import optuna

    parameters = {name: Parameter.model_validate(declared) for name, declared in request["parameters"].items()}
    space = {name: _distribution(parameters[name]) for name in sorted(parameters)}
    seed = int.from_bytes(hashlib.sha256(f"{request['seed']}/{request['number']}".encode()).digest()[:4])
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=0)
    study = optuna.create_study(direction=request["goal"].lower(), sampler=sampler)
    for entry in request["trials"]:
        if (ended := _ended(decode(Trial, entry), parameters, space)) is not None:
            study.add_trial(ended)
    asked = study.ask(space)
    return {name: _text(parameters[name], asked.params[name]) for name in space}


def _distribution(parameter: Parameter) -> Any:
    from optuna import distributions

    match parameter.space:
        case list() as values:
            return distributions.CategoricalDistribution([sweep_values.text(value) for value in values])
        case IntRange() as whole:
            return distributions.IntDistribution(whole.min, whole.max, step=whole.step)
        case LogRange() as bounds:  # Optuna's have no step: the answer is rounded
            return distributions.FloatDistribution(bounds.min, bounds.max, log=True)
        case Range(step=float(step)) as bounds:
            last = bounds.min + (sweep_values.steps(bounds) - 1) * step
            return distributions.FloatDistribution(bounds.min, last, step=step)
        case Range() as bounds:
            return distributions.FloatDistribution(bounds.min, bounds.max)
    raise AssertionError("a valid sweep with TPE has no other distributions")


def _ended(trial: Trial, parameters: dict[str, Parameter], space: dict[str, Any]) -> Any:
    """Return the trial as Optuna has it: a stopped one is pruned. None if its values are not in the present ranges."""
    import optuna

    stopped = trial.phase == "Stopped"
    try:
        return optuna.trial.create_trial(
            state=optuna.trial.TrialState.PRUNED if stopped else optuna.trial.TrialState.COMPLETE,
            value=trial.value,
            params={name: _value(parameters[name], trial.parameters[name]) for name in space},
            distributions=space,
            intermediate_values={check.step: check.value for check in trial.checks},
        )
    except (KeyError, ValueError):
        return None


def _value(parameter: Parameter, text: str) -> str | int | float:
    match parameter.space:
        case list():
            return text
        case IntRange():
            return int(text)
    return float(text)


def _text(parameter: Parameter, value: Any) -> str:
    space = parameter.space
    return sweep_values.number_text(float(value), space) if isinstance(space, Range) else sweep_values.text(value)


if __name__ == "__main__":
    main()
