"""The example of a sweep on a node: twelve trials, of which most are stopped early."""

from __future__ import annotations

import json

import pytest
import yaml

from .cluster import REPOSITORY
from .jobs import Team, of_tests
from .nodes import until

pytestmark = pytest.mark.nightly


def test_a_sweep_finds_parameters_that_learn_and_stops_bad_trials_early(team: Team) -> None:
    sweep = yaml.safe_load(of_tests((REPOSITORY / "examples" / "penguins-sweep.yaml").read_text()))
    # Slower steps: each check takes longer than the five seconds between reports.
    args = sweep["spec"]["template"]["spec"]["args"]
    args[args.index("--work=0.02")] = "--work=0.05"
    team.kubectl("apply", "-f", "-", input=json.dumps(sweep))
    team.wait("tsw/penguins-sweep", "--for=jsonpath={.status.completionTime}")
    status = team.get("tsw", "penguins-sweep")["status"]
    print(json.dumps(status, indent=1))
    assert status["phase"] == "Succeeded", json.dumps(status, indent=1)
    states = [trial["phase"] for trial in status["trials"]]
    assert len(states) == 12
    assert states.count("Stopped") >= 4, states
    assert set(states) == {"Succeeded", "Stopped"}
    assert status["best"]["value"] >= 0.97, status["best"]
    assert team.get("dt", status["best"]["job"])["status"]["phase"] == "Succeeded"
    running = ("get", "pods", "--field-selector=status.phase=Running", "-o", "name")
    until(lambda: not team.kubectl(*running), "the end of the pods of stopped trials")
    team.kubectl("delete", "tsw", "penguins-sweep", "--cascade=foreground", timeout=120)
    assert team.kubectl("get", "dt", "-o", "name") == ""
