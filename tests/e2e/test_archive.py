"""The archiver of the chart in a pod: a job is deleted with its pods, and the archive has it, in a claim and in S3.

No other test runs at the same time (tools/e2e.sh): the chart is installed with other values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from support.data_servers import s3_environment, s3_server

from .cluster import Cluster
from .command_line import allranks
from .jobs import KILL_RANK, PREFIX, TAG, Team, claim_of, example
from .nodes import until
from .release import NAMESPACE, install

pytestmark = pytest.mark.nightly
ARCHIVER = "allranks-archiver"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{ARCHIVER}"
JOB = "penguins-pytorch-watched"
PLACE = "history"
"""The name of the claim, the bucket, and the Secret."""

Read = Callable[..., str]
"""Runs a command of allranks with the archive; its output."""


@pytest.fixture(autouse=True)
def without_archiver(cluster: Cluster) -> Iterator[None]:
    yield
    install(cluster)
    for kind in ("secret", "pvc"):
        cluster.kubectl("delete", kind, PLACE, "-n", NAMESPACE, "--ignore-not-found")


def install_archiver(cluster: Cluster, *values: str) -> None:
    """Installs the chart with an archiver, and waits until it is ready."""
    image = (f"archive.image.repository={PREFIX}/archiver", f"archive.image.tag={TAG}")
    install(cluster, *(f"--set={value}" for value in ("archive.enabled=true", *image, *values)))


def test_the_archive_in_a_claim_has_a_deleted_job_also_after_another_archiver(team: Team, cluster: Cluster) -> None:
    """Commands in the pod of the archiver read it."""
    cluster.kubectl("apply", "-n", NAMESPACE, "-f", "-", input=json.dumps(claim_of(PLACE)))
    install_archiver(cluster, f"archive.claim={PLACE}")
    is_restricted(cluster)
    changes_nothing(cluster)

    def read(command: str, *arguments: str) -> str:
        line = ("allranks", command, "-n", team.namespace, *arguments)
        done = cluster.ask("exec", "-n", NAMESPACE, f"deployment/{ARCHIVER}", "--", *line)
        return done.stdout + done.stderr

    restarts(team)
    pods = ("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=archiver")
    before = cluster.kubectl("get", *pods, "-o", "name")
    cluster.kubectl("delete", *pods)
    cluster.kubectl("rollout", "status", f"deployment/{ARCHIVER}", "-n", NAMESPACE, "--timeout=1200s")
    assert cluster.kubectl("get", *pods, "-o", "name") != before
    ends_and_is_deleted(team)
    is_read(team, read)


def test_the_archive_in_s3_has_a_deleted_job(team: Team, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands on this machine read it."""
    import boto3

    with s3_server(cluster.our_address) as url:
        for name, value in (variables := s3_environment(url)).items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket=PLACE)
        client.close()
        given = (f"--from-literal={name}={value}" for name, value in variables.items())
        cluster.kubectl("create", "secret", "generic", PLACE, *given, "-n", NAMESPACE)
        install_archiver(cluster, f"archive.url=s3://{PLACE}/e2e", f"archive.secretName={PLACE}")

        def read(command: str, *arguments: str) -> str:
            done = allranks(team, command, *arguments, "--archive", f"s3://{PLACE}/e2e")
            return str(done.stdout + done.stderr)

        restarts(team)
        ends_and_is_deleted(team)
        is_read(team, read)
        # Its pod ends before the server does.
        install(cluster)


def is_restricted(cluster: Cluster) -> None:
    """The pods of the namespace satisfy the standard, and the archiver runs as its image says."""
    label = "pod-security.kubernetes.io/enforce=restricted"
    done = cluster.ask("label", "namespace", NAMESPACE, label, "--overwrite", "--dry-run=server")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr  # otherwise a warning that names pods
    user = cluster.kubectl("exec", "-n", NAMESPACE, f"deployment/{ARCHIVER}", "--", "id", "-u")
    assert user.strip() == "65532"
    done = cluster.ask("exec", "-n", NAMESPACE, f"deployment/{ARCHIVER}", "--", "touch", "/opt/allranks/here")
    assert "Read-only file system" in done.stderr


def changes_nothing(cluster: Cluster) -> None:
    """The rights of its ServiceAccount, as the API server sees them."""

    def may(*what: str) -> bool:
        return cluster.ask("auth", "can-i", *what, "-A", f"--as={ACCOUNT}").stdout.strip() == "yes"

    assert may("list", "distributedtrainings.allranks.dev")
    assert may("get", "pods", "--subresource=log")
    for what in (("delete", "pods"), ("patch", "distributedtrainings.allranks.dev"), ("get", "secrets")):
        assert not may(*what), what


def restarts(team: Team) -> None:
    """A rank of the job is killed: the pods of attempt 0 are deleted, and attempt 1 runs."""
    team.start(example(JOB, args=["--epochs=8", "--pause=2"]))
    team.says(f"{JOB}-worker-0-0", "epoch 3/8")
    team.run(f"{JOB}-worker-1-0", "python3", "-c", KILL_RANK)
    team.attempt(JOB, 1)


def ends_and_is_deleted(team: Team) -> None:
    team.completes(JOB)
    team.kubectl("delete", "dt", JOB, "--cascade=foreground")
    assert team.left_of(JOB) == ""


def is_read(team: Team, read: Read) -> None:
    def deleted() -> list[str]:
        return [line for line in read("get", "--all").splitlines() if line.startswith(f"{JOB} ")]

    until(lambda: "Succeeded" in str(deleted()), "the last state of the job in the archive")
    [line] = deleted()
    assert line.split()[-1] == "yes"  # the column DELETED
    # The first attempt as well, whose pods were deleted while the job ran.
    first = read("logs", JOB, "--attempt", "0", "--rank", "0")
    assert "epoch 3/8" in first
    assert "test accuracy" not in first
    assert "started on cpu" in read("logs", JOB, "--attempt", "0", "--rank", "1")
    second = read("logs", JOB, "--rank", "0")
    assert "resumed from epoch" in second
    assert "rank 0 of 2: test accuracy" in second
    report = read("report", JOB)
    assert JOB in report
    assert "Succeeded" in report
    assert "signal 9" in report
    described = read("describe", JOB)
    assert "the job is deleted: this is its last state" in described
    assert "RankFailed" in described
    lost = team.kubectl("get", "events", "--field-selector=reason=NotArchived", "-o", "name")
    assert lost == ""
