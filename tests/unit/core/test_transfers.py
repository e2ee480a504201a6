"""Inputs and outputs on a cluster: the pods that transfer them, and what the job does with what they say.
`tests/model/scenarios/data.yaml` has the course of events."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from allranks import masking
from allranks.api.data import InputStatus
from allranks.api.job import Resources
from allranks.api.pool import DataPods, PoolSpec, Toleration
from allranks.api.status import Status
from allranks.cache_key import cache_key
from allranks.core.facts import pool_template
from allranks.core.facts.data_store import CacheUse, DataStore
from allranks.core.facts.model import Exit, Platform, Pod
from allranks.core.objects import pods
from allranks.core.reconcile import reconcile
from allranks.core.transfers import manifests as transfers
from allranks.operator.settings import Settings
from support.builders import CLUSTER, NOW, UID, Life, at, failed, job, started, succeeded
from unit.core.test_code_in_pods import trainer, variables

STORE = DataStore("allranks-data", "allranks/data:1", 10**9)
WITH_DATA = replace(CLUSTER, data=STORE)
BIRDS = {"name": "birds", "from": "s3://birds/penguins", "path": "/data", "secret": "aws"}
MODEL = {"name": "model", "path": "/out", "to": "s3://models/penguins", "secret": "aws-write"}
FETCHED = {"fetched": {"revision": "list:1", "sha256": "ab" * 32, "bytes": 7, "cached": False}}


def begin(**spec: Any) -> Life:
    life = Life(job(**spec), platform=WITH_DATA)
    life.settle(0)
    return life


def end(life: Life, name: str, said: object, code: int = 0, after: float = 60) -> None:
    text = said if isinstance(said, str) else json.dumps(said)
    phase = "Failed" if code else "Succeeded"
    life.pods[name] = replace(life.pods[name], phase=phase, exit=Exit(code, at(after), "Completed", text))


def running(life: Life) -> tuple[str, str]:
    condition = life.status.condition("Running")
    assert condition
    return condition.reason, condition.message


def transfer_pods(platform: Platform, **spec: Any) -> list[dict[str, Any]]:
    """The pods that fetch, check and upload."""
    of = job(inputs=[BIRDS], outputs=[MODEL], **spec)
    [item], [output] = of.spec.inputs or (), of.spec.outputs or ()
    assert platform.data
    return [
        transfers.fetch_pod(of, item, platform, platform.data, None, NOW),
        transfers.check_pod(of, output, platform, platform.data),
        transfers.upload_pod(of, output, Status(), platform, platform.data),
    ]


def test_a_quota_on_any_limit_or_request_admits_every_pod_that_transfers() -> None:
    for pod in transfer_pods(WITH_DATA):
        [container] = pod["spec"]["containers"]
        for part in ("requests", "limits"):
            assert set(container["resources"][part]) >= {"cpu", "memory"}, pod["metadata"]["name"]


def test_the_platform_team_chooses_resources_and_nodes_of_the_pods_that_transfer() -> None:
    text = json.dumps({"resources": {"limits": {"cpu": 4}}, "nodeSelector": {"disk": "fast"}, "tolerations": []})
    store = Settings(data_claim="allranks-data", data_pods=text).data
    for pod in transfer_pods(replace(CLUSTER, data=store)):
        assert pod["spec"]["containers"][0]["resources"] == {"limits": {"cpu": 4}}
        assert pod["spec"]["nodeSelector"] == {"disk": "fast"}
        assert "tolerations" not in pod["spec"]


def test_a_pool_replaces_single_fields_of_the_pods_that_transfer_for_its_jobs() -> None:
    store = replace(STORE, pods=DataPods(node_selector={"disk": "fast"}))
    choice = DataPods(tolerations=[Toleration(key="gpu", operator="Exists")])
    platform = replace(CLUSTER, data=store, pools={"h200": PoolSpec(node_selector={"gpu": "h200"}, data=choice)})
    for pod in transfer_pods(platform, pool="h200"):
        assert pod["spec"]["nodeSelector"] == {"disk": "fast"}, "not the nodes of ranks"
        assert pod["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
        assert pod["spec"]["containers"][0]["resources"]["limits"]["cpu"]
    assert "tolerations" not in transfer_pods(platform)[0]["spec"], "a job without the pool"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"resources": {"limits": {"cpu": "two"}}}', "resources.limits.cpu: "),
        ('{"nodeselector": {}}', "nodeselector"),
        ("{", "JSON"),
    ],
)
def test_a_mistake_in_the_setting_for_pods_that_transfer_is_named_at_the_start(text: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings(data_pods=text)


def test_a_pool_with_an_amount_that_is_no_quantity_is_invalid() -> None:
    wrong = PoolSpec(data=DataPods(resources=Resources(requests={"memory": "much"})))
    [(path, text)] = pool_template.problems(wrong)
    assert path == "spec.data.resources.requests.memory"
    assert "for example" in text


SECRET = "hunter2-abcdef"
COMMANDS = [
    {"command": ["python3", "train.py", f"--token={SECRET}", "--api-key", SECRET, "--rate", "0.1"]},
    {"args": [f"--password={SECRET}", "--rate", "0.1"]},
    {"command": ["bash", "-c", f"API_KEY={SECRET} python3 train.py --rate 0.1"]},
    {"roles": {"worker": {"replicas": 1, "command": ["train", f"--url=https://me:{SECRET}@example.org/", "0.1"]}}},
]


@pytest.mark.parametrize("fields", COMMANDS)
def test_the_provenance_of_an_output_masks_secrets_as_an_archive_does(fields: dict[str, Any]) -> None:
    of = job(**fields)
    text = json.dumps(transfers.provenance(of, Status()))
    assert SECRET not in text
    assert "0.1" in text, "the rest stays"
    archived = json.dumps(masking.masked(of.spec.model_dump(mode="json", by_alias=True)))
    assert text.count(masking.MASK) == archived.count(masking.MASK)


def test_no_pod_of_allranks_has_a_capability_but_an_upload_of_files_whose_user_no_status_names() -> None:
    def added(pods_: list[dict[str, Any]]) -> dict[str, list[str]]:
        containers = {
            pod["metadata"]["name"]: [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]
            for pod in pods_
        }
        for name, each in containers.items():
            for container in each:
                assert container["securityContext"]["capabilities"]["drop"] == ["ALL"], name
                assert container["securityContext"]["allowPrivilegeEscalation"] is False, name
        return {
            name: capability
            for name, each in containers.items()
            for container in each
            if (capability := container["securityContext"]["capabilities"].get("add"))
        }

    user = {"template": {"spec": {"securityContext": {"runAsUser": 1000}}}}
    root = {"template": {"spec": {"securityContext": {"runAsNonRoot": False}}}}
    assert added(transfer_pods(WITH_DATA, **user)) == {}
    assert added(transfer_pods(WITH_DATA, **root)) == {"job-upload-model": ["DAC_OVERRIDE"]}
    on_nodes = replace(CLUSTER, data=DataStore("", "allranks/data:1", 10**9, "/nvme"))
    ranks = pods.objects(job(inputs=[BIRDS]), Status(), on_nodes).pods
    assert added(ranks) == {}
    [fetch] = [each for each in ranks[0]["spec"]["initContainers"] if each["name"] == "allranks-fetch-birds"]
    assert fetch["securityContext"]["runAsUser"] == 0, "the kubelet makes the directory of a node for root"


def test_data_is_fetched_before_a_pod_of_a_rank_exists() -> None:
    life = begin(inputs=[BIRDS])
    assert list(life.pods) == ["job-fetch-birds"]
    assert life.status.inputs == [InputStatus(name="birds", state="Fetching")]
    assert running(life) == ("FetchingInputs", "inputs are fetched: birds from s3://birds/penguins")
    end(life, "job-fetch-birds", FETCHED)
    plan = life.step(60)
    assert plan.write_ahead
    life.settle(60)
    assert sorted(life.pods) == ["job-worker-0-0", "job-worker-1-0"]
    assert life.status.inputs[0].revision == "list:1"


def test_ranks_mount_what_was_fetched_read_only_and_without_credentials() -> None:
    life = begin(inputs=[BIRDS], outputs=[MODEL])
    end(life, "job-fetch-birds", FETCHED)
    life.settle(60)
    [made, _] = pods.objects(life.job, life.status, WITH_DATA).pods
    claim = {"name": "allranks-data", "persistentVolumeClaim": {"claimName": "allranks-data"}}
    assert [volume for volume in made["spec"]["volumes"] if "persistentVolumeClaim" in volume] == [claim]
    folder = f"inputs/{cache_key('s3://birds/penguins', 'list:1')}/files"
    mounts = [mount for mount in trainer(made)["volumeMounts"] if mount["name"] == "allranks-data"]
    assert mounts == [
        {"name": "allranks-data", "mountPath": "/data", "readOnly": True, "subPath": folder},
        {"name": "allranks-data", "mountPath": "/out", "subPath": f"outputs/{UID}/model"},
    ]
    assert "aws" not in json.dumps(made)


def test_the_pod_that_fetches_has_only_its_own_secret_and_no_token() -> None:
    two = {"name": "more", "from": "https://h/f", "path": "/more", "sha256": "cd" * 32}
    life = Life(job(inputs=[BIRDS, two]), platform=WITH_DATA)
    life.settle(0)
    look = replace(life.look(0), pods=(), cache_use=CacheUse(("key",)))
    first, second = reconcile(look).create
    spec, [container] = first["spec"], first["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "aws"}}]
    assert "envFrom" not in second["spec"]["containers"][0]
    assert (spec["restartPolicy"], spec["automountServiceAccountToken"]) == ("OnFailure", False)
    assert spec["securityContext"]["runAsNonRoot"]
    request = json.loads(container["env"][0]["value"])
    since = int((at(0) - transfers.UNSEEN).timestamp())
    assert request == {
        "act": "fetch",
        "uri": "s3://birds/penguins",
        "revision": None,
        "sha256": None,
        "cache": "/cache",
        "limit": 10**9,
        "used": ["key"],
        "since": since,
    }
    assert container["volumeMounts"] == [{"name": "allranks-data", "mountPath": "/cache", "subPath": "inputs"}]


@pytest.mark.parametrize("claim", ["allranks-data", ""])
def test_archives_are_unpacked_where_an_input_is_fetched_and_are_other_data_in_the_cache(claim: str) -> None:
    source = {**BIRDS, "unpack": True}
    platform = replace(CLUSTER, data=DataStore(claim, "allranks/data:1", 10**9))
    life = Life(job(inputs=[source]), platform=platform)
    life.settle(0)
    [fetch] = reconcile(replace(life.look(0), pods=())).create
    end(life, "job-fetch-birds", FETCHED if claim else {"fetched": {"revision": "list:1", "bytes": 7}})
    life.settle(60)
    made = pods.objects(life.job, life.status, platform).pods[0]
    fetches = fetch["spec"]["containers"][0] if claim else made["spec"]["initContainers"][0]
    assert json.loads(fetches["env"][0]["value"])["unpack"] is True
    key = cache_key("s3://birds/penguins", "unpacked:list:1")
    [mount] = [mount for mount in trainer(made)["volumeMounts"] if mount["mountPath"] == "/data"]
    assert mount["subPath"] == (f"inputs/{key}/files" if claim else f"{key}/files")


def test_an_input_that_is_streamed_is_only_looked_up_and_needs_no_claim() -> None:
    source = {"name": "birds", "from": "hf://datasets/a/birds", "mode": "Stream", "secret": "hub", "revision": "main"}
    without = replace(CLUSTER, data=DataStore("", "allranks/data:1", 0))
    life = Life(job(inputs=[source]), platform=without)
    life.settle(0)
    [made] = reconcile(replace(life.look(0), pods=())).create
    [container] = made["spec"]["containers"]
    assert (made["metadata"]["name"], made["spec"]["volumes"]) == ("job-fetch-birds", [])
    request = {"act": "resolve", "uri": "hf://datasets/a/birds", "revision": "main"}
    assert json.loads(container["env"][0]["value"]) == request
    assert container["envFrom"] == [{"secretRef": {"name": "hub"}}]
    end(life, "job-fetch-birds", {"fetched": {"revision": "c0ffee", "bytes": 7}})
    life.settle(60)
    assert life.status.inputs == [InputStatus(name="birds", state="Ready", revision="c0ffee", bytes=7)]
    for attempt in (0, 1):
        assert sorted(life.pods) == [f"job-worker-0-{attempt}", f"job-worker-1-{attempt}"]
        for made in pods.objects(life.job, life.status, without).pods:
            assert variables(trainer(made))["ALLRANKS_INPUT_BIRDS"] == "hf://datasets/a/birds@c0ffee"
        life.run(61 + 200 * attempt)
        life.put(failed(index=0, attempt=attempt))
        life.settle(100 + 200 * attempt)
        life.settle(200 + 200 * attempt)


def test_a_cluster_without_a_claim_refuses_outputs_and_not_inputs() -> None:
    life = Life(job(inputs=[BIRDS], outputs=[MODEL]), platform=replace(CLUSTER, data=DataStore("", "d", 0)))
    life.settle(0)
    condition = life.status.condition("Failed")
    assert condition
    assert condition.message.startswith("spec.outputs[0].path: outputs are kept in a claim")


def test_a_queued_job_fetches_and_asks_for_quota_only_afterwards() -> None:
    life = begin(inputs=[BIRDS], scheduling={"queue": "team-a"})
    assert life.status.phase == "Queued"
    assert list(life.pods) == ["job-fetch-birds"]
    assert running(life)[0] == "FetchingInputs"
    end(life, "job-fetch-birds", FETCHED)
    life.settle(60)
    assert life.pods == {}
    assert running(life)[0] == "QueuesNotServed"  # it asks now, and this platform serves none


def test_an_error_that_does_not_pass_fails_the_job_with_the_path_of_the_field() -> None:
    life = begin(inputs=[{"name": "a", "from": "claim://c", "path": "/a"}, BIRDS])
    end(life, "job-fetch-birds", {"error": "s3://birds/penguins: access is denied: check the credentials"})
    life.settle(60)
    condition = life.status.condition("Failed")
    assert condition
    assert condition.reason == "InputFailed"
    assert condition.message == "spec.inputs[1]: s3://birds/penguins: access is denied: check the credentials"
    assert [each.state for each in life.status.inputs] == ["Ready", "Failed"]
    assert life.pods == {}
    assert life.events.count("InputFailed") == 1


def test_an_error_that_may_pass_is_a_condition_and_no_rank_exists_meanwhile() -> None:
    life = begin(inputs=[BIRDS])
    said = json.dumps({"error": "s3://birds/penguins: the connection failed: reset"})
    pod = replace(life.pods["job-fetch-birds"], phase="Running", container_restarts=3)
    life.pods[pod.name] = replace(pod, waiting_reason="CrashLoopBackOff", last_exit=Exit(1, at(50), "Error", said))
    life.settle(60)
    text = "spec.inputs[0]: s3://birds/penguins: the connection failed: reset; try 4 follows"
    assert running(life) == ("FetchRetrying", text)
    assert list(life.pods) == ["job-fetch-birds"]
    life.settle(70)
    assert life.events.count("FetchRetrying") == 1
    life.pods[pod.name] = pod
    life.settle(80)
    assert running(life)[0] == "FetchingInputs"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"waiting_reason": "CreateContainerConfigError", "waiting_message": 'secret "aws" not found'},
            'spec.inputs[0]: pod job-fetch-birds cannot start: secret "aws" not found',
        ),
        (
            {"waiting_reason": "Unschedulable", "waiting_message": 'persistentvolumeclaim "allranks-data" not found'},
            'spec.inputs[0]: pod job-fetch-birds cannot start: persistentvolumeclaim "allranks-data" not found',
        ),
        ({"phase": "Failed", "exit": Exit(137, at(55), "OOMKilled")}, "spec.inputs[0]: pod job-fetch-birds was lost"),
    ],
)
def test_what_keeps_a_fetch_from_starting_is_in_the_condition(fields: dict[str, Any], text: str) -> None:
    life = begin(inputs=[BIRDS])
    life.pods["job-fetch-birds"] = replace(life.pods["job-fetch-birds"], **fields)
    life.settle(60)
    assert running(life)[1].startswith(text)


def test_a_pod_that_was_evicted_is_replaced_after_a_while() -> None:
    life = begin(inputs=[BIRDS])
    before = life.pods["job-fetch-birds"].uid
    end(life, "job-fetch-birds", "", code=137)
    assert life.settle(60).wake_at == at(70)
    life.settle(70)
    assert life.pods["job-fetch-birds"].uid != before


@pytest.mark.parametrize("said", ["Traceback", "[]", '{"fetched": {"revision": 7}}', '{"fetched": {"bytes": -1}}'])
def test_a_result_that_cannot_be_read_fails_the_job(said: str) -> None:
    life = begin(inputs=[BIRDS])
    end(life, "job-fetch-birds", said)
    life.settle(60)
    condition = life.status.condition("Failed")
    assert condition
    assert condition.message.startswith("spec.inputs[0]: pod job-fetch-birds ")


def test_a_job_that_is_suspended_while_it_fetches_stops_and_goes_on() -> None:
    life = begin(inputs=[BIRDS])
    life.job = job(inputs=[BIRDS], suspend=True)
    life.settle(10)
    assert life.pods == {}
    assert life.status.inputs[0].state == "Pending"
    life.job = job(inputs=[BIRDS])
    life.settle(20)
    assert list(life.pods) == ["job-fetch-birds"]


def test_a_restart_reads_the_same_revision_and_fetches_nothing() -> None:
    life = begin(inputs=[BIRDS])
    end(life, "job-fetch-birds", FETCHED)
    life.settle(60)
    life.run(61)
    life.put(failed(index=0))
    life.settle(100)
    life.settle(200)
    assert life.status.attempt == 1
    assert {name.rpartition("-")[0] for name in life.pods} == {"job-worker-0", "job-worker-1"}


def uploading(**output: Any) -> Life:
    """A job whose program has completed, and whose pods have ended."""
    life = started(job(outputs=[{**MODEL, **output}], success="All"), platform=WITH_DATA)
    life.put(succeeded(index=0), succeeded(index=1))
    life.settle(100)
    return life


def uploading_after_failure(**output: Any) -> Life:
    of = job(outputs=[{**MODEL, "when": "Always", **output}], restart={"maxRestarts": 0})
    life = started(of, platform=WITH_DATA)
    life.put(failed(index=0))
    life.settle(100)
    return life


def uploaders(life: Life) -> list[Pod]:
    return [pod for name, pod in life.pods.items() if name == "job-upload-model"]


def test_a_job_succeeds_when_its_pod_has_uploaded_the_files() -> None:
    life = uploading()
    assert running(life)[0] == "UploadingOutputs"
    assert len(uploaders(life)) == 1
    end(life, "job-upload-model", {"uploaded": {"bytes": 10, "files": 2}})
    life.settle(200)
    assert life.status.phase == "Succeeded"
    assert [(output.state, output.bytes, output.files) for output in life.status.outputs] == [("Uploaded", 10, 2)]
    assert uploaders(life) == []


def test_no_upload_begins_while_a_rank_may_still_write() -> None:
    roles = {"master": {"replicas": 1}, "worker": {"replicas": 1}}
    life = started(job(roles=roles, outputs=[MODEL]), platform=WITH_DATA)
    life.put(succeeded("master"))
    life.settle(100)
    assert uploaders(life) == []
    life.settle(110)
    assert len(uploaders(life)) == 1


def test_a_failed_upload_says_where_the_files_are() -> None:
    life = uploading()
    end(life, "job-upload-model", {"error": "s3://models/penguins: access is denied"})
    life.settle(200)
    condition = life.status.condition("Failed")
    assert condition
    assert condition.message == (
        "the program completed, but output model is not uploaded: s3://models/penguins: access is denied; "
        f"the files are in outputs/{UID}/model of claim allranks-data"
    )


@pytest.mark.parametrize("when", ["Success", "Always"])
def test_the_pod_of_an_upload_that_is_overdue_is_deleted(when: str) -> None:
    life = uploading(deadlineSeconds=60) if when == "Success" else uploading_after_failure(deadlineSeconds=60)
    assert len(uploaders(life)) == 1
    assert life.settle(159).wake_at == at(160)
    life.settle(160)
    assert uploaders(life) == []
    assert (life.status.phase, life.status.outputs[0].state) == ("Failed", "Failed")
    assert life.status.outputs[0].message == (
        f"not within deadlineSeconds (60); the files are in outputs/{UID}/model of claim allranks-data"
    )
    assert life.events.count("OutputFailed") == 1


def test_an_upload_that_is_tried_again_is_in_the_condition() -> None:
    life = uploading()
    pod = life.pods["job-upload-model"]
    last = Exit(1, at(110), "Error", '{"error": "no route"}')
    life.pods[pod.name] = replace(pod, last_exit=last, container_restarts=1, waiting_reason="CrashLoopBackOff")
    life.settle(120)
    assert running(life) == ("UploadRetrying", "spec.outputs[0]: no route; try 2 follows")
    life.pods[pod.name] = pod
    life.settle(130)
    assert running(life)[0] == "UploadingOutputs"


def test_the_outputs_of_a_failed_job_are_uploaded_when_wanted_always() -> None:
    life = uploading_after_failure()
    life.settle(200)
    assert (life.status.phase, len(uploaders(life))) == ("Failed", 1)
    end(life, "job-upload-model", {"uploaded": {"bytes": 1, "files": 1}})
    life.settle(300)
    assert life.status.outputs[0].state == "Uploaded"
    assert uploaders(life) == []


def test_the_pod_that_uploads_reads_with_the_user_of_the_ranks() -> None:
    template = {"spec": {"securityContext": {"runAsUser": 1000, "fsGroup": 1000, "runAsNonRoot": True}}}
    of = job(outputs=[{**MODEL, "to": "claim://results/a"}], template=template)
    life = started(of, platform=WITH_DATA)
    made = transfers.upload_pod(of, (of.spec.outputs or [])[0], life.status, WITH_DATA, STORE)
    [container] = made["spec"]["containers"]
    assert made["spec"]["securityContext"]["runAsUser"] == 1000
    assert "runAsUser" not in container["securityContext"]
    assert container["volumeMounts"] == [
        {"name": "allranks-data", "mountPath": "/outputs", "subPath": f"outputs/{UID}"},
        {"name": "allranks-target", "mountPath": "/target", "subPath": "a"},
    ]
    request = json.loads(container["env"][0]["value"])
    assert (request["to"], request["shown"], request["provenance"]["uid"]) == ("/target", "claim://results/a", UID)


@pytest.mark.parametrize(
    ("context", "users", "wanted"),
    [
        ({}, [(1000, 100), (1000, 100)], {"runAsUser": 1000, "runAsGroup": 100}),
        ({"runAsGroup": 7}, [(1000, 100)], {"runAsUser": 1000}),
        ({"runAsUser": 5}, [(5, 0)], {}),
        ({}, [(1000, 100), (1001, 100)], {}),
        ({}, [None], {}),
        ({"runAsNonRoot": False}, [(1000, 100)], {"runAsUser": 1000, "runAsGroup": 100}),
        (
            {"runAsNonRoot": False},
            [(0, 0)],
            {"runAsUser": 0, "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}},
        ),
    ],
)
def test_the_pod_that_uploads_has_the_user_that_the_kubelets_name(
    context: dict[str, Any], users: list[tuple[int, int] | None], wanted: dict[str, Any]
) -> None:
    """If no manifest names one, it is that of the image."""
    of = job(outputs=[MODEL], template={"spec": {"securityContext": context}})
    ranks = [Pod(f"job-worker-{index}-0", "u", "worker", index, 0, user=user) for index, user in enumerate(users)]
    made = transfers.upload_pod(of, (of.spec.outputs or [])[0], Status(), WITH_DATA, STORE, ranks)
    [container] = made["spec"]["containers"]
    usual = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == {**usual, **wanted}


def test_the_files_say_with_which_image_they_were_made() -> None:
    digest = "r/pytorch@sha256:" + "ab" * 32
    life = started(job(outputs=[MODEL], success="All"), platform=WITH_DATA)
    life.put(replace(succeeded(index=0), image_id=digest), replace(succeeded(index=1), image_id=digest))
    plan = life.settle(100)
    life.pods.pop("job-upload-model")
    [made] = [each for each in life.step(101).create if each["kind"] == "Pod"]
    request = json.loads(made["spec"]["containers"][0]["env"][0]["value"])
    assert plan.events == ()
    assert request["provenance"]["programs"]["worker"]["imageIDs"] == [digest]
