"""`allranks logs` through the `pods/log` endpoint of a real API server, with a simulated kubelet."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from support.commands import JobOnCluster, failure
from support.live import eventually

NOW = datetime.now(UTC)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds - 3600)


def test_lines_of_all_ranks_are_merged_by_time_with_their_rank_in_front(allranks, job, kubelet, namespace):
    master, first, second = job.pods(kubelet.node)
    job.status(ready="3/3")
    job.run(master, first, second)
    kubelet.write(namespace, second, "three", at=at(3))
    kubelet.write(namespace, master, "one", at=at(1))
    kubelet.write(namespace, master, "four", at=at(4))
    kubelet.write(namespace, first, "two", at=at(2))
    result = allranks("logs", "penguins")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "master-0 | one",
        "worker-0 | two",
        "worker-1 | three",
        "master-0 | four",
    ]


def test_ranks_roles_and_indices_are_selected(allranks, job, kubelet, namespace):
    for pod in job.pods(kubelet.node):
        job.run(pod)
        kubelet.write(namespace, pod, pod, at=at(1))
    assert allranks("logs", "penguins", "--rank", "2").stdout == "worker-1 | penguins-worker-1-0\n"
    assert allranks("logs", "penguins", "--role", "master").stdout == "master-0 | penguins-master-0-0\n"
    assert allranks("logs", "penguins", "--index", "1").stdout == "worker-1 | penguins-worker-1-0\n"
    assert allranks("logs", "penguins", "--role", "worker", "--no-prefix").stdout.split() == [
        "penguins-worker-0-0",
        "penguins-worker-1-0",
    ]


def test_an_unknown_rank_or_role_has_status_2(allranks, job):
    wrong = allranks("logs", "penguins", "--rank", "3")
    assert wrong.exit_code == 2
    assert "penguins has no rank 3: its ranks are 0 to 2 (one for each pod)." in wrong.stderr
    wrong = allranks("logs", "penguins", "--role", "ps")
    assert wrong.exit_code == 2
    assert "penguins has no role ps: its roles are master and worker." in wrong.stderr


def test_tail_since_and_timestamps(allranks, job, kubelet, namespace):
    pod = job.pods(kubelet.node)[0]
    job.run(pod)
    kubelet.write(namespace, pod, "old", at=at(1))
    kubelet.write(namespace, pod, "a", "b", "c")
    assert allranks("logs", "penguins", "--tail", "2").stdout == "master-0 | b\nmaster-0 | c\n"
    assert allranks("logs", "penguins", "--since", "10m", "--tail", "10").stdout.split()[2::3] == ["a", "b", "c"]
    output = allranks("logs", "penguins", "--timestamps", "--tail", "1").stdout
    assert re.fullmatch(r"master-0 \| \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z c\n", output)


def test_control_characters_are_removed_and_long_lines_are_printed_whole(allranks, job, kubelet, namespace):
    pod = job.pods(kubelet.node)[0]
    job.run(pod)
    kubelet.write(namespace, pod, "\x1b]0;title\x07\x1b[31mred\x1b[2J", "10%\r50%\r100%", "x" * 300_000)
    red, bar, long = allranks("logs", "penguins").stdout.splitlines()
    assert (red, bar, long) == ("master-0 | red", "master-0 | 100%", f"master-0 | {'x' * 300_000}")


def test_ranks_without_a_log_are_reported_on_stderr(allranks, job, kubelet, namespace):
    master, worker, _ = job.pods(kubelet.node)
    job.run(master)
    job.waits(worker, "ImagePullBackOff", "no such image")
    kubelet.write(namespace, master, "here")
    result = allranks("logs", "penguins")
    assert (result.exit_code, result.stdout) == (0, "master-0 | here\n")
    assert "worker-0 has no log: ImagePullBackOff" in result.stderr


def test_a_job_without_pods_has_status_1(allranks, job):
    result = allranks("logs", "penguins")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: penguins is Pending and the selected pods do not exist yet: -f waits for them\n"


def test_an_attempt_whose_pods_are_deleted_is_an_error(allranks, job, kubelet):
    job.status(attempt=2)
    job.pods(kubelet.node, attempt=2)
    result = allranks("logs", "penguins", "--attempt", "0")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: the pods of attempt 0 are deleted, and their logs with them")


def test_only_the_current_attempt_is_read_by_default(allranks, job, kubelet, namespace):
    job.status(attempt=1)
    for attempt in (0, 1):
        pod = job.pods(kubelet.node, attempt=attempt)[0]
        job.run(pod)
        kubelet.write(namespace, pod, f"of attempt {attempt}")
    assert allranks("logs", "penguins").stdout == "master-0 | of attempt 1\n"
    assert allranks("logs", "penguins", "--attempt", "0").stdout == "master-0 | of attempt 0\n"


def test_all_attempts_are_read_and_deleted_ones_are_reported(allranks, job, kubelet, namespace):
    job.status(attempt=3)
    for attempt in (1, 3):
        pod = job.pods(kubelet.node, attempt=attempt)[0]
        job.run(pod)
        kubelet.write(namespace, pod, f"of attempt {attempt}", at=at(attempt))
    result = allranks("logs", "penguins", "--all-attempts", "--rank", "0")
    assert (result.exit_code, result.stdout) == (
        0,
        "master-0 attempt 1 | of attempt 1\nmaster-0 attempt 3 | of attempt 3\n",
    )
    assert result.stderr == (
        "2 earlier attempts: no logs, because a restart deletes the pods: allranks describe penguins prints the last "
        "lines of the rank that failed\n"
    )
    both = allranks("logs", "penguins", "--all-attempts", "--attempt", "1")
    assert (both.exit_code, "specify either --attempt or --all-attempts" in both.stderr) == (2, True)


def test_lines_as_json(allranks, job, kubelet, namespace):
    job.status(attempt=1)
    (old, *_), (master, worker, other) = job.pods(kubelet.node), job.pods(kubelet.node, attempt=1)
    job.run(old, master, worker, other)
    kubelet.write(namespace, old, "old", at=at(1))
    kubelet.write(namespace, worker, "loss \x1b[31m1\u202e", at=at(2))
    kubelet.write(namespace, other, "not selected", at=at(3))
    result = allranks("logs", "penguins", "--all-attempts", "-o", "json", "--index", "0")
    found = [json.loads(line) for line in result.stdout.splitlines()]
    expected = [
        {"role": "master", "index": 0, "rank": None, "attempt": 0, "line": "old"},
        {"role": "worker", "index": 0, "rank": 1, "attempt": 1, "line": "loss \x1b[31m1\u202e"},
    ]
    times = [datetime.fromisoformat(line.pop("time")) for line in found]
    assert found == expected
    assert times == [at(1), at(2)]
    several = allranks("logs", "penguins", "--index", "0", "--index", "1", "--role", "worker")
    assert [line.split()[0] for line in several.stdout.splitlines()] == ["worker-0", "worker-1"]


def test_follow_waits_for_ranks_survives_a_restart_and_ends_with_the_job(allranks, job, kubelet, namespace):
    master, *workers = job.pods(kubelet.node)
    job.status(phase="Pending", ready="0/3")
    with allranks.start("logs", "penguins", "-f") as logs:
        logs.until("penguins is Pending, 0/3 pods running: waiting for the ranks")
        kubelet.write(namespace, master, "epoch 1")
        job.run(master, *workers)
        logs.until("master-0 | epoch 1")
        kubelet.write(namespace, workers[1], "ValueError")
        kubelet.end(namespace, workers[1])
        logs.until("worker-1 | ValueError")
        job.end(workers[1], 1)
        job.status(phase="Restarting", attempt=1, lastFailure=failure())
        logs.until("attempt 1 started (worker-1 in attempt 0: exit code 1: ValueError: negative learning rate)")
        for pod in (master, *workers):
            job.delete_pod(pod)
        master = job.pods(kubelet.node, attempt=1)[0]
        kubelet.write(namespace, master, "epoch 1 again")
        job.run(master)
        logs.until("master-0 | epoch 1 again")
        kubelet.write(namespace, master, "done")
        kubelet.end(namespace, master)
        job.end(master)
        job.status(phase="Succeeded", attempt=1)
        assert logs.end() == 0
        assert logs.lines[-1] == "master-0 | done"


def test_an_interrupted_log_resumes_without_lost_or_repeated_lines(allranks, job, kubelet, namespace):
    pod = job.pods(kubelet.node)[0]
    job.run(pod)
    job.status()
    kubelet.write(namespace, pod, *(f"line {number}" for number in range(50)))
    with allranks.start("logs", "penguins", "-f", "--no-prefix") as logs:
        for number in range(50, 53):
            logs.until(f"line {number - 1}")
            time.sleep(0.2)  # time for the new request
            kubelet.cut(namespace, pod)
            kubelet.write(namespace, pod, f"line {number}")
        kubelet.end(namespace, pod)
        job.end(pod)
        job.status(phase="Succeeded")
        assert logs.end() == 0
    lines = [line for line in logs.lines if line.startswith("line")]
    assert lines == [f"line {number}" for number in range(53)]


@pytest.mark.nightly
def test_sixty_four_ranks_are_followed_in_one_thread(control_plane, allranks, kubelet, namespace):
    job = JobOnCluster(control_plane.api, namespace, "many", roles={"worker": 64})
    pods = job.pods(kubelet.node)
    job.status(ready="64/64")
    for pod in pods:
        kubelet.write(namespace, pod, "ready")
        job.run(pod)
    before = kubelet.followers
    with allranks.start("logs", "many", "-f", "--tail", "0") as logs:
        kubelet.wait_for_followers(before + len(pods))
        for pod in pods:
            kubelet.write(namespace, pod, "step 1")
        for _ in pods:
            logs.until("| step 1")
        assert int(re.search(r"Threads:\s+(\d+)", _proc(logs))[1]) <= 8
        for pod in pods:
            kubelet.write(namespace, pod, "bye")
            kubelet.end(namespace, pod)
        for pod in pods:
            job.end(pod)
        job.status(phase="Succeeded")
        assert logs.end() == 0
    assert sorted(logs.lines) == sorted(
        [f"{f'worker-{number}':<9} | {word}" for number in range(64) for word in ("step 1", "bye")]
    )


def _proc(running) -> str:
    with open(f"/proc/{running._process.pid}/status") as file:
        return file.read()


def test_a_closed_pipe_ends_it_silently(allranks, job, kubelet, namespace, control_plane):
    pod = job.pods(kubelet.node)[0]
    job.run(pod)
    job.status()
    kubelet.write(namespace, pod, "one", "two")
    words = [sys.executable, "-m", "allranks", "logs", "penguins", "-f", "-n", namespace]
    command = (
        f"{shlex.join([*words, '--kubeconfig', str(control_plane.kubeconfig)])} | head -1; exit ${{PIPESTATUS[0]}}"
    )
    with subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as piped:
        assert piped.stdout
        assert piped.stdout.readline() == "master-0 | one\n"

        def ended() -> bool:
            kubelet.write(namespace, pod, "three")
            return piped.poll() is not None

        eventually(ended)
        assert piped.returncode == 141
        assert piped.stderr
        assert "Traceback" not in piped.stderr.read()


def test_ctrl_c_does_not_stop_the_job(allranks, job, kubelet, namespace):
    pod = job.pods(kubelet.node)[0]
    job.run(pod)
    job.status()
    kubelet.write(namespace, pod, "here")
    with allranks.start("logs", "penguins", "-f") as logs:
        logs.until("here")
        logs.interrupt()
        assert logs.end() == 130
    assert logs.lines[-1] == "penguins continues"
