"""MPIJob: what becomes of mpirun and horovodrun."""

from __future__ import annotations

from typing import Any

from .inputs import comments, draft, manifest, pods


def mpi(command: list[str], api: str = "kubeflow.org/v2beta1", workers: int = 2, **spec: Any) -> dict[str, Any]:
    launcher = pods("mpi", 1, command=command, image="me/horovod:1")
    worker = pods("mpi", workers, command=["/usr/sbin/sshd", "-De"], image="me/horovod:1")
    return manifest("MPIJob", api, **{"mpiReplicaSpecs": {"Launcher": launcher, "Worker": worker}, **spec})


def test_mpirun_becomes_variables_and_the_program():
    line = [
        "mpirun",
        "-np",
        "4",
        "-x",
        "A=1",
        "-x",
        "PATH",
        "-mca",
        "btl",
        "^openib",
        "-bind-to",
        "none",
        "python",
        "t.py",
    ]
    made = draft(mpi(line, slotsPerWorker=2))
    assert made.spec["command"] == ["python", "t.py"]
    assert made.get("roles.launcher.env") == [
        {"name": "A", "value": "1"},
        {"name": "OMPI_MCA_btl", "value": "^openib"},
    ]
    assert made.spec["horovod"] == {"controller": "MPI", "slotsPerWorker": 2}
    assert made.get("restart.maxRestarts") == 6  # of a batch/v1 Job


def test_mpirun_stays_with_an_option_that_has_no_counterpart_or_fewer_ranks_than_slots():
    line = ["mpirun", "-np", "4", "-H", "a,b", "--rankfile", "/r", "python", "t.py"]
    made = draft(mpi(line, slotsPerWorker=2))
    assert made.get("roles.launcher.command") == ["mpirun", "-np", "4", "--rankfile", "/r", "python", "t.py"]
    assert "command" not in made.spec
    assert "mpirun stays because of the option --rankfile" in comments(made)
    assert "Removed: -H a,b" in comments(made)
    fewer = draft(mpi(["mpirun", "-np", "3", "python", "t.py"], slotsPerWorker=2))
    assert fewer.get("roles.launcher.command") == ["mpirun", "-np", "3", "python", "t.py"]


def test_a_launcher_that_holds_ranks_becomes_a_worker_more():
    made = draft(mpi(["mpirun", "-np", "3", "python", "t.py"], runLauncherAsWorker=True))
    assert made.get("roles.worker.replicas") == 3
    assert made.spec["command"] == ["python", "t.py"]
    assert "One worker more" in comments(made)


def test_horovodrun_needs_no_launcher():
    line = [
        "horovodrun",
        "-np",
        "4",
        "--min-np",
        "2",
        "--max-np",
        "8",
        "--timeline-filename",
        "/t",
        "--autotune",
        "python",
    ]
    made = draft(mpi([*line, "t.py"], slotsPerWorker=2))
    assert made.spec["roles"] == {"worker": {"replicas": 2}}
    assert made.spec["elastic"] == {"minReplicas": 1, "maxReplicas": 4}
    assert made.spec["env"] == [{"name": "HOROVOD_TIMELINE", "value": "/t"}]
    assert [why for _, why in made.dropped] == ["this option of horovodrun has no counterpart"]


def test_what_only_the_pod_of_a_launcher_has_is_dropped_without_a_launcher():
    job = mpi(["horovodrun", "-np", "2", "python", "t.py"])
    job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["nodeSelector"] = {"a": "b"}
    assert [where for where, _ in draft(job).dropped] == ["spec.mpiReplicaSpecs.Launcher.template"]


def test_an_MPIJob_without_Horovod_is_framework_mpi():
    job = mpi(["mpirun", "-n", "2", "/pi"], mpiImplementation="Intel", sshAuthMountPath="/x")
    for role in job["spec"]["mpiReplicaSpecs"].values():
        role["template"]["spec"]["containers"][0]["image"] = "me/pi:1"
    made = draft(job)
    assert (made.spec["framework"], made.spec["mpi"]) == ("mpi", {"implementation": "Intel"})
    assert made.spec["command"] == ["/pi"]
    assert made.dropped == []
