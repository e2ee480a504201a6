"""Workflows of GitHub Actions: least permissions, pinned actions, and steps that a person can run as well."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import parts  # noqa: E402

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MORE_RIGHTS = {
    ("docs.yml", "pages"): {"contents": "write"},
    ("release.yml", "publish"): {"contents": "write", "packages": "write", "id-token": "write"},
}
"""Jobs that write something; no other has more than the right to read the repository."""


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.name)
def workflow(request: pytest.FixtureRequest) -> tuple[Path, dict[str, Any]]:
    return request.param, yaml.safe_load(request.param.read_text())


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job["steps"]


def test_there_is_one_for_each_change_each_night_each_release_and_the_documentation():
    assert {path.stem for path in WORKFLOWS} == {"ci", "nightly", "release", "docs"}


def test_a_job_has_only_the_rights_that_it_needs(workflow):
    path, content = workflow
    assert content["permissions"] == {"contents": "read"}
    rights = {(path.name, name): job["permissions"] for name, job in content["jobs"].items() if "permissions" in job}
    assert rights == {job: needed for job, needed in MORE_RIGHTS.items() if job[0] == path.name}


def test_an_action_is_of_its_maintainers_and_named_by_its_commit_and_version(workflow):
    for line in re.findall(r"^\s*-? ?uses: (.*)$", workflow[0].read_text(), re.MULTILINE):
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)


def test_a_step_runs_one_script_that_a_person_can_run(workflow):
    for step in steps(workflow[1]):
        if "run" in step:
            script = ROOT / step["run"].split()[0]
            assert not {"\n", "${{"} & {*re.findall(r"\n|\${{", step["run"])}
            assert script.parent == ROOT / "tools" / "workflows"
            assert os.access(script, os.X_OK)


def test_every_script_of_workflows_is_used():
    used = {
        step["run"].split()[0]
        for path in WORKFLOWS
        for step in steps(yaml.safe_load(path.read_text()))
        if "run" in step
    }
    assert used == {str(path.relative_to(ROOT)) for path in (ROOT / "tools" / "workflows").iterdir()}


def test_no_workflow_has_a_stored_secret(workflow):
    assert "secrets." not in workflow[0].read_text()


def test_every_part_of_the_night_has_a_machine():
    [job] = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"].values()
    assert job["strategy"]["matrix"]["part"] == [part.name for part in parts.NIGHT]
    assert job["timeout-minutes"] >= 4 * max(part.minutes for part in parts.NIGHT)
