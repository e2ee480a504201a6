"""Progress, stragglers and hangs with real pods: tokens, network, stacks in container logs."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .cluster import Cluster
from .jobs import KILL_RANK, Team, example
from .nodes import Node

JOB = "penguins-pytorch-watched"
HANG = 30
"""Seconds without a step until a rank hangs: on a busy machine it may be stopped for some."""


def test_a_slow_rank_is_named_a_hang_is_found_and_lost_work_is_counted(team: Team) -> None:
    slow = ["--work=0.05", "--slow-rank=1", "--hang-rank=1", "--hang-attempt=1", "--hang-at-step=140"]
    three = {"worker": {"replicas": 3}}
    job = team.start(example(JOB, args=["--epochs=30", *slow], hang={"timeoutSeconds": HANG}, roles=three))
    team.reports(job, '"stragglers":[{"node":')
    progress = team.status(job)["progress"]
    [straggler] = progress["stragglers"]
    assert (straggler["rank"], straggler["replica"]) == (1, "worker-1")
    assert straggler["slowdown"] > 2
    assert progress["totalSteps"] > progress["step"] > 0
    assert progress["reporting"] == 3
    assert "%" in team.kubectl("get", "dt", job)

    team.says(f"{job}-worker-0-0", "epoch 6/30")
    team.run(f"{job}-worker-0-0", "python3", "-c", KILL_RANK)
    team.attempt(job, 1)

    # Rank 1 sleeps forever in step 140, the others wait in the collective.
    log = team.says(f"{job}-worker-1-1", "stacks, asked for because")
    assert "train/common" in log or "penguins_pytorch.py" in log
    team.attempt(job, 2)
    status = team.status(job)
    failure = status["lastFailure"]
    assert (failure["reason"], failure["rank"], failure["pod"]) == ("Hang", 1, f"{job}-worker-1-1"), failure
    assert status["restarts"]["byReason"]["Hang"] == 1

    status = team.completes(job)
    times = status["times"]
    assert times["measured"]
    assert times["byReason"]["Hang"] >= HANG + 10  # all time since the last checkpoint is lost
    assert times["byReason"]["Error"] > 0
    assert 0 < status["goodput"] < 1
    assert [past["reason"] for past in status["history"]] == ["Error", "Hang", "Completed"]
    assert status["history"][1]["firstStep"] > 1


def test_an_outage_between_ranks_and_operator_is_reported_and_restarts_nothing(team: Team, cluster: Cluster) -> None:
    assert cluster.folder
    job = team.start(example(JOB, args=["--epochs=1000", "--work=0.2"], hang={"timeoutSeconds": HANG}))
    team.reports(job, '"reporting":2')
    with unreachable(team, cluster, job):
        team.wait(f"dt/{job}", "--for=condition=ReportsLost")
        team.wait(f"dt/{job}", "--for=condition=Running")
    team.wait(f"dt/{job}", "--for=condition=ReportsLost=False")
    status = team.status(job)
    assert (status["phase"], status["attempt"], status.get("lastFailure")) == ("Running", 0, None), status
    team.kubectl("delete", "dt", job, "--wait=false")


@contextlib.contextmanager
def unreachable(team: Team, cluster: Cluster, job: str) -> Iterator[None]:
    """The operator's Service, for the pods of the job. They still reach each other."""
    pods = [f"{job}-worker-{index}-0" for index in (0, 1)]
    [container] = team.get("pod", pods[0])["spec"]["containers"]
    [url] = [variable["value"] for variable in container["env"] if variable["name"] == "ALLRANKS_REPORT_URL"]
    service, namespace = url.split("/")[2].split(".")[:2]
    address = cluster.kubectl("-n", namespace, "get", "service", service, "-o", "jsonpath={.spec.clusterIP}")
    nodes = {team.get("pod", pod)["spec"]["nodeName"] for pod in pods}
    uid = team.get("dt", job)["metadata"]["uid"]  # other tests run jobs of the same name beside this one
    ranks = [rank for node in nodes for rank in Node(cluster, node).ranks(job, uid=uid)]
    networks = {file.readlink(): rank for rank in ranks for file in [Path(f"/proc/{rank}/ns/net")]}
    assert len(networks) == len(pods)
    for rank in networks.values():
        route(rank, "add", address)
    yield
    for rank in networks.values():
        route(rank, "delete", address)


def route(rank: int, verb: str, address: str) -> None:
    command = ["nsenter", "--net", f"--target={rank}", "--", "ip", "route", verb, "blackhole", f"{address}/32"]
    subprocess.run(command, check=True, timeout=300)


def test_a_pods_token_is_valid_only_for_its_own_reports(team: Team, cluster: Cluster) -> None:
    job = team.start(example(JOB, args=["--epochs=30", "--work=0.3"]))
    team.attempt(job, 0)
    pod = f"{job}-worker-0-0"
    ask = "import os, sys, urllib.request as u, urllib.error as e, ssl\n"
    ask += "t = open(os.environ['ALLRANKS_REPORT_TOKEN_FILE']).read()\n"
    ask += "def ask(url, token, body=None):\n"
    ask += "    r = u.Request(url, body, {'Authorization': 'Bearer ' + token, 'Content-Type': 'application/json'})\n"
    ask += "    try: return u.urlopen(r, context=ssl._create_unverified_context(), timeout=300).status\n"
    ask += "    except e.HTTPError as error: return error.code\n"
    ask += "url = os.environ['ALLRANKS_REPORT_URL']\n"
    ask += "api = 'https://kubernetes.default.svc/api/v1/namespaces/default/pods'\n"
    ask += "print([ask(url, t, b'{}'), ask(url, t[:-8] + 'AAAAAAAA', b'{}'), ask(url, t, b'x' * 9000), ask(api, t)])\n"
    assert json.loads(team.run(pod, "python3", "-c", ask).strip().splitlines()[-1]) == [200, 401, 413, 401]
    team.kubectl("delete", "dt", job, "--wait=false")
