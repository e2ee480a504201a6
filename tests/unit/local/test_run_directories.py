"""`allranks runs`: stored runs are listed, printed and removed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from allranks.cli.main import cli
from allranks.errors import CannotRun
from allranks.local import run_directories
from allranks.local.run_directories import RunsError, find_run, stored_runs


def stored(root: Path, name: str, phase: str = "Succeeded", year: int = 2026) -> Path:
    directory = root / name
    (directory / "logs").mkdir(parents=True)
    status = {"phase": phase, "startTime": f"{year}-03-04T10:15:00Z"}
    if phase in ("Succeeded", "Failed"):
        status["completionTime"] = f"{year}-03-04T10:15:30Z"
    job = directory.parent.name
    document = {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "DistributedTraining",
        "metadata": {"name": job, "namespace": "default"},
        "spec": {"framework": "pytorch", "image": "me:1", "roles": {"worker": {"replicas": 1}}},
        "status": status,
    }
    (directory / "job.json").write_text(json.dumps(document))
    (directory / "logs" / f"{job}-worker-0-0.log").write_bytes(b"epoch 1\x1b[2J\nepoch 2\n")
    run_directories.link_latest(directory)
    return directory


def runs(*args: str) -> Result:
    return CliRunner().invoke(cli, ["runs", *args])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    return tmp_path / "runs"


def test_the_list_has_every_run_the_newest_first(here):
    stored(here, "a/20260304-101500")
    stored(here, "a/20260304-101600", "Failed")
    stored(here, "b/20260304-101700", "Running")
    lines = runs().stdout.splitlines()
    assert lines[0].split() == ["RUN", "PHASE", "AGE", "DURATION", "SIZE"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["b/20260304-101700", "Interrupted"],
        ["a/20260304-101600", "Failed"],
        ["a/20260304-101500", "Succeeded"],
    ]
    assert runs("-o", "json").stdout == runs("list", "-o", "json").stdout
    done = runs("-o", "json", "rm", "a")
    assert (done.exit_code, "put --output after rm" in done.stderr) == (2, True)
    assert [run["phase"] for run in json.loads(runs("list", "-o", "json").stdout)] == [
        *("Interrupted", "Failed", "Succeeded")
    ]


def test_without_runs_the_list_says_so(here):
    done = runs()
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "There are no runs in runs.\n")


def test_a_job_is_its_newest_run(here):
    stored(here, "a/20260304-101500")
    newest = stored(here, "a/20260304-101600")
    assert find_run("a", here).directory == newest
    assert find_run("a/latest", here).directory == newest
    assert (here / "a" / "latest").readlink() == Path("20260304-101600")
    with pytest.raises(RunsError, match=r"runs/a/7: there is no such run; the newest run of a is a/20260304-101600"):
        find_run("a/7", Path("runs"))
    with pytest.raises(RunsError, match="there are runs of a"):
        find_run("c", here)


def test_logs_are_clean_and_name_the_pod(here):
    stored(here, "a/20260304-101500")
    assert runs("logs", "a").stdout == "worker-0-0 | epoch 1\nworker-0-0 | epoch 2\n"
    done = runs("logs", "a", "--replica", "worker-7")
    assert done.exit_code == 1
    assert "has no log of worker-7; it has logs of: a-worker-0-0" in done.stderr


def test_a_removed_run_takes_its_directory_and_the_link_along(here):
    stored(here, "a/20260304-101500")
    stored(here, "a/20260304-101600")
    assert runs("rm", "a").stdout == "removed a/20260304-101600\n"
    assert (here / "a" / "latest").readlink() == Path("20260304-101500")
    assert runs("rm", "a/20260304-101500").exit_code == 0
    assert list(here.iterdir()) == []


def test_a_running_run_is_neither_interrupted_nor_removed(here):
    directory = stored(here, "a/20260304-101500", "Running")
    with run_directories.in_use(directory):
        assert runs("list").stdout.splitlines()[1].split()[1] == "Running"
        done = runs("rm", "a")
        assert (done.exit_code, "still running" in done.stderr) == (1, True)
        assert runs("prune", "--older-than", "1s").stdout == ""
    assert directory.exists()


def test_an_interrupted_run_is_interrupted_everywhere_and_took_until_its_last_moment(here):
    directory = stored(here, "a/20260304-101500", "Running")
    job = json.loads((directory / "job.json").read_text())
    condition = {"type": "Running", "status": "True", "reason": "AllRanksRunning", "message": "1 of 1 runs"}
    times = {"category": "Productive", "productive": 50.0, "since": "2026-03-04T10:16:20Z"}
    job["status"] |= {"times": times, "conditions": [condition], "attemptTime": "2026-03-04T10:15:00Z"}
    (directory / "job.json").write_text(json.dumps(job))
    assert runs("list").stdout.splitlines()[1].split()[1:4:2] == ["Interrupted", "80.0s"]
    report = runs("report", "a").stdout
    assert report.startswith("a was interrupted after 80.0s: all its processes have ended\n\n")
    assert "Ended       2026-03-04 10:16:20 UTC, after 80.0s" in report
    assert "Running" not in report
    assert "Restarts and failures" not in report
    for command in ("get", "describe"):
        note = CliRunner().invoke(cli, [command, "a"]).stderr.splitlines()[-1]
        assert note.startswith("note: a ran on this machine (runs/a/20260304-101500, Interrupted): ")


def test_prune_removes_old_runs_only(here):
    stored(here, "a/20260304-101500", year=2020)
    stored(here, "b/29990304-101500", year=2999)
    assert runs("prune", "--older-than", "7d", "--dry-run").stdout == "would remove a/20260304-101500\n"
    assert runs("prune", "--older-than", "7d").stdout == "removed a/20260304-101500\n"
    assert [run.job for run in stored_runs(here)] == ["b"]


def test_a_run_that_ends_before_it_has_started_leaves_what_was_there(tmp_path):
    def refused(directory: Path) -> None:
        with run_directories.prepared(directory, lambda: False):
            (directory / "logs" / "a.log").touch()
            (directory / "code").mkdir()
            (directory / "link").symlink_to(tmp_path)

    refused(tmp_path / "new" / "run")
    assert list((tmp_path / "new").iterdir()) == []
    earlier = stored(tmp_path, "a/20260304-101500")
    before = sorted(earlier.iterdir())
    refused(earlier)
    (tmp_path / "file").touch()
    with pytest.raises(CannotRun, match="file/run cannot be created: not a directory"):
        refused(tmp_path / "file" / "run")
    assert sorted(earlier.iterdir()) == before
    with run_directories.prepared(tmp_path / "started", lambda: True):
        pass
    assert (tmp_path / "started" / "logs").is_dir()


def test_report_of_a_job_finds_its_newest_local_run_without_a_cluster(here):
    stored(here, "a/20260304-101500")
    stored(here, "a/20260304-101600", "Failed")
    done = CliRunner().invoke(cli, ["report", "a"])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("a Failed")
    assert "20260304-101600" in done.stderr
    by_job = CliRunner().invoke(cli, ["report", "--run-dir", os.path.relpath(here / "a")])
    assert by_job.stdout == done.stdout
    missing = CliRunner().invoke(cli, ["report", "nothing"])
    assert missing.exit_code == 1
    assert "no-kubeconfig" in missing.stderr


def test_run_directories_are_private_whatever_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold values of variables, logs, and pickles that are loaded."""
    monkeypatch.chdir(tmp_path)
    reserved: list[Path] = []
    before = os.umask(0)
    try:
        own = run_directories.reserve_directory("hello", reserved)
        with run_directories.prepared(tmp_path / "chosen", lambda: True):
            pass
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (own, tmp_path / "chosen")] == [0o700, 0o700]
