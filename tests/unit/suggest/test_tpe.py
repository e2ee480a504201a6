"""Optuna's TPE in a process of its own: the same question has the same answer, and it learns."""

from __future__ import annotations

import asyncio
import json
import math
import os
import stat
import subprocess
import sys
from typing import Any

import pytest

from allranks.api.sweep_status import Check, Trial
from allranks.api.sweep_validation import parse_sweep
from allranks.core.sweeps.model import Suggestion
from allranks.fields import encode
from allranks.suggest import process, tpe
from unit.api.test_sweep import sweep

PARAMETERS = {
    "lr": {"logUniform": {"min": "1e-5", "max": 1}},
    "size": {"int": {"min": 8, "max": 64, "step": 8}},
    "optimizer": {"values": ["adam", "sgd"]},
}
SPEC = parse_sweep(sweep(parameters=PARAMETERS, algorithm="TPE", seed=3)).spec


def ended(number: int, lr: float, phase: Any = "Succeeded") -> Trial:
    value = abs(math.log10(lr) + 3)  # the best is 0.001
    parameters = {"lr": repr(lr), "size": "16", "optimizer": "adam"}
    checks = [Check(step=10, value=value)]
    return Trial(number=number, job="j", parameters=parameters, phase=phase, value=value, checks=checks)


def question(number: int, trials: list[Trial]) -> dict[str, Any]:
    return {
        "seed": SPEC.seed,
        "number": number,
        "goal": SPEC.objective.goal,
        "parameters": PARAMETERS,
        "trials": [encode(trial) for trial in trials],
    }


TRIALS = [ended(number, 10 ** -(number % 5 + 0.5), "Stopped" if number % 3 else "Succeeded") for number in range(12)]


def test_the_same_question_has_the_same_answer():
    assert tpe.suggest(question(12, TRIALS)) == tpe.suggest(question(12, TRIALS))


def test_the_answer_is_within_the_ranges():
    answer = tpe.suggest(question(12, TRIALS))
    assert 1e-5 <= float(answer["lr"]) <= 1
    assert int(answer["size"]) in range(8, 65, 8)
    assert answer["optimizer"] in ("adam", "sgd")


def test_a_step_is_kept():
    parameters = {
        "dropout": {"uniform": {"min": 0, "max": 0.55, "step": 0.1}},
        "size": {"logUniform": {"min": 8, "max": 512, "step": 8}},
    }
    values = {"dropout": "0.3", "size": "504"}
    learned = [Trial(number=n, job="j", parameters=values, phase="Succeeded", value=1.0) for n in range(12)]
    answers = [tpe.suggest(question(number, learned) | {"parameters": parameters}) for number in range(12, 20)]
    assert {answer["dropout"] for answer in answers} <= {"0.0", "0.1", "0.2", "0.3", "0.4", "0.5"}
    assert all(int(answer["size"]) % 8 == 0 for answer in answers)
    # All trials were learned from, also with values on the last step.
    without = [tpe.suggest(question(number, []) | {"parameters": parameters}) for number in range(12, 20)]
    assert answers != without


def test_it_searches_near_the_best_values():
    near = sum(0.0001 <= float(tpe.suggest(question(number, TRIALS))["lr"]) <= 0.01 for number in range(12, 22))
    assert near >= 6  # 4 of 10 by chance


def test_a_trial_outside_of_the_ranges_is_ignored():
    trials = [*TRIALS, ended(12, 50.0)]
    assert tpe.suggest(question(13, trials)) == tpe.suggest(question(13, TRIALS))


def test_the_process_answers_like_the_function():
    found = asyncio.run(process.suggest(SPEC, Suggestion(12, tuple(TRIALS))))
    assert found == tpe.suggest(question(12, TRIALS))


def test_without_optuna_no_process_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sys.executable", str(tmp_path / "missing"))
    with pytest.raises(process.CannotSuggest, match=r"needs the Python package optuna.*build an image with it"):
        asyncio.run(process.suggest(SPEC, Suggestion(12, tuple(TRIALS))))


def test_a_process_that_needs_too_much_memory_ends(monkeypatch):
    """Far below what it needs, in a process of its own: the limit stays."""
    program = "from allranks.suggest import tpe; tpe.MOST_BYTES = 2**20; tpe.main()"
    done = subprocess.run([sys.executable, "-c", program], input=json.dumps(question(12, TRIALS)), text=True,
                          capture_output=True, timeout=120)  # fmt: skip
    assert done.returncode != 0


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo ValueError: no >&2; exit 1", "algorithm TPE failed: ValueError: no"),
        ("exec sleep 60", "no parameters within 0 s"),
    ],
)
def test_a_process_without_an_answer_is_explained(tmp_path, monkeypatch, script, message):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("sys.executable", os.fspath(program))
    with pytest.raises(process.CannotSuggest, match=message):
        asyncio.run(process.suggest(SPEC, Suggestion(12, tuple(TRIALS)), seconds=0.3))
