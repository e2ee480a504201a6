"""`allranks get`, `list` and `describe`, and errors of the API server that all commands print."""

from __future__ import annotations

import json
import socket
import time

import pytest
import yaml

from support.builders import manifest
from support.commands import Commands, JobOnCluster, condition, failure, kubeconfig_of_service_account, stamp

RUNNING = {"ready": "3/3", "restartSummary": "1 (1 disrupted)", "progress": {"summary": "120/900 13%", "eta": "3m"}}


# --- get and list ----------------------------------------------------------------------------------------------------


def test_get_prints_the_columns_of_kubectl(allranks, control_plane, job, namespace):
    job.status(**RUNNING, lastFailure=failure())
    for wide in ([], ["-o", "wide"]):
        ours = allranks("get", *wide).stdout.split()
        theirs = control_plane.kubectl("get", "dt", "-n", namespace, *wide).stdout.split()
        assert [w for w in ours if not w[0].isdigit()] == [w for w in theirs if not w[0].isdigit()]
    (header, row) = allranks("get", "penguins").stdout.splitlines()
    assert header.split() == ["NAME", "FRAMEWORK", "PHASE", "READY", "RESTARTS", "PROGRESS", "ETA", "AGE", "REASON"]
    assert row.split()[:8] == ["penguins", "pytorch", "Running", "3/3", "1", "(1", "disrupted)", "120/900"]
    job.status(goodput=0.7376, cost={"gpus": 8, "gpuSeconds": {}, "summary": "4.0 GPUh, 9.60 EUR"})
    (header, row) = allranks("get", "penguins", "-o", "wide").stdout.splitlines()
    assert header.split()[-3:] == ["REASON", "GOODPUT", "COST"]
    assert "0.7376" in row
    assert row.rstrip().endswith("4.0 GPUh, 9.60 EUR")
    assert allranks("get", "--no-headers").stdout.split()[0] == "penguins"


def test_list_is_get_without_names(allranks, job):
    assert allranks("list", "-o", "name").stdout == allranks("get", "-o", "name").stdout
    assert allranks("list", "-o", "name").stdout == "distributedtraining.allranks.dev/penguins\n"


def test_no_jobs_is_a_message_on_stderr(allranks, namespace):
    assert allranks("get") == (0, "", f"No jobs in namespace {namespace}.\n")
    assert allranks("get", "-l", "team=nlp") == (0, "", f"No jobs with team=nlp in namespace {namespace}.\n")


@pytest.mark.parametrize("name", ["penguins", "dt/penguins", "distributedtraining.allranks.dev/penguins"])
def test_a_job_can_be_named_as_in_kubectl(allranks, job, name):
    assert allranks("get", name, "-o", "name").stdout == "distributedtraining.allranks.dev/penguins\n"


def test_another_kind_has_status_2(allranks):
    result = allranks("get", "pod/penguins")
    assert result.exit_code == 2
    assert "pod/penguins: this command supports only jobs (NAME or dt/NAME): use kubectl for pod." in result.stderr


def test_objects_as_yaml_and_json(allranks, job):
    one = json.loads(allranks("get", "penguins", "-o", "json").stdout)
    assert (one["kind"], one["metadata"]["uid"]) == ("DistributedTraining", job.uid)
    assert "managedFields" not in one["metadata"]
    assert yaml.safe_load(allranks("get", "penguins", "-o", "yaml").stdout) == one
    assert json.loads(allranks("get", "-o", "json").stdout)["items"] == [one]


def test_labels_and_all_namespaces(allranks, control_plane, namespace):
    for name, team in (("a", "nlp"), ("b", "vision")):
        document = manifest(name=name)
        document["metadata"] = {"name": name, "namespace": namespace, "labels": {"team": team}}
        control_plane.api.create(document)
    assert allranks("get", "-l", "team=nlp", "-o", "name").stdout.split("/")[1:] == ["a\n"]
    rows = [row.split()[:2] for row in allranks("get", "-A", "-l", "team in (nlp,vision)").stdout.splitlines()]
    assert rows == [["NAMESPACE", "NAME"], [namespace, "a"], [namespace, "b"]]


def test_watch_prints_a_line_for_every_visible_change(allranks, job, control_plane):
    with allranks.start("get", "-w") as watching:
        watching.until("penguins")
        job.status(phase="Pending", ready="0/3")
        watching.until("Pending")
        job.status(phase="Pending", ready="0/3", attempt=0, launched=True)  # no column shows it
        job.status(phase="Running", ready="3/3")
        watching.until("Running")
        control_plane.api.delete("DistributedTraining", job.namespace, "penguins")
        watching.until("Deleted")
        watching.interrupt()
        assert watching.end() == 130
    assert [line.split()[2] for line in watching.lines[2:]] == ["Pending", "Running", "Deleted"]
    header, *rows = watching.lines
    assert all(row[header.index("FRAMEWORK") :].startswith("pytorch") for row in rows)


def test_watch_as_json_prints_whole_objects(allranks, job):
    with allranks.start("get", "penguins", "-w", "-o", "json") as watching:
        watching.until('"kind": "DistributedTraining"')
        job.status(phase="Succeeded")
        watching.until('"phase": "Succeeded"')


# --- describe --------------------------------------------------------------------------------------------------------


def test_describe_shows_phase_pods_failures_and_events(allranks, job, control_plane, namespace):
    master, first, second = job.pods()
    job.run(master)
    job.waits(first, "ImagePullBackOff", "no such image")
    job.end(second, 137, "OOMKilled")
    job.status(
        phase="Failed",
        attempt=0,
        ready="1/3",
        restarts={"counted": 3, "disruptions": 1, "byReason": {"Error": 3, "Evicted": 1}},
        conditions=[condition("Failed", "True", "TooManyRestarts", "worker-1 failed for the fourth time")],
        roles={"master": {"desired": 1, "active": 1}, "worker": {"desired": 2, "active": 1, "failed": 1}},
        history=[
            {
                "attempt": 0,
                "startTime": stamp(),
                "endTime": stamp(),
                "reason": "Error",
                "counted": True,
                "failure": failure(message=""),
            }
        ],
        lastFailure=failure(message="Traceback\n\x1b[31mValueError: negative\x1b[0m"),
        completionTime=stamp(),
    )
    for about in (("Pod", first), ("Pod", second)):
        made = event(namespace, *about, "FailedScheduling", "0/3 nodes are available")
        control_plane.api.create(made, namespace)
    time.sleep(1)  # events carry whole seconds
    made = event(namespace, "DistributedTraining", "penguins", "RankFailed", "worker-1 failed", job.uid)
    control_plane.api.create(made, namespace)
    output = allranks("describe", "penguins").stdout
    assert "Phase:       Failed: worker-1 failed for the fourth time\n" in output
    assert "Restarts:    3 of at most 3; 1 by disruptions, which do not count (Error 3, Evicted 1)\n" in output
    rows = {row.split()[1]: row.split() for row in output.splitlines() if row.lstrip()[:2] in ("0 ", "1 ", "2 ")}
    assert rows["master-0"][:5] == ["0", "master-0", "0", "<none>", "Running"]
    assert rows["worker-0"][4] == "ImagePullBackOff"
    assert rows["worker-1"][4:-1] == ["Failed", "0", "OOMKilled,", "signal", "9", "(SIGKILL)"]
    assert "  worker-1 (rank 2) in attempt 0, after 12.5s: exit code 1\n" in output
    assert "  | Traceback\n  | ValueError: negative\n" in output
    [past] = output.partition("Past attempts:\n")[2].partition("Last failure:")[0].splitlines()[1:]
    assert past.split()[0] == "0"
    assert past.endswith("worker-1 failed with exit code 1 (Error)   yes")
    scheduling, failed = output.partition("Events:\n")[2].splitlines()[1:]
    assert scheduling.split("   ")[1:] == ["Warning", "FailedScheduling", "2 pods", "0/3 nodes are available"]
    assert failed.split()[-5:] == ["Warning", "RankFailed", "job", "worker-1", "failed"]


def test_describe_shows_progress_times_and_stragglers(allranks, job):
    now = stamp()
    slow = {"rank": 3, "replica": "worker-2", "node": "node-9", "slowdown": 2.31}
    progress = {
        "step": 600,
        "totalSteps": 1310,
        "epoch": 9,
        "metrics": {"accuracy": 0.9, "loss": 0.5132},
        "samplesPerSecond": 512,
        "eta": "5m55s",
        "lastReport": now,
        "checkpointStep": 560,
        "checkpointTime": now,
        "stragglers": [slow],
        "ranks": [{"rank": 3, "replica": "worker-2", "step": 598, "lag": 2, "stepSeconds": 0.5}],
        "curveMetric": "loss",
        "summary": "600/1310 45%",
    }
    times = {"queued": 12, "starting": 18, "productive": 240, "lost": 50, "byReason": {"Error": 50}, "measured": True}
    job.status(progress=progress, times=times | {"category": "Finished", "since": now})
    output = allranks("describe", "penguins").stdout
    metrics, rates = "epoch 9, loss 0.5132, accuracy 0.9", "2 steps/s, 512 samples/s, done in 5m55s"
    assert f"Progress:    600/1310 45%, {metrics}, {rates}, reported " in output
    assert "Checkpoint:  step 560, " in output
    assert ", queued 12s, starting 18s, productive 4m, lost 50s\n" in output
    assert "Goodput:     77.9%; lost by Error 50s\n" in output
    [row] = output.partition("Stragglers:\n")[2].partition("Events:")[0].splitlines()[1:]
    assert row.split() == ["3", "worker-2", "node-9", "2.3x"]


def test_describe_of_a_job_without_status(allranks, job):
    output = allranks("describe", "dt/penguins").stdout
    assert "Phase:       (not processed yet: is the operator running?)\n" in output
    assert "Pods:\n  none\n" in output


def event(namespace: str, kind: str, name: str, reason: str, message: str, uid: str = "") -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{reason.lower()}"},
        "involvedObject": {"kind": kind, "name": name, "uid": uid, "namespace": namespace},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "firstTimestamp": stamp(),
        "lastTimestamp": stamp(),
        "count": 1,
    }


# --- errors ----------------------------------------------------------------------------------------------------------


def test_a_missing_job_suggests_similar_names(allranks, job, namespace):
    for command in (["get"], ["describe"], ["logs"], ["wait"], ["delete"], ["suspend"], ["scale", "--replicas=2"]):
        result = allranks(command[0], "penguin", *command[1:])
        error = f"error: there is no job penguin in namespace {namespace}, did you mean penguins?\n"
        assert result == (1, "", error), command


def test_a_missing_job_names_the_namespace_that_has_it(control_plane, namespace):
    JobOnCluster(control_plane.api, namespace, "albatross")
    elsewhere = Commands(control_plane.kubeconfig, "default")
    hint = f"but there is one in {namespace}: select that namespace"
    error = f"error: there is no job albatross in namespace default, {hint}\n"
    assert elsewhere("get", "albatross") == (1, "", error)


def test_a_forbidden_request_names_the_missing_role(control_plane, namespace, tmp_path):
    stranger = Commands(kubeconfig_of_service_account(control_plane, namespace, tmp_path), namespace)
    result = stranger("get")
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: system:serviceaccount:{namespace}:default may not list distributedtrainings in namespace {namespace}: "
        f"ask an admin of {control_plane.url} for a Role with verb list on distributedtrainings.allranks.dev\n"
    )
    everywhere = stranger("get", "-A")
    assert "may not list distributedtrainings in all namespaces, or name a namespace: ask" in everywhere.stderr
    config = yaml.safe_load((tmp_path / "config").read_text())
    config["users"][0]["user"] = {"token": "wrong"}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    assert "does not accept your credentials: log in again" in stranger("get").stderr


def test_a_cluster_that_does_not_answer(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = f"https://127.0.0.1:{free.getsockname()[1]}"
        (tmp_path / "config").write_text(kubeconfig(server))
        result = Commands(tmp_path / "config", "team")("get")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        f"error: no API server answers at {server} (context there): connection refused: is "
    )
    assert result.stderr.endswith("kubectl config get-contexts lists yours\n")


def test_an_unusable_kubeconfig(control_plane, tmp_path):
    allranks = Commands(tmp_path / "config", "team")
    assert f"kubeconfig {tmp_path / 'config'}: there is no such file" in allranks("get").stderr
    for text, error in (("a: [", "is not YAML"), ("a: 1", "is not a kubeconfig"), ("", "is not a kubeconfig")):
        (tmp_path / "config").write_text(text)
        result = allranks("get")
        assert result.exit_code == 1
        assert error in result.stderr
        assert "Traceback" not in result.stderr
    (tmp_path / "config").write_text(kubeconfig("https://127.0.0.1:1"))
    result = allranks("get", "--context", "nowhere")
    assert result.stderr.startswith("error: there is no context nowhere in ")
    assert result.stderr.endswith("there are there\n")


def test_failed_and_missing_credentials(control_plane, tmp_path):
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    login = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/no/such/program", "interactiveMode": "Never"}
    allranks = Commands(tmp_path / "config", "team")
    config["users"][0]["user"] = {"exec": login}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    result = allranks("get")
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert result.stderr.startswith("error: logging in as context tests of ")
    assert "/no/such/program" in result.stderr
    config["users"][0]["user"] = {}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    assert "the request had no credentials: the kubeconfig has none for this context" in allranks("get").stderr


def test_an_untrusted_certificate(control_plane, tmp_path):
    (tmp_path / "config").write_text(kubeconfig(control_plane.url))
    result = Commands(tmp_path / "config", "team")("get")
    assert result.exit_code == 1
    assert "is not trusted" in result.stderr
    assert "check certificate-authority in the kubeconfig" in result.stderr


def kubeconfig(server: str) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "there", "cluster": {"server": server}}],
            "users": [{"name": "me", "user": {"token": "t"}}],
            "contexts": [{"name": "there", "context": {"cluster": "there", "user": "me"}}],
            "current-context": "there",
        }
    )
