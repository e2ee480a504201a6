"""`allranks wait`: output and exit status."""

from __future__ import annotations

import re

import pytest

from support.commands import condition, failure, stamp


def without_times(lines: list[str]) -> list[str]:
    """The lines without durations."""
    return [re.sub(r"^ *[\d.]+s ", "", re.sub(r"(in|after) [\d.:]+s?(?= \(|:)", r"\1 N", line)) for line in lines]


def test_phases_are_printed_until_the_job_succeeds(allranks, job):
    job.status(phase="Pending", ready="0/3")
    with allranks.start("wait", "penguins") as waiting:
        waiting.until("Pending, 0/3 pods running")
        job.status(phase="Running", ready="3/3")
        waiting.until("Running, 3/3 pods running")
        job.status(phase="Restarting", ready="0/3", attempt=1, lastFailure=failure())
        waiting.until("Restarting")
        roles = {"worker": {"desired": 2}, "master": {"desired": 1}}
        job.status(phase="Succeeded", attempt=1, restarts={"counted": 1}, roles=roles, completionTime=stamp())
        assert waiting.end() == 0
    assert without_times(waiting.lines) == [
        "Pending, 0/3 pods running",
        "Running, 3/3 pods running",
        "worker-1 in attempt 0: exit code 1: ValueError: negative learning rate",
        "Restarting: attempt 1, 0/3 pods running",
        "Succeeded",
        "penguins Succeeded in N (3 pods, 1 restart)",
    ]


def test_a_failed_job_prints_its_failure_with_status_1(allranks, job):
    failed = condition("Failed", "True", "SameFailureTwice", "worker-1 failed the same way twice")
    job.status(phase="Failed", conditions=[failed], lastFailure=failure(), completionTime=stamp())
    result = allranks("wait", "penguins")
    assert result.exit_code == 1
    assert without_times(result.stdout.splitlines()) == [
        "Failed",
        "penguins Failed after N: SameFailureTwice (0 pods, no restarts)",
        "worker-1 failed the same way twice",
        "First failure: worker-1 (rank 2) in attempt 0, after N: exit code 1",
        "  | Traceback (most recent call last):",
        "  | ValueError: negative learning rate",
        "For details: allranks describe penguins; allranks logs penguins",
    ]
    assert allranks("wait", "penguins", "--for", "finished").exit_code == 0
    assert allranks("wait", "penguins", "--for", "running").exit_code == 1


def test_wait_for_running(allranks, job):
    job.status(ready="3/3")
    result = allranks("wait", "penguins", "--for", "running", "--quiet")
    assert (result.exit_code, result.stdout) == (0, "penguins is Running: 3/3 pods running\n")


def test_a_timeout_has_status_124(allranks, job):
    job.status()
    result = allranks("wait", "penguins", "--timeout", "1s", "--quiet")
    assert result == (124, "", "timed out: penguins is still Running\n")


def test_a_deleted_job_has_status_1(allranks, job, control_plane):
    job.status()
    with allranks.start("wait", "penguins") as waiting:
        waiting.until("Running")
        control_plane.api.delete("DistributedTraining", job.namespace, "penguins")
        assert waiting.end() == 1
    assert waiting.lines[-1] == "penguins was deleted"


def test_ctrl_c_stops_waiting_but_not_the_job(allranks, job, control_plane):
    job.status()
    with allranks.start("wait", "penguins") as waiting:
        waiting.until("Running")
        waiting.interrupt()
        assert waiting.end() == 130
    assert waiting.lines[-1].startswith("penguins continues: ")
    assert control_plane.api.find("DistributedTraining", job.namespace, "penguins")


@pytest.mark.nightly
def test_wait_survives_a_restart_of_the_api_server(allranks, job, control_plane):
    job.status(ready="3/3")
    with allranks.start("wait", "penguins") as waiting:
        waiting.until("Running, 3/3 pods running")
        control_plane.stop_api_server()
        waiting.until("trying again")
        control_plane.start_api_server()
        job.status(phase="Succeeded", completionTime=stamp())
        assert waiting.end() == 0
    assert "Succeeded" in waiting.lines[-1]


@pytest.mark.parametrize("timeout", ["soon", "-1", "5x", ""])
def test_an_invalid_duration_has_status_2(allranks, timeout):
    result = allranks("wait", "penguins", f"--timeout={timeout}")
    assert result.exit_code == 2
    assert "is not a duration: use for example 90s, 5m or 1h30m" in " ".join(result.stderr.split())
