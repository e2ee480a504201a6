"""`allranks top` and `allranks report` on a job of a real API server."""

from __future__ import annotations

import json

from support.commands import stamp


def test_top_and_report_show_the_status(allranks, job, namespace):
    now = stamp()
    curve = [{"time": now, "attempt": 0, "step": step, "value": 1 / (step + 1)} for step in range(64)]
    ranks = [{"rank": n, "replica": f"worker-{n}", "step": 63 - n, "lag": n, "busySeconds": 0.25} for n in range(3)]
    progress = {"step": 63, "totalSteps": 126, "summary": "63/126 50%", "eta": "1m", "curveMetric": "loss"}
    job.status(
        phase="Running",
        ready="3/3",
        attemptTime=now,
        progress=progress | {"curve": curve, "ranks": ranks, "reporting": 64, "metrics": {"loss": 0.0156}},
        times={"productive": 80, "lost": 20, "category": "Productive", "since": now, "byReason": {"NodeLost": 20}}
        | {"measured": True},
    )
    table = allranks("top")
    assert (table.exit_code, table.stderr) == (0, "")
    assert "penguins  pytorch    Running  ####---- 63/126 50%" in table.stdout.replace("█", "#").replace("░", "-")
    one = allranks("top", "penguins", "--once").stdout
    assert one.startswith(f"penguins  {namespace}  pytorch  Running  3/3 pods running")
    assert "3 of 64 ranks: those that lag most, then the slowest" in one
    assert "250 ms" in one
    assert "lost by NodeLost 20s" in one
    data = json.loads(allranks("top", "-o", "json").stdout)
    assert [found["progress"]["summary"] for found in data["jobs"]] == ["63/126 50%"]
    report = allranks("report", "penguins")
    assert (report.exit_code, report.stderr) == (0, "")
    assert report.stdout.startswith("penguins is Running: attempt 0, 3/3 pods running\n")
    assert allranks("report", "penguins", "-o", "html").stdout.startswith("<!DOCTYPE html>")


def test_a_missing_job_is_an_error(allranks, job, namespace):
    for command in ("top", "report"):
        error = f"error: there is no job penguin in namespace {namespace}, did you mean penguins?\n"
        assert allranks(command, "penguin") == (1, "", error), command


def test_top_without_a_terminal_prints_once(allranks, namespace):
    assert allranks("top") == (0, f"No jobs in namespace {namespace}.\n", "")
