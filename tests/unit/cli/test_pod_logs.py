"""`allranks logs` of pods on a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from allranks.cli.main import cli
from allranks.core.facts.processes import BEGINS
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


def _in_one_pod(tmp_path: Path) -> JobApi:
    """Return a job whose attempt 2 runs in the pods of attempt 0."""
    job = a_job("penguins", "Running", 1)
    job["status"] |= {"attempt": 2, "podsOfAttempt": 0}
    api = JobApi(tmp_path, job)
    api.pods = pods_of(job)
    for pod in api.pods:
        pod["metadata"]["labels"]["allranks.dev/attempt"] = "0"
    lines = ["first", BEGINS.format(1), "second", BEGINS.format(2), "third"]
    api.logs = {"penguins-worker-0-0": [STAMP + line.encode() + b"\n" for line in lines]}
    return api


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ((), ["third"]),
        (("--attempt", "0"), ["first"]),
        (("--attempt", "1"), ["second"]),
        (("--all-attempts",), ["first", "second", "third"]),
    ],
)
def test_logs_of_attempts_that_ran_in_the_same_pod(tmp_path: Path, options: tuple[str, ...], printed: list[str]):
    with _in_one_pod(tmp_path) as api:
        arguments = ["logs", "penguins", *options, "--output", "json", "--kubeconfig", str(api.kubeconfig)]
        result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    texts = [line for line in lines if not line["line"].startswith("allranks: ")]
    assert [line["line"] for line in texts] == printed
    assert [line["attempt"] for line in texts] == [["first", "second", "third"].index(text) for text in printed]
