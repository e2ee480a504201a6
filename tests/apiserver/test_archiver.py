"""`allranks archiver` on a real API server, with the rights of the chart, and a simulated kubelet that serves logs."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allranks.archive.reader import Reader
from support.commands import Commands, JobOnCluster, failure, stamp
from support.data_servers import s3_environment, s3_server
from support.helm import Helm, built
from support.kubelet_logs import LogKubelet
from support.live import eventually
from support.sweep_samples import a_sweep

pytestmark = pytest.mark.nightly


class Archiver:
    """A running archiver, and what it has written."""

    def __init__(self, commands: Commands, archive: Path | str, spool: Path, *options: str) -> None:
        """Its folder in `spool` is left behind when it is killed."""
        self.archive = Path(archive)
        self._namespace = commands.namespace
        where = ("--archive", str(archive), "--spool", str(spool), "--address", "127.0.0.1", "--port", "0")
        self.process = commands.start("archiver", *where, *options)
        line = self.process.until("serving /metrics")
        found = re.search(r"on port (\d+)", line)
        assert found, line
        self._url = f"http://127.0.0.1:{found[1]}"

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self._url + path, timeout=300) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def wait_until_ready(self) -> None:
        eventually(lambda: self.ask("/readyz")[0] == 200, what="the lists of jobs and pods")

    def kill(self) -> None:
        self.process._process.kill()
        self.process._process.wait()

    def files(self) -> set[str]:
        """Relative to the folder of the only job."""
        root = self.archive / self._namespace
        return {"/".join(path.relative_to(root).parts[1:]) for path in root.rglob("*") if path.is_file()}

    def read(self, job: JobOnCluster, name: str) -> Any:
        path = self.archive / self._namespace / f"{job.name}-{job.uid}" / name
        if not path.exists():
            return None
        return gzip.decompress(path.read_bytes()).decode() if name.endswith(".gz") else json.loads(path.read_bytes())

    def texts(self, job: JobOnCluster, name: str) -> list[str] | None:
        """The lines of a log without their times."""
        text = self.read(job, name)
        return None if text is None else [line.partition(" ")[2] for line in text.splitlines()]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    made = tmp_path / "archive"
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def rendered(tmp_path_factory) -> Callable[..., list[dict[str, Any]]]:
    """The objects of the archiver that the chart makes."""
    helm = Helm(built("helm"), tmp_path_factory.mktemp("helm"))

    def render(**archive: Any) -> list[dict[str, Any]]:
        values = {"archive": {"enabled": True, "claim": "history", **archive}}
        made = helm.template(values, namespace="default")
        return [one for one in made if one["metadata"]["labels"].get("app.kubernetes.io/component") == "archiver"]

    return render


@pytest.fixture(scope="module")
def kubeconfig(control_plane, rendered) -> Path:
    """That of the ServiceAccount of the chart, with the rights that the chart gives it."""
    for one in rendered():
        if one["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding"):
            control_plane.api.create(one, one["metadata"].get("namespace"))
    token = control_plane.kubectl("create", "token", "allranks-archiver", "--namespace=default").stdout.strip()
    return control_plane.kubeconfig_of("archiver", token)


@pytest.fixture
def started(namespace, kubeconfig, archive, tmp_path) -> Iterator[Callable[..., Archiver]]:
    running: list[Archiver] = []

    def start(*options: str) -> Archiver:
        running.append(Archiver(Commands(kubeconfig, namespace), archive, tmp_path, *options))
        return running[-1]

    yield start
    for each in running:
        with each.process:
            print("\n".join(each.process.lines))  # pytest shows it if the test fails


def begin(job: JobOnCluster, kubelet: LogKubelet, attempt: int = 0) -> list[str]:
    """The pods of an attempt run, and their logs are followed."""
    followers = kubelet.followers
    job.status(attempt=attempt, phase="Running")
    pods = job.pods(kubelet.node, attempt=attempt)
    for pod in pods:
        kubelet.write(job.namespace, pod, f"begin of {pod}")
    job.run(*pods)
    kubelet.wait_for_followers(followers + len(pods))
    return pods


def log(role: str, index: int, attempt: int = 0) -> str:
    return f"attempts/{attempt}/{role}-{index}.log.gz"


def test_a_restart_deletes_pods_and_the_archive_has_their_last_lines(
    started, allranks, job, kubelet, namespace, control_plane
):
    archiver = started()
    master, first, second = begin(job, kubelet)
    kubelet.write(namespace, first, "ValueError: negative learning rate")
    kubelet.end(namespace, first)
    job.end(first, 1)
    # The operator deletes all pods at once. The others print something when they end.
    for pod in (master, second):
        kubelet.write(namespace, pod, "SIGTERM: saved a checkpoint")
        kubelet.end(namespace, pod)
    for pod in (master, first, second):
        job.delete_pod(pod)
    job.status(attempt=1, phase="Restarting", lastFailure=failure(), history=[])
    names = [log("master", 0), log("worker", 0), log("worker", 1)]
    eventually(lambda: archiver.files() >= {*names, "job.json", "events.json"}, what="the files of attempt 0")
    assert archiver.texts(job, log("worker", 0)) == [f"begin of {first}", "ValueError: negative learning rate"]
    for name, pod in ((names[0], master), (names[2], second)):
        assert archiver.texts(job, name) == [f"begin of {pod}", "SIGTERM: saved a checkpoint"]

    # The job exists: commands read the logs of its deleted pods from the archive.
    place = ("--archive", str(archiver.archive))
    result = allranks("logs", job.name, "--attempt", "0", "--role", "worker", "--index", "0", *place)
    assert result.stdout.splitlines() == [
        f"worker-0 | begin of {first}",
        "worker-0 | ValueError: negative learning rate",
    ], result.stderr
    result = allranks("get", job.name, "--all", *place)
    assert (result.exit_code, result.stdout.split()[-1]) == (0, "no")

    # The job succeeds and is deleted: the archive has its last state.
    pods = begin(job, kubelet, attempt=1)
    for pod in pods:
        kubelet.write(namespace, pod, "done")
        kubelet.end(namespace, pod)
        job.end(pod)
    job.status(attempt=1, phase="Succeeded", completionTime=stamp())
    control_plane.api.delete("DistributedTraining", namespace, job.name)
    eventually(lambda: (found := archiver.read(job, "job.json")) and found["status"]["phase"] == "Succeeded")
    eventually(lambda: archiver.files() >= {log(role, index, 1) for role, index in (("master", 0), ("worker", 1))})
    assert archiver.texts(job, log("worker", 1, 1)) == [f"begin of {pods[2]}", "done"]
    eventually(lambda: 'allranks_archive_written_total{kind="log"} 6.0' in archiver.ask("/metrics")[1])
    metrics = archiver.ask("/metrics")[1]
    assert "allranks_archive_lost_total{" not in metrics
    result = allranks("logs", job.name, "--index", "1", *place)
    assert result.stdout.splitlines() == [f"worker-1 | begin of {pods[2]}", "worker-1 | done"], result.stderr
    result = allranks("get", "--all", *place)
    assert [line.split()[-1] for line in result.stdout.splitlines()] == ["DELETED", "yes"]
    assert json.loads(allranks("report", job.name, "-o", "json", *place).stdout)["phase"] == "Succeeded"
    assert "the job is deleted: this is its last state" in allranks("describe", job.name, *place).stdout


def test_secrets_of_the_pod_are_masked(started, control_plane, namespace, kubelet):
    secret = "correct-horse-battery"
    template = {"spec": {"containers": [{"name": "trainer", "env": [{"name": "DB_PASSWORD", "value": secret}]}]}}
    job = JobOnCluster(control_plane.api, namespace, "secretive", roles={"master": 1}, template=template)
    archiver = started()
    (pod,) = begin(job, kubelet)
    kubelet.write(namespace, pod, f"connecting with {secret}", "API_TOKEN=abcdef123456")
    kubelet.end(namespace, pod)
    job.end(pod)
    eventually(lambda: archiver.read(job, log("master", 0)))
    assert archiver.texts(job, log("master", 0))[1:] == ["connecting with <masked>", "API_TOKEN=<masked>"]
    eventually(lambda: archiver.read(job, "job.json"))
    everything = b"".join(path.read_bytes() for path in archiver.archive.rglob("*.json"))
    assert secret.encode() not in everything
    assert b"<masked>" in everything


@pytest.mark.parametrize("granted", [False, True])
def test_values_of_secrets_are_masked_where_the_namespace_grants_the_right(
    started, control_plane, namespace, kubelet, rendered, granted: bool
):
    api, word = control_plane.api, "correct-horse-battery"
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db"}, "stringData": {"word": word}}
    api.create(secret, namespace)
    if granted:
        for one in rendered(secretNamespaces=[namespace]):
            if one["metadata"].get("namespace") == namespace:
                api.create(one)
    variable = {"name": "LOGIN", "valueFrom": {"secretKeyRef": {"name": "db", "key": "word"}}}
    job = JobOnCluster(api, namespace, "secretive", roles={"master": 1}, env=[variable])
    archiver = started()
    (pod,) = begin(job, kubelet)
    kubelet.write(namespace, pod, f"connecting as {word}", f"API_TOKEN={word}")
    kubelet.end(namespace, pod)
    job.end(pod, 1)
    job.status(phase="Failed", lastFailure=failure(message=f"refused: {word}"), completionTime=stamp())
    eventually(lambda: archiver.read(job, log("master", 0)))
    shown = "<masked>" if granted else word
    assert archiver.texts(job, log("master", 0))[1:] == [f"connecting as {shown}", "API_TOKEN=<masked>"]

    def message() -> str:
        found = archiver.read(job, "job.json")
        return found["status"].get("lastFailure", {}).get("message", "") if found else ""

    eventually(lambda: message() == f"refused: {shown}", what="the failure of the job")
    # Deleted together: what was masked stays masked.
    api.delete("Secret", namespace, "db")
    job.delete_pod(pod)
    before = (archiver.archive / namespace / f"{job.name}-{job.uid}" / "job.json").stat().st_mtime_ns
    api.patch("DistributedTraining", namespace, job.name, {"metadata": {"labels": {"a": "changed"}}})
    api.delete("DistributedTraining", namespace, job.name)
    path = archiver.archive / namespace / f"{job.name}-{job.uid}" / "job.json"
    eventually(lambda: path.stat().st_mtime_ns > before, what="the last state of the job")
    assert message() == f"refused: {shown}"
    said = "\n".join(archiver.process.lines)
    assert word not in said
    assert (f"Secrets of namespace {namespace} may not be read" in said) is not granted


def test_a_sweep_is_archived_as_its_trials_end_and_when_it_is_deleted(started, allranks, control_plane, namespace):
    api, sweep = control_plane.api, a_sweep(namespace=namespace)
    status = sweep.pop("status")
    sweep["metadata"] = {"name": "search", "namespace": namespace}
    uid = api.create(sweep)["metadata"]["uid"]
    sweep["metadata"]["uid"] = uid
    job = JobOnCluster(api, namespace, "search-0", roles={"worker": 1})
    owner = {"apiVersion": "allranks.dev/v1alpha1", "kind": "TrainingSweep", "name": "search", "uid": uid}
    owners = {"metadata": {"ownerReferences": [{**owner, "controller": True}]}}
    api.patch("DistributedTraining", namespace, job.name, owners)
    archiver = started()

    def written() -> tuple[str, int]:
        path = archiver.archive / namespace / f"search-{uid}" / "sweep.json"
        found = json.loads(path.read_bytes())["status"] if path.exists() else {}
        return found.get("phase", ""), sum(trial["phase"] == "Succeeded" for trial in found.get("trials", ()))

    def patch(phase: str, ended: int) -> None:
        trials = [
            {**trial, "phase": "Succeeded" if number < ended else "Running"}
            for number, trial in enumerate(status["trials"])
        ]
        api.patch(
            "TrainingSweep", namespace, "search", {"status": {**status, "phase": phase, "trials": trials}}, "status"
        )

    for phase, ended in (("Running", 0), ("Running", 5), ("Succeeded", 12)):
        patch(phase, ended)
        eventually(lambda phase=phase, ended=ended: written() == (phase, ended), what=f"{phase}, {ended} trials")
    job.status(phase="Succeeded", completionTime=stamp())
    place = ("--archive", str(archiver.archive))
    result = allranks("get", "--sweeps", "--all", *place)
    assert [line.split()[-1] for line in result.stdout.splitlines()] == ["DELETED", "no"], result.stderr
    api.delete("DistributedTraining", namespace, job.name)
    api.delete("TrainingSweep", namespace, "search")

    def deleted() -> bool:
        return allranks("get", "--sweeps", "--all", *place).stdout.split()[-1] == "yes"

    eventually(deleted, what="the deletion of the sweep")
    result = allranks("report", "search", *place)
    assert "search: Succeeded, the best loss is" in result.stdout, result.stderr
    assert set(json.loads(allranks("report", "search", "-o", "json", *place).stdout)["importances"]) == {"lr", "batch"}
    reader = Reader.open(str(archiver.archive))
    eventually(lambda: reader.find_trial(sweep, "search-0"), what="the job of the trial")
    assert 'allranks_archive_written_total{kind="sweep"}' in archiver.ask("/metrics")[1]
    assert "allranks_archive_lost_total{" not in archiver.ask("/metrics")[1]


def test_a_killed_archiver_is_replaced_without_loss_or_repetition(started, allranks, job, kubelet, namespace):
    archiver = started()
    master, first, second = begin(job, kubelet)
    kubelet.write(namespace, first, "one")
    kubelet.end(namespace, first)
    job.end(first)
    eventually(lambda: archiver.read(job, log("worker", 0)))
    # The pod exists as well: its lines are printed once.
    place = ("--archive", str(archiver.archive))
    result = allranks("logs", job.name, "--role", "worker", "--index", "0", *place)
    assert result.stdout.splitlines() == [f"worker-0 | begin of {first}", "worker-0 | one"], result.stderr
    archiver.kill()
    written = (archiver.archive / namespace / f"{job.name}-{job.uid}" / log("worker", 0)).stat().st_mtime_ns
    # Ended while no archiver read; the pod still exists.
    kubelet.write(namespace, second, "two")
    kubelet.end(namespace, second)
    job.end(second)
    archiver = started()
    eventually(lambda: archiver.read(job, log("worker", 1)))
    kubelet.write(namespace, master, "three")
    kubelet.end(namespace, master)
    job.end(master)
    job.delete_pod(master)
    eventually(lambda: archiver.read(job, log("master", 0)))
    assert archiver.texts(job, log("worker", 1)) == [f"begin of {second}", "two"]
    assert archiver.texts(job, log("master", 0)) == [f"begin of {master}", "three"]
    assert archiver.texts(job, log("worker", 0)) == [f"begin of {first}", "one"]
    assert (archiver.archive / namespace / f"{job.name}-{job.uid}" / log("worker", 0)).stat().st_mtime_ns == written
    assert len(archiver.files()) == 5


def test_an_absent_archive_is_reported_and_written_when_it_is_there(started, archive, job, kubelet, namespace):
    archive.rmdir()
    archiver = started()
    pods = begin(job, kubelet)
    for pod in pods:
        kubelet.end(namespace, pod)
        job.end(pod)
        job.delete_pod(pod)
    job.status(phase="Succeeded", completionTime=stamp())
    _, text = eventually(lambda: (answer := archiver.ask("/readyz"))[0] == 503 and answer)
    assert "there is no such directory" in text or "not listed yet" in text
    eventually(lambda: "allranks_archive_available 0.0" in archiver.ask("/metrics")[1])
    assert archiver.ask("/healthz")[0] == 200
    archive.mkdir()
    names = {log("master", 0), log("worker", 0), log("worker", 1), "job.json", "events.json"}
    eventually(lambda: archiver.files() == names, what="all files")
    eventually(lambda: archiver.ask("/readyz")[0] == 200)
    assert 'allranks_archive_lost_total{kind="log"}' not in archiver.ask("/metrics")[1]


def test_a_log_that_is_lost_is_an_event_of_the_job(started, job, kubelet, namespace, control_plane):
    archiver = started("--logs", "4")
    archiver.wait_until_ready()
    (pod, *_) = job.pods(kubelet.node)
    job.run(pod)  # the kubelet of the tests has no log of it: it answers that the container is waiting to start
    eventually(lambda: any(request["pod"] == pod for request in kubelet.requests))
    job.delete_pod(pod)

    def reported() -> Any:
        events = control_plane.api.list("Event", namespace)
        return [event for event in events if event["reason"] == "NotArchived"]

    (event,) = eventually(reported)
    assert event["involvedObject"]["uid"] == job.uid
    assert event["message"] == f"the log of {pod} is not in the archive: the pod was deleted before its log was read"
    assert 'allranks_archive_lost_total{kind="log"} 1.0' in archiver.ask("/metrics")[1]


def test_an_archive_in_s3_is_written_and_read(kubeconfig, allranks, job, kubelet, namespace, tmp_path, monkeypatch):
    import boto3

    with s3_server() as url:
        for name, value in s3_environment(url).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(tmp_path))
        client = boto3.client("s3")
        client.create_bucket(Bucket="history")
        place = ("--archive", "s3://history/team")
        result = allranks("logs", job.name, "--attempt", "0", *place)
        assert "the archive s3://history/team does not have their logs" in result.stderr
        archiver = Archiver(Commands(kubeconfig, namespace), "s3://history/team", tmp_path)
        with archiver.process:
            master, *_ = pods = begin(job, kubelet)
            for pod in pods:
                kubelet.end(namespace, pod)
                job.end(pod)
                job.delete_pod(pod)

            def read() -> str:
                return allranks("logs", job.name, "--role", "master", *place).stdout

            eventually(lambda: read() == f"master-0 | begin of {master}\n", what="the log in the bucket")
            assert "allranks_archive_available 1.0" in archiver.ask("/metrics")[1]
        client.close()


def test_old_jobs_are_deleted_and_those_that_exist_stay(started, archive, job, namespace):
    long_ago = time.time() - 3 * 86_400
    own = archive / namespace / f"{job.name}-{job.uid}" / "job.json"
    other = archive / namespace / "whales-u1" / "job.json"
    for path in (own, other):
        path.parent.mkdir(parents=True)
        path.write_text("{}")
        os.utime(path, (long_ago, long_ago))
    archiver = started("--max-age-days", "2")
    eventually(lambda: not other.parent.exists(), what="the clean-up")
    assert own.exists()
    eventually(lambda: "allranks_archive_deleted_jobs_total 1.0" in archiver.ask("/metrics")[1])


def test_it_stops_at_once_on_sigterm(started, job, kubelet):
    archiver = started()
    begin(job, kubelet)
    archiver.process._process.send_signal(signal.SIGTERM)
    assert archiver.process.end(300) == 0
