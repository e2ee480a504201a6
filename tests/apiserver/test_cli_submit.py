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


def test_documents_are_created_and_unchanged_when_submitted_again(allranks, control_plane, namespace):
    manifests = text(CLAIM, document())
    created = f"persistentvolumeclaim/runs created\n{JOB} created\n"
    assert allranks("submit", "-", stdin=manifests) == (0, created, "")
    assert control_plane.api.get("DistributedTraining", namespace, "penguins")["spec"]["framework"] == "pytorch"
    assert allranks("submit", "-", stdin=manifests) == (0, created.replace("created", "unchanged"), "")


def test_changed_fields_are_configured_and_removed_fields_are_removed(allranks, control_plane, namespace):
    allranks("submit", "-", stdin=text(document(ttlSecondsAfterFinished=60)))
    changed = document(suspend=True, roles={"worker": 3})
    assert allranks("submit", "-", stdin=text(changed)).stdout == f"{JOB} configured\n"
    spec = control_plane.api.get("DistributedTraining", namespace, "penguins")["spec"]
    assert (spec["suspend"], spec["roles"]["worker"]["replicas"]) == (True, 3)
    assert "ttlSecondsAfterFinished" not in spec
    assert allranks("submit", "-", stdin=text(changed)).stdout == f"{JOB} unchanged\n"


def test_an_immutable_field_is_an_error_with_advice(allranks):
    allranks("submit", "-", stdin=text(document()))
    result = allranks("submit", "-", "--set", "image=other:2", stdin=text(document()))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        f"error: {JOB} already exists and differs: spec.image: cannot be changed in an existing job: create a new job",
        f"error: {JOB}: delete it first (allranks delete penguins), or use another name (--set metadata.name=...)",
    ]


def test_submitting_a_finished_job_again_gives_advice(allranks, job):
    job.status(phase="Succeeded", completionTime=stamp())
    made = {**job.manifest, "metadata": {"name": "penguins"}}
    result = allranks("submit", "-", stdin=text(made))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{JOB} unchanged: it is Succeeded; to run it again, allranks delete penguins")
    made["spec"] = {**made["spec"], "ttlSecondsAfterFinished": 600}
    result = allranks("submit", "-", stdin=text(made))
    assert result.stdout.startswith(f"{JOB} configured: it is Succeeded; to run it again, allranks delete penguins")


def test_with_an_invalid_manifest_nothing_is_sent(allranks, control_plane, namespace):
    bad = text(document("good"), document(roles={"worker": {"replica": 1}}))
    result = allranks("submit", "-", stdin=bad)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "stdin: penguins: spec.roles.worker.replica: unknown field, did you mean replicas?" in result.stderr
    assert control_plane.api.list("DistributedTraining", namespace) == []


def test_a_dry_run_creates_nothing(allranks, control_plane, namespace):
    result = allranks("submit", "-", "--dry-run", stdin=text(CLAIM, document()))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[1] == f"{JOB} created (dry run by the server)"
    assert control_plane.api.list("DistributedTraining", namespace) == []


def test_errors_of_the_api_server_are_printed(allranks):
    claim = {**CLAIM, "spec": {**CLAIM["spec"], "accessModes": ["Sometimes"]}}
    odd = {"apiVersion": "x.dev/v1", "kind": "Odd", "metadata": {"name": "odd"}}
    result = allranks("submit", "-", stdin=text(claim, odd, document()))
    assert (result.exit_code, result.stdout) == (1, f"{JOB} created\n")
    first, second = result.stderr.splitlines()
    assert first.startswith('error: persistentvolumeclaim/runs: spec.accessModes: Unsupported value: "Sometimes"')
    assert second == "error: the cluster does not serve Odd in x.dev/v1: check its apiVersion"


def test_conflicting_namespaces_are_an_error(allranks):
    made = document()
    made["metadata"]["namespace"] = "other"
    result = allranks("submit", "-", stdin=text(made))
    assert result.exit_code == 1
    assert "is in namespace other, but -n is " in result.stderr


def test_a_missing_namespace_is_an_error(control_plane):
    result = Commands(control_plane.kubeconfig, "nowhere")("submit", "-", stdin=text(document()))
    assert result.exit_code == 1
    assert "namespace nowhere does not exist: choose another, or" in result.stderr


def test_a_pool_is_cluster_scoped(allranks, control_plane, namespace):
    pool = {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "TrainingPool",
        "metadata": {"name": namespace},
        "spec": {"nodeSelector": {"gpu": "h100"}},
    }
    line = f"trainingpool.allranks.dev/{namespace} created\n"
    try:
        assert allranks("submit", "-", stdin=text(pool)) == (0, line, "")
        pool["spec"]["nodeSelector"]["gpu"] = "h200"
        assert allranks("submit", "-", stdin=text(pool)).stdout == line.replace("created", "configured")
        assert allranks("submit", "-", stdin=text(pool)).stdout == line.replace("created", "unchanged")
    finally:
        control_plane.api.delete("TrainingPool", None, namespace)


def test_submit_can_follow_the_job(allranks, control_plane, namespace, tmp_path):
    def status(**fields: object) -> None:
        status = {"startTime": stamp(), "ready": "2/2"}
        control_plane.api.patch("DistributedTraining", namespace, "penguins", {"status": status | fields}, "status")

    (tmp_path / "job.yaml").write_text(text(document()))
    with allranks.start("submit", str(tmp_path / "job.yaml"), "--logs") as following:
        following.until(f"{JOB} created")
        status(phase="Running")
        following.until("Running, 2/2 pods running")
        status(phase="Failed", completionTime=stamp())
        following.until("penguins Failed after")
        assert following.end() == 1


def test_submit_can_print_names(allranks):
    assert allranks("submit", "-", "-o", "name", stdin=text(document())).stdout == f"{JOB}\n"


def unnamed(**spec) -> dict:
    return document(**spec) | {"metadata": {"generateName": "sweep-"}}


def test_a_job_with_generate_name_is_created_each_time(allranks, control_plane, namespace):
    first, second = (allranks("submit", "-", stdin=text(unnamed())) for _ in range(2))
    names = {job["metadata"]["name"] for job in control_plane.api.list("DistributedTraining", namespace)}
    assert len(names) == 2
    lines = {f"distributedtraining.allranks.dev/{name} created\n" for name in names}
    assert (first.exit_code, second.exit_code, {first.stdout, second.stdout}) == (0, 0, lines)
    assert all(name.startswith("sweep-") for name in names)


def test_submit_waits_for_the_job_whose_name_was_made(allranks, control_plane, namespace, tmp_path):
    (tmp_path / "job.yaml").write_text(text(unnamed()))
    with allranks.start("submit", str(tmp_path / "job.yaml"), "--wait") as waiting:
        name = waiting.until("created").split()[0].rpartition("/")[2]
        ended = {"phase": "Succeeded", "startTime": stamp(), "completionTime": stamp()}
        control_plane.api.patch("DistributedTraining", namespace, name, {"status": ended}, "status")
        waiting.until(f"{name} Succeeded")
        assert waiting.end() == 0


def test_an_error_of_a_job_with_generate_name_has_its_prefix(control_plane):
    result = Commands(control_plane.kubeconfig, "nowhere")("submit", "-", stdin=text(unnamed()))
    assert result.exit_code == 1
    assert "distributedtraining.allranks.dev/sweep-*: namespace nowhere does not exist" in result.stderr


def test_a_template_that_the_api_server_would_refuse_is_not_sent(allranks, control_plane, namespace):
    """The API server accepts the job: the CRD has no schema for templates."""
    bad = document(template={"spec": {"nodeSelectr": {"gpu": "h100"}}})
    result = allranks("submit", "-", stdin=text(bad))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "spec.template.spec.nodeSelectr: unknown field, did you mean nodeSelector?" in result.stderr
    assert control_plane.api.list("DistributedTraining", namespace) == []


# --- suspend, resume, scale ------------------------------------------------------------------------------------------


def test_suspend_and_resume(allranks, job, control_plane):
    def suspended() -> bool:
        return control_plane.api.get("DistributedTraining", job.namespace, "penguins")["spec"]["suspend"]

    assert allranks("resume", "penguins").stdout == "penguins is not suspended\n"
    assert allranks("suspend", "penguins").stdout == "penguins suspended\n"
    assert suspended()
    assert allranks("suspend", "dt/penguins").stdout == "penguins is already suspended\n"
    assert allranks("resume", "penguins").stdout == "penguins resumed\n"
    assert not suspended()


def test_restart_names_the_attempt_to_replace(allranks, job, control_plane):
    def requested() -> str | None:
        annotations = control_plane.api.get("DistributedTraining", job.namespace, "penguins")["metadata"]["annotations"]
        return annotations.get("allranks.dev/restart-attempt")

    job.status(phase="Running", attempt=2, attemptTime=stamp())
    assert allranks("restart", "penguins").stdout == "penguins restarts: attempt 3 replaces attempt 2\n"
    assert requested() == "2"


def test_a_suspended_job_cannot_be_restarted(allranks, job):
    job.status(phase="Suspended")
    assert allranks("restart", "penguins") == (1, "", "error: penguins is Suspended: it has no pods to restart\n")


def test_a_finished_job_cannot_be_suspended_or_scaled_or_restarted(allranks, job):
    job.status(phase="Failed", completionTime=stamp())
    assert allranks("restart", "penguins") == (1, "", "error: penguins is Failed: submit a new job\n")
    assert allranks("suspend", "penguins") == (1, "", "error: penguins is Failed: there is nothing to suspend\n")
    error = "error: penguins is Failed: submit a new job with the size you want\n"
    assert allranks("scale", "penguins", "--replicas", "4") == (1, "", error)


def test_scale_prints_its_effect_on_a_job_that_is_not_elastic(allranks, job, control_plane):
    job.status()
    assert allranks("scale", "penguins", "--replicas", "4").stdout == (
        "penguins scaled from 2 to 4 workers: it is not elastic, so all ranks restart at the new size, "
        "from the beginning unless the program saves checkpoints\n"
    )
    spec = control_plane.api.get("DistributedTraining", job.namespace, "penguins")["spec"]
    assert spec["roles"]["worker"]["replicas"] == 4
    assert allranks("scale", "penguins", "--replicas", "4").stdout == "penguins already has 4 workers\n"


@pytest.mark.parametrize(
    ("framework", "replicas", "effect"),
    [
        (
            "pytorch",
            4,
            "all ranks restart when there is capacity for more, from the beginning unless the program saves",
        ),
        ("pytorch", 1, "all ranks restart at the new size, from the beginning unless the program saves"),
        ("horovod", 4, "the other ranks keep running"),
    ],
)
def test_scale_prints_its_effect_on_an_elastic_job(framework, replicas, effect, allranks, control_plane, namespace):
    bounds = {"minReplicas": 1, "maxReplicas": 4}
    JobOnCluster(control_plane.api, namespace, framework=framework, roles={"worker": 2}, elastic=bounds).status()
    of = "worker" if replicas == 1 else "workers"
    begin = f"penguins scaled from 2 to {replicas} {of}: {effect}"
    assert allranks("scale", "penguins", "--replicas", str(replicas)).stdout.startswith(begin)
    error = "error: penguins is elastic from 1 to 4 workers (spec.elastic): 5 is outside that range\n"
    assert allranks("scale", "penguins", "--replicas", "5") == (1, "", error)


def test_kubectl_scale_respects_the_elastic_bounds(control_plane, namespace):
    JobOnCluster(control_plane.api, namespace, roles={"worker": 2}, elastic={"minReplicas": 1, "maxReplicas": 4})

    def scale(replicas: int) -> int:
        change = {"spec": {"replicas": replicas}}
        return control_plane.api.patch("DistributedTraining", namespace, "penguins", change, "scale")["spec"][
            "replicas"
        ]

    assert scale(4) == 4
    with pytest.raises(ApiError, match=r"must be between elastic\.minReplicas and elastic\.maxReplicas"):
        scale(5)


def test_a_job_without_workers_cannot_be_scaled(allranks, control_plane, namespace):
    JobOnCluster(control_plane.api, namespace, roles={"master": 1})
    error = "error: penguins has no workers to scale: its roles are master\n"
    assert allranks("scale", "penguins", "--replicas", "4") == (1, "", error)


# --- delete ----------------------------------------------------------------------------------------------------------


def test_delete_can_wait_for_the_job_and_its_pods(allranks, job, control_plane):
    pods = job.pods()
    assert allranks("delete", "penguins", "--wait", "--timeout", "280s") == (0, "penguins deleted\n", "")
    assert control_plane.api.find("DistributedTraining", job.namespace, "penguins") is None
    assert [pod for pod in pods if control_plane.api.find("Pod", job.namespace, pod)] == []


def test_delete_by_labels_and_of_a_missing_job(allranks, control_plane, namespace):
    made = document()
    made["metadata"] = {"name": "penguins", "namespace": namespace, "labels": {"team": "nlp"}}
    control_plane.api.create(made)
    assert allranks("delete", "-l", "team=nlp").stdout == "penguins deleted\n"
    assert allranks("delete", "penguins", "--ignore-not-found") == (0, "", "")
    assert allranks("delete").exit_code == 2


def test_delete_timeout_prints_the_remaining_pods_with_status_124(allranks, job, control_plane, namespace):
    pod, *others = job.pods()
    for other in others:  # the garbage collector may need more than two seconds
        control_plane.api.delete("Pod", namespace, other, grace=0)
    control_plane.api.patch("Pod", namespace, pod, {"metadata": {"finalizers": ["tests.dev/stay"]}})
    result = allranks("delete", "penguins", "--wait", "--timeout", "2s")
    control_plane.api.patch("Pod", namespace, pod, {"metadata": {"finalizers": None}})
    assert result.exit_code == 124
    assert "timed out: 1 pod is still there" in result.stderr


def test_orphaned_pods_are_kept(allranks, job, control_plane, namespace):
    pod = job.pods()[0]
    assert allranks("delete", "penguins", "--cascade", "orphan", "--wait", "--timeout", "280s").exit_code == 0
    assert control_plane.api.find("Pod", namespace, pod)
