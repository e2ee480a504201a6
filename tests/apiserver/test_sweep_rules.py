"""The CRD of sweeps on a real API server: it accepts what `allranks validate` accepts, and refuses with the field."""

from __future__ import annotations

from typing import Any

import pytest

from support.api import ApiError, path
from support.builders import table
from support.controlplane import ControlPlane
from unit.api.test_sweep import sweep
from unit.core.test_sweep_plan import NUMBERS


def dry_run(control_plane: ControlPlane, namespace: str, document: dict[str, Any]) -> None:
    document["metadata"].pop("namespace", None)
    control_plane.api.request("POST", f"{path('TrainingSweep', namespace)}?dryRun=All&fieldValidation=Strict", document)


@table(
    ("the usual sweep", {}),
    ("values of every type", {"parameters": {"a": {"values": [1, 0.5, True, "x"]}}}),
    ("distributions", {"parameters": NUMBERS}),
    ("no objective", {"objective": None}),
    ("a grid without trials", {"algorithm": "Grid", "trials": None, "parameters": {"a": {"values": [1, 2]}}}),
)
def test_a_valid_sweep_is_accepted(case, control_plane, namespace):
    dry_run(control_plane, namespace, sweep(**case[0]))


@table(
    ("no trials", {"trials": None}, "spec.trials"),
    ("TPE without an objective", {"objective": None, "algorithm": "TPE"}, "spec.objective"),
    ("early stopping without an objective", {"objective": None, "stop": {"rule": "ASHA"}}, "spec.objective"),
    ("bounds in the wrong order", {"parameters": {"lr": {"int": {"min": 3, "max": 2}}}}, "max: "),
    (
        "a mistake in the job",
        {"template": {"spec": {"framework": "torch", "roles": {}}}},
        "spec.template.spec.framework",
    ),
    ("an unknown field of the job", {"template": {"spec": {"replicas": 3}}}, "spec.template.spec.replicas"),
)
def test_an_invalid_sweep_is_refused_with_its_field(case, control_plane, namespace):
    spec, field = case
    with pytest.raises(ApiError) as refused:
        dry_run(control_plane, namespace, sweep(**spec))
    assert field in refused.value.message


def test_what_makes_trials_comparable_cannot_be_changed_and_their_number_can(control_plane, namespace):
    api = control_plane.api
    stored = api.create(sweep() | {"metadata": {"name": "search"}}, namespace)
    name = stored["metadata"]["name"]
    api.patch("TrainingSweep", namespace, name, {"spec": {"trials": 30, "parallel": 5}})
    for change in (
        {"seed": 7},
        {"objective": {"metric": "accuracy"}},
        {"objective": None},
        {"parameters": {"lr": {"logUniform": {"max": 1.0}}}},
        {"template": {"spec": {"image": "other:1"}}},
    ):
        with pytest.raises(ApiError, match="cannot be changed in an existing sweep"):
            api.patch("TrainingSweep", namespace, name, {"spec": change})
