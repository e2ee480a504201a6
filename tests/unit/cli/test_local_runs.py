"""Commands for jobs on clusters, if the job ran on this machine: what they print, without a cluster and with one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from allranks.cli.main import cli
from support import reported
from support.builders import manifest
from support.job_api import JobApi

RUN = "runs/penguins/20260304-100000"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory with a run of penguins, and no kubeconfig."""
    monkeypatch.chdir(tmp_path)
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    directory = tmp_path / RUN
    (directory / "logs").mkdir(parents=True)
    (directory / "job.json").write_text(json.dumps({"metadata": {"name": "penguins"}, "status": {"phase": "Failed"}}))
    (directory / "logs" / "penguins-worker-0-0.log").write_text("hello\n")
    (directory.parent / "latest").symlink_to(directory.name)
    return tmp_path


@pytest.fixture
def api(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobApi]:
    """A cluster in the kubeconfig, with the job whales."""
    whales = reported.job("whales", reported.finished()["status"])
    with JobApi(folder, whales) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        yield api


def allranks(*words: str) -> Result:
    return CliRunner().invoke(cli, words, catch_exceptions=False)


NOTES = {
    "logs": "`allranks runs logs penguins` prints its logs",
    "get": "`allranks runs` lists it",
    "describe": "`allranks runs report penguins` prints its report",
    "top": "`allranks runs report penguins` prints its report",
    "stacks": "`allranks runs stacks penguins` prints its stacks while it runs",
}


def notes(result: Result) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("note:")]


def test_logs_are_those_of_the_newest_run_without_a_cluster():
    result = allranks("logs", "penguins")
    assert (result.exit_code, result.stdout) == (0, "worker-0-0 | hello\n")
    assert result.stderr == f"The newest local run of penguins is printed ({RUN}).\n"


@pytest.mark.usefixtures("api")
def test_logs_are_those_of_the_newest_run_if_the_cluster_does_not_have_the_job():
    assert allranks("logs", "penguins").stdout == "worker-0-0 | hello\n"


def test_a_run_without_logs_is_an_error(folder: Path):
    (folder / RUN / "logs" / "penguins-worker-0-0.log").unlink()
    result = allranks("logs", "penguins")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "penguins/20260304-100000 has no log of any pod" in result.stderr


@pytest.mark.parametrize("option", [["-f"], ["--role", "worker"], ["-n", "team"], ["--kubeconfig", "missing"]])
def test_logs_with_an_option_for_clusters_name_the_command_for_runs(option: list[str]):
    result = allranks("logs", "penguins", *option)
    assert (result.exit_code, result.stdout) == (1, "")
    assert notes(result) == [f"note: penguins ran on this machine ({RUN}, Failed): {NOTES['logs']}"]


@pytest.mark.parametrize("command", ["get", "describe", "top", "stacks"])
def test_without_a_cluster_the_command_for_the_run_is_named(command: str):
    result = allranks(command, "penguins")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: no cluster is configured")
    assert notes(result) == [f"note: penguins ran on this machine ({RUN}, Failed): {NOTES[command]}"]


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize("command", ["get", "describe", "top", "stacks"])
def test_if_the_cluster_does_not_have_the_job_the_command_for_the_run_is_named(command: str):
    result = allranks(command, "penguins")
    assert result.exit_code == 1
    assert "error: there is no job penguins in namespace team" in result.stderr
    assert notes(result) == [f"note: penguins ran on this machine ({RUN}, Failed): {NOTES[command]}"]


@pytest.mark.parametrize("command", ["get", "describe", "top"])
def test_for_a_sweep_of_this_machine_the_command_is_named_as_for_a_run(folder: Path, command: str):
    directory = folder / "runs" / "search" / "20260304-100000"
    directory.mkdir(parents=True)
    (directory / "sweep.json").write_text('{"status": {"phase": "Succeeded"}}')
    result = allranks(command, "search")
    text = NOTES[command].replace("penguins", "search")
    assert (result.exit_code, notes(result)) == (
        1,
        [f"note: search ran on this machine (runs/search/20260304-100000, Succeeded): {text}"],
    )


@pytest.mark.parametrize("command", ["logs", "get", "describe", "top", "report"])
def test_without_a_run_of_that_name_the_error_says_where_runs_are(command: str):
    result = allranks(command, "seals")
    assert result.exit_code == 1
    assert "`allranks runs` has its logs and reports" in result.stderr
    assert not notes(result)


def with_two_ranks(folder: Path) -> None:
    """The run as one of a job with two ranks and two attempts."""
    document = {**manifest(roles={"worker": 2}, name="penguins"), "status": {"phase": "Failed", "attempt": 1}}
    (folder / RUN / "job.json").write_text(json.dumps(document))
    for index, attempt in ((0, 1), (1, 0), (1, 1)):
        log = folder / RUN / "logs" / f"penguins-worker-{index}-{attempt}.log"
        log.write_text("".join(f"line {number} of {index}-{attempt}\n" for number in range(3)))


LAST_LINES = "worker-1-0 | line 2 of 1-0\nworker-1-1 | line 2 of 1-1\n"


@pytest.mark.parametrize("command", [["runs", "logs"], ["logs"]], ids=" ".join)
def test_the_last_lines_of_one_rank_of_a_run_are_printed(folder: Path, command: list[str]):
    with_two_ranks(folder)
    result = allranks(*command, "penguins", "--rank", "1", "--tail", "1")
    assert (result.exit_code, result.stdout) == (0, LAST_LINES)


def test_a_rank_that_a_run_does_not_have_is_an_error_with_its_ranks(folder: Path):
    with_two_ranks(folder)
    result = allranks("runs", "logs", "penguins", "--rank", "2")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "penguins has no rank 2: its ranks are 0 to 1" in result.stderr


def test_ranks_of_a_run_without_a_valid_job_are_an_error():
    result = allranks("runs", "logs", "penguins", "--rank", "0")
    assert result.exit_code == 1
    assert "holds no valid job, so its ranks cannot be determined: use --replica" in result.stderr


@pytest.mark.parametrize("command", ["logs", "get", "describe", "top"])
def test_a_misspelt_name_suggests_the_run_that_was_meant(command: str):
    result = allranks(command, "pengins")
    assert result.exit_code == 1
    assert notes(result) == [f"note: penguins ran on this machine, did you mean it? {NOTES[command]}"]


@pytest.mark.parametrize("words", [["report"], ["runs", "report"], ["runs", "logs"], ["runs", "rm"]], ids=" ".join)
def test_commands_for_runs_suggest_the_run_that_was_meant(words: list[str]):
    result = allranks(*words, "pengins")
    assert result.exit_code == 1
    assert "error: runs/pengins: there is no such run; did you mean penguins?" in result.stderr


@pytest.mark.parametrize("command", ["get", "top"])
def test_without_a_name_there_is_no_note(command: str):
    assert not notes(allranks(command))


def test_a_job_of_the_cluster_is_never_mistaken_for_a_run(folder: Path, api: JobApi):
    """Its pods are deleted, and a run of the same name exists."""
    (folder / "runs" / "penguins").rename(folder / "runs" / "whales")
    result = allranks("logs", "whales")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the selected pods are deleted" in result.stderr
    assert not notes(result)
    api.forbidden.add("distributedtrainings")
    result = allranks("describe", "whales")
    assert result.exit_code == 1
    assert not notes(result)


STORED = {
    "checkpoints": [
        {"step": 4, "time": "2026-03-04T10:00:00Z", "path": "/c/step-4", "complete": True, "verified": True},
        {"step": 8, "time": "2026-03-04T10:01:00Z", "path": "/c/step-8", "complete": False},
        {"step": 12, "time": "2026-03-04T10:02:00Z"},
    ],
    "rollback": {"step": 4, "unreadableStep": 8, "attempt": 1},
}


def test_checkpoints_are_those_of_the_newest_run_without_a_cluster(folder: Path):
    file = folder / RUN / "job.json"
    file.write_text(
        json.dumps({"metadata": {"name": "penguins"}, "status": {"phase": "Running", "attempt": 2, **STORED}})
    )
    result = allranks("checkpoints", "penguins")
    assert result.exit_code == 0
    headers, *rows, last = result.stdout.splitlines()
    assert headers.split() == ["STEP", "AGE", "COMPLETE", "VERIFIED", "RESUME", "PATH"]
    assert [[row.split()[0], *row.split()[2:]] for row in rows] == [
        ["4", "yes", "yes", "yes", "/c/step-4"],
        ["8", "no", "/c/step-8"],
        ["12"],
    ]
    assert last == "Attempt 2 resumes from step 4: attempt 1 could not read the one of step 8."
    assert json.loads(allranks("checkpoints", "penguins", "-o", "json").stdout) == STORED


@pytest.mark.usefixtures("api")
def test_checkpoints_of_a_job_on_a_cluster():
    result = allranks("checkpoints", "whales")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No rank of whales has reported a checkpoint.\n"


def test_checkpoints_of_a_job_that_is_nowhere():
    assert allranks("checkpoints", "dolphins").exit_code == 1
