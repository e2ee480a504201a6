"""`allranks logs` of pods on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from allranks.cli.main import cli
from allranks.kube.pod_logs import LONGEST_PRINTED_LINE
from support.job_api import JobApi
from support.ui_samples import a_job, pods_of

STAMP = b"2026-03-04T10:00:00.000000000Z "


@pytest.fixture
def api(tmp_path: Path) -> Iterator[JobApi]:
    job = a_job("penguins", "Succeeded", 1)
    with JobApi(tmp_path, job) as api:
        api.pods = pods_of(job)
        yield api


@pytest.mark.parametrize("options", [(), ("--follow",), ("--output", "json")])
def test_a_line_without_end_is_cut(api: JobApi, options: tuple[str, ...]):
    api.logs = {"penguins-worker-0-0": [STAMP, *[b"x" * 2**20] * 50]}
    result = CliRunner().invoke(cli, ["logs", "penguins", *options, "--kubeconfig", str(api.kubeconfig)])
    assert result.exit_code == 0, result.output
    [line] = result.stdout.splitlines()
    assert LONGEST_PRINTED_LINE < len(line) < LONGEST_PRINTED_LINE + 300
    assert "left out)" in line
