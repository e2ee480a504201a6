"""`allranks submit`, and the commands that change a job: `suspend`, `resume`, `scale`, `delete`."""

from __future__ import annotations

import pytest

from support.api import ApiError
from support.builders import manifest
from support.commands import Commands, JobOnCluster, stamp, text


def document(name: str = "penguins", **spec) -> dict:
    made = manifest(name=name, **spec)
    made["metadata"] = {"name": name}
    return made


CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "runs"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}
JOB = "distributedtraining.allranks.dev/penguins"


# --- submit ----------------------------------------------------------------------------------------------------------


def test_every_document_is_created_and_the_same_again_is_unchanged(allranks, control_plane, namespace):
    manifests = text(CLAIM, document())
    created = f"persistentvolumeclaim/runs created\n{JOB} created\n"
    assert allranks("submit", "-", stdin=manifests) == (0, created, "")
    assert control_plane.api.get("DistributedTraining", namespace, "penguins")["spec"]["framework"] == "pytorch"
    assert allranks("submit", "-", stdin=manifests) == (0, created.replace("created", "unchanged"), "")


def test_a_field_that_may_change_is_configured_and_one_that_was_taken_out_goes(allranks, control_plane, namespace):
    allranks("submit", "-", stdin=text(document(ttlSecondsAfterFinished=60)))
    changed = document(suspend=True, roles={"worker": 3})
    assert allranks("submit", "-", stdin=text(changed)).stdout == f"{JOB} configured\n"
    spec = control_plane.api.get("DistributedTraining", namespace, "penguins")["spec"]
    assert (spec["suspend"], spec["roles"]["worker"]["replicas"]) == (True, 3)
    assert "ttlSecondsAfterFinished" not in spec
    assert allranks("submit", "-", stdin=text(changed)).stdout == f"{JOB} unchanged\n"


def test_one_that_may_not_change_is_told_with_what_to_do(allranks):
    allranks("submit", "-", stdin=text(document()))
    result = allranks("submit", "-", "--set", "image=other:2", stdin=text(document()))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        f"error: {JOB} is there and differs: spec.image: cannot change while the job lives: make a new job",
        f"error: {JOB}: delete it first (allranks delete penguins), or give this one another name "
        "(--set metadata.name=...)",
    ]


def test_a_job_that_is_over_is_told_to_be(allranks, job):
    job.status(phase="Succeeded", completionTime=stamp())
    made = {**job.manifest, "metadata": {"name": "penguins"}}
    result = allranks("submit", "-", stdin=text(made))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{JOB} unchanged: it is Succeeded; to run it again, allranks delete penguins")


def test_a_bad_manifest_is_told_as_validate_tells_it_and_nothing_is_sent(allranks, control_plane, namespace):
    bad = text(document("good"), document(roles={"worker": {"replica": 1}}))
    result = allranks("submit", "-", stdin=bad)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "stdin: penguins: spec.roles.worker.replica: unknown field, did you mean replicas?" in result.stderr
    assert control_plane.api.list("DistributedTraining", namespace) == []


def test_a_dry_run_is_the_servers_and_leaves_nothing(allranks, control_plane, namespace):
    result = allranks("submit", "-", "--dry-run", stdin=text(CLAIM, document()))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[1] == f"{JOB} created (dry run by the server)"
    assert control_plane.api.list("DistributedTraining", namespace) == []


def test_what_the_server_alone_can_see_is_told(allranks):
    claim = {**CLAIM, "spec": {**CLAIM["spec"], "accessModes": ["Sometimes"]}}
    odd = {"apiVersion": "x.dev/v1", "kind": "Odd", "metadata": {"name": "odd"}}
    result = allranks("submit", "-", stdin=text(claim, odd, document()))
    assert (result.exit_code, result.stdout) == (1, f"{JOB} created\n")
    first, second = result.stderr.splitlines()
    assert first.startswith('error: persistentvolumeclaim/runs: spec.accessModes: Unsupported value: "Sometimes"')
    assert second == "error: the cluster knows no Odd of x.dev/v1: is its apiVersion right?"


def test_two_namespaces_are_one_too_many(allranks):
    made = document()
    made["metadata"]["namespace"] = "other"
    result = allranks("submit", "-", stdin=text(made))
    assert result.exit_code == 1
    assert "is of namespace other, and -n says " in result.stderr


def test_a_namespace_that_is_not_there_is_told(control_plane):
    result = Commands(control_plane.kubeconfig, "nowhere")("submit", "-", stdin=text(document()))
    assert result.exit_code == 1
    assert "namespace nowhere does not exist: choose another with -n" in result.stderr


def test_a_pool_belongs_to_no_namespace(allranks, control_plane, namespace):
    pool = {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "TrainingPool",
        "metadata": {"name": namespace},
        "spec": {"nodeSelector": {"gpu": "h100"}},
    }
    told = f"trainingpool.allranks.dev/{namespace} created\n"
    try:
        assert allranks("submit", "-", stdin=text(pool)) == (0, told, "")
        pool["spec"]["nodeSelector"]["gpu"] = "h200"
        assert allranks("submit", "-", stdin=text(pool)).stdout == told.replace("created", "configured")
        assert allranks("submit", "-", stdin=text(pool)).stdout == told.replace("created", "unchanged")
    finally:
        control_plane.api.delete("TrainingPool", None, namespace)


def test_submit_may_follow_the_job_to_its_end(allranks, control_plane, namespace, tmp_path):
    def status(**fields: object) -> None:
        known = {"startTime": stamp(), "ready": "2/2"}
        control_plane.api.patch("DistributedTraining", namespace, "penguins", {"status": known | fields}, "status")

    (tmp_path / "job.yaml").write_text(text(document()))
    with allranks.start("submit", str(tmp_path / "job.yaml"), "--logs") as following:
        following.until(f"{JOB} created")
        status(phase="Running")
        following.until("Running, 2/2 pods running")
        status(phase="Failed", completionTime=stamp())
        following.until("penguins Failed after")
        assert following.end() == 1


def test_submit_may_print_names_for_scripts(allranks):
    assert allranks("submit", "-", "-o", "name", stdin=text(document())).stdout == f"{JOB}\n"


# --- suspend, resume, scale ------------------------------------------------------------------------------------------


def test_suspend_and_resume(allranks, job, control_plane):
    def suspended() -> bool:
        return control_plane.api.get("DistributedTraining", job.namespace, "penguins")["spec"]["suspend"]

    assert allranks("resume", "penguins").stdout == "penguins is not suspended\n"
    assert allranks("suspend", "penguins").stdout == "penguins suspended\n"
    assert suspended()
    assert allranks("suspend", "dt/penguins").stdout == "penguins is suspended already\n"
    assert allranks("resume", "penguins").stdout == "penguins resumed\n"
    assert not suspended()


def test_a_job_that_is_over_is_neither_suspended_nor_scaled(allranks, job):
    job.status(phase="Failed", completionTime=stamp())
    assert allranks("suspend", "penguins") == (1, "", "error: penguins is Failed: there is nothing to suspend\n")
    told = "error: penguins is Failed: submit a new job with the size that you want\n"
    assert allranks("scale", "penguins", "--replicas", "4") == (1, "", told)


def test_scale_says_what_it_does_to_a_job_that_is_not_elastic(allranks, job, control_plane):
    job.status()
    assert allranks("scale", "penguins", "--replicas", "4").stdout == (
        "penguins scaled from 2 to 4 workers: it is not elastic, so all ranks restart at the new size, "
        "from the beginning unless the program saves checkpoints\n"
    )
    spec = control_plane.api.get("DistributedTraining", job.namespace, "penguins")["spec"]
    assert spec["roles"]["worker"]["replicas"] == 4
    assert allranks("scale", "penguins", "--replicas", "4").stdout == "penguins has 4 workers already\n"


@pytest.mark.parametrize(
    ("framework", "replicas", "told"),
    [
        ("pytorch", 4, "all ranks restart when there is room for more, from the beginning unless the program saves"),
        ("pytorch", 1, "all ranks restart at the new size, from the beginning unless the program saves"),
        ("horovod", 4, "the others go on meanwhile"),
    ],
)
def test_scale_says_what_it_does_to_an_elastic_job(framework, replicas, told, allranks, control_plane, namespace):
    bounds = {"minReplicas": 1, "maxReplicas": 4}
    JobOnCluster(control_plane.api, namespace, framework=framework, roles={"worker": 2}, elastic=bounds).status()
    of = "worker" if replicas == 1 else "workers"
    begin = f"penguins scaled from 2 to {replicas} {of}: {told}"
    assert allranks("scale", "penguins", "--replicas", str(replicas)).stdout.startswith(begin)
    told = "error: penguins is elastic from 1 to 4 workers (spec.elastic): 5 is outside\n"
    assert allranks("scale", "penguins", "--replicas", "5") == (1, "", told)


def test_kubectl_scales_an_elastic_job_within_its_bounds_only(control_plane, namespace):
    JobOnCluster(control_plane.api, namespace, roles={"worker": 2}, elastic={"minReplicas": 1, "maxReplicas": 4})

    def scale(replicas: int) -> int:
        change = {"spec": {"replicas": replicas}}
        return control_plane.api.patch("DistributedTraining", namespace, "penguins", change, "scale")["spec"][
            "replicas"
        ]

    assert scale(4) == 4
    with pytest.raises(ApiError, match=r"must be within elastic\.minReplicas and elastic\.maxReplicas"):
        scale(5)


def test_a_job_without_workers_is_not_scaled(allranks, control_plane, namespace):
    JobOnCluster(control_plane.api, namespace, roles={"master": 1})
    told = "error: penguins has only master: a job is scaled by its workers\n"
    assert allranks("scale", "penguins", "--replicas", "4") == (1, "", told)


# --- delete ----------------------------------------------------------------------------------------------------------


def test_delete_by_name_waits_for_job_and_pods_if_asked(allranks, job, control_plane):
    pods = job.pods()
    assert allranks("delete", "penguins", "--wait", "--timeout", "30s") == (0, "penguins deleted\n", "")
    assert control_plane.api.find("DistributedTraining", job.namespace, "penguins") is None
    assert [pod for pod in pods if control_plane.api.find("Pod", job.namespace, pod)] == []


def test_delete_by_labels_and_of_what_is_not_there(allranks, control_plane, namespace):
    made = document()
    made["metadata"] = {"name": "penguins", "namespace": namespace, "labels": {"team": "nlp"}}
    control_plane.api.create(made)
    assert allranks("delete", "-l", "team=nlp").stdout == "penguins deleted\n"
    assert allranks("delete", "penguins", "--ignore-not-found") == (0, "", "")
    assert allranks("delete").exit_code == 2


def test_pods_that_are_left_when_the_time_is_over_are_told_with_status_124(allranks, job, control_plane, namespace):
    pod = job.pods()[0]
    control_plane.api.patch("Pod", namespace, pod, {"metadata": {"finalizers": ["tests.dev/stay"]}})
    result = allranks("delete", "penguins", "--wait", "--timeout", "2s")
    control_plane.api.patch("Pod", namespace, pod, {"metadata": {"finalizers": None}})
    assert result.exit_code == 124
    assert "the time is over: 1 pod is still there" in result.stderr


def test_orphaned_pods_stay(allranks, job, control_plane, namespace):
    pod = job.pods()[0]
    assert allranks("delete", "penguins", "--cascade", "orphan", "--wait", "--timeout", "20s").exit_code == 0
    assert control_plane.api.find("Pod", namespace, pod)
