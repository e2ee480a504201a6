"""The pages and the REST interface of sweeps."""

from __future__ import annotations

import json
from pathlib import Path

from support.ui_server import UiServer
from unit.cli.test_sweep_report import finished


def store(tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "search" / "20260304-100000"
    directory.mkdir(parents=True)
    (directory / "sweep.json").write_text(json.dumps(finished()))


def test_a_sweep_of_this_machine_is_listed_and_shown(server: UiServer, tmp_path: Path):
    store(tmp_path)
    listed = server.get("/sweeps")
    assert listed.status == 200
    assert "/sweeps/runs/search/20260304-100000" in listed.text
    page = server.get("/sweeps/runs/search/20260304-100000")
    assert page.status == 200
    assert page.text.count("<polyline") == 12
    assert "Importance" in page.text
    assert server.get("/api/v1/sweeps/runs/search/20260304-100000/report.html").status == 200
    assert server.get("/sweeps/runs/search/none").status == 404


def test_the_rest_interface_has_the_importances(server: UiServer, tmp_path: Path):
    store(tmp_path)
    found = json.loads(server.get("/api/v1/sweeps/runs/search/20260304-100000").text)
    assert found["status"]["phase"] == "Succeeded"
    assert set(found["importances"]) == set(found["spec"]["parameters"])


def test_a_cluster_without_sweeps_says_so(server: UiServer):
    assert server.get("/sweeps").status == 200
    assert server.get("/api/v1/sweeps/jobs/team/search").status == 404
