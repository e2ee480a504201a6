"""The example of a sweep on a node: twelve trials, of which most are stopped early."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from .cluster import REPOSITORY
from .command_line import output
from .jobs import Team, claim_of, of_tests
from .nodes import until

pytestmark = pytest.mark.nightly


def test_a_sweep_finds_parameters_that_learn_and_stops_bad_trials_early(team: Team) -> None:
    sweep = yaml.safe_load(of_tests((REPOSITORY / "examples" / "penguins-sweep.yaml").read_text()))
    # Slower steps: each check takes longer than the five seconds between reports.
    args = sweep["spec"]["template"]["spec"]["args"]
    args[args.index("--work=0.02")] = "--work=0.05"
    sweep["spec"]["template"]["spec"]["checkpoint"] = {"claim": "trials"}
    team.kubectl("apply", "-f", "-", input=json.dumps(claim_of("trials")))
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
    # A stopped trial continues from its checkpoint as a job of its own.
    stopped = next(trial for trial in status["trials"] if trial["phase"] == "Stopped")
    promoted = yaml.safe_load(output(team, "promote", "penguins-sweep", str(stopped["number"])))
    assert promoted["spec"]["resumeFrom"] == stopped["job"]
    args = promoted["spec"]["args"]
    args[args.index("--work=0.05")] = "--work=0"
    job = team.start([promoted])
    team.completes(job)
    assert re.search(r"resumed from epoch [1-9]", team.kubectl("logs", f"{job}-worker-0-0"))
    team.kubectl("delete", "tsw", "penguins-sweep", "--cascade=foreground", timeout=300)
    assert team.kubectl("get", "dt", "-o", "name").split() == [f"distributedtraining.allranks.dev/{job}"]
