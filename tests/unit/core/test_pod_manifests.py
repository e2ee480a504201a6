"""The objects of an attempt. Small manifests are compared as a whole, others by the field in question."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allranks.api.status import ReplicaRestarts, RoleStatus, Status
from allranks.core.objects import pods
from allranks.core.objects.pods import Objects
from support.builders import CLUSTER, IMAGE, NOW, UID, job, table

OWNER = {
    "apiVersion": "allranks.dev/v1alpha1",
    "kind": "DistributedTraining",
    "name": "job",
    "uid": UID,
    "controller": True,
    "blockOwnerDeletion": True,
}


def objects(status: Status | None = None, **fields: Any) -> Objects:
    return pods.objects(job(**fields), status or Status(), CLUSTER)


def first(**fields: Any) -> dict[str, Any]:
    return objects(**fields).pods[0]


def trainer(manifest: dict[str, Any]) -> dict[str, Any]:
    return next(c for c in manifest["spec"]["containers"] if c["name"] == "trainer")


def environment(manifest: dict[str, Any]) -> dict[str, str | None]:
    """The variables of the program. Kubernetes uses the last one of the same name."""
    return {variable["name"]: variable.get("value") for variable in trainer(manifest)["env"]}


def template(**of_trainer: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", **of_trainer}]}}


# --- the whole ------------------------------------------------------------------------------------------------------


def test_the_smallest_job_has_this_service_and_this_pod():
    made = objects(roles={"worker": 1})
    assert made.companions == [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": "job",
                "namespace": "team",
                "labels": {"allranks.dev/job-name": "job", "app.kubernetes.io/managed-by": "allranks"},
                "ownerReferences": [OWNER],
            },
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {"allranks.dev/job-name": "job"},
            },
        }
    ]
    assert made.pods == [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "job-worker-0-0",
                "namespace": "team",
                "labels": {
                    "allranks.dev/job-name": "job",
                    "allranks.dev/role": "worker",
                    "allranks.dev/index": "0",
                    "allranks.dev/attempt": "0",
                    "app.kubernetes.io/managed-by": "allranks",
                    "sidecar.istio.io/inject": "false",
                },
                "annotations": {
                    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                    "karpenter.sh/do-not-disrupt": "true",
                    "sidecar.istio.io/inject": "false",
                    "linkerd.io/inject": "disabled",
                },
                "ownerReferences": [OWNER],
            },
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "hostname": "job-worker-0-0",
                "subdomain": "job",
                "containers": [
                    {
                        "name": "trainer",
                        "image": IMAGE,
                        "command": ["python3", "train.py"],
                        "terminationMessagePolicy": "FallbackToLogsOnError",
                        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                        "ports": [{"name": "rendezvous", "containerPort": 29500}],
                        "volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm"}],
                        "env": [
                            {"name": name, "value": value}
                            for name, value in {
                                "ALLRANKS_JOB": "job",
                                "ALLRANKS_JOB_UID": UID,
                                "ALLRANKS_ROLE": "worker",
                                "ALLRANKS_INDEX": "0",
                                "ALLRANKS_ATTEMPT": "0",
                                "MASTER_ADDR": "job-worker-0-0.job.team.svc",
                                "MASTER_PORT": "29500",
                                "NNODES": "1",
                                "PET_MASTER_ADDR": "job-worker-0-0.job.team.svc",
                                "PET_MASTER_PORT": "29500",
                                "PET_NNODES": "1",
                                "NODE_RANK": "0",
                                "NPROC_PER_NODE": "1",
                                "PET_NODE_RANK": "0",
                                "PET_NPROC_PER_NODE": "1",
                                "WORLD_SIZE": "1",
                                "RANK": "0",
                                "LOCAL_RANK": "0",
                                "LOCAL_WORLD_SIZE": "1",
                                "PYTHONUNBUFFERED": "1",
                                "PYTHONHASHSEED": "1193985894",
                                "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
                                "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
                                "TORCH_FR_BUFFER_SIZE": "2000",
                                "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "25",
                            }.items()
                        ],
                    }
                ],
                "volumes": [{"name": "dshm", "emptyDir": {"medium": "Memory"}}],
            },
        }
    ]


def test_building_the_objects_twice_gives_the_same_result_and_does_not_change_the_job():
    of = job(template=template(env=[{"name": "X", "value": "1"}]), roles={"master": 1, "worker": 2})
    before = of.model_dump()
    assert pods.objects(of, Status(), CLUSTER) == pods.objects(of, Status(), CLUSTER)
    assert of.model_dump() == before


# --- names, labels, owners -------------------------------------------------------------------------------------------


def test_pods_are_named_job_role_index_attempt():
    made = objects(Status(attempt=2), roles={"master": 1, "worker": 2})
    assert [pod["metadata"]["name"] for pod in made.pods] == ["job-master-0-2", "job-worker-0-2", "job-worker-1-2"]


def test_every_object_is_owned_by_the_job_and_in_its_namespace():
    made = objects(framework="horovod", roles={"worker": 2, "launcher": 1}, horovod={"controller": "MPI"})
    everything = [*made.companions, *made.pods]
    assert {thing["kind"] for thing in everything} == {"Service", "ConfigMap", "Secret", "Pod"}
    for thing in everything:
        assert thing["metadata"]["ownerReferences"] == [OWNER]
        assert thing["metadata"]["namespace"] == "team"


def test_no_host_name_is_longer_than_63_characters():
    of = job(framework="tensorflow", roles={"chief": 1, "evaluator": 1}, name="j" * 42)
    made = pods.objects(of, Status(attempt=9_999), CLUSTER)
    assert max(len(pod["spec"]["hostname"]) for pod in made.pods) <= 63
    assert max(len(value) for pod in made.pods for value in pod["metadata"]["labels"].values()) <= 63


def test_a_replica_restarted_alone_has_a_new_name_and_the_old_address():
    restarted = Status(replica_restarts={"ps-0": ReplicaRestarts(count=2, restart_time=NOW)})
    roles = {"chief": 1, "ps": 1}
    before, after = (
        objects(framework="tensorflow", roles=roles),
        objects(restarted, framework="tensorflow", roles=roles),
    )
    assert after.pods[0] == before.pods[0], "what runs is left alone"
    assert after.pods[1]["metadata"]["name"] == "job-ps-0-0-2"
    assert after.pods[1]["metadata"]["labels"]["allranks.dev/restart"] == "2"
    assert after.pods[1]["spec"] == before.pods[1]["spec"]


def test_an_attempt_keeps_its_initial_size():
    began = Status(roles={"worker": RoleStatus(desired=3)})
    assert len(objects(began, roles={"worker": 2}).pods) == 3


# --- the training container: job, role and template -----------------------------------------------------------------

# Sentence, job's fields, worker's fields, these fields of the worker's training container.
LAYERS = [
    ("the job's image is used by every role", {}, {}, {"image": IMAGE}),
    ("a role's image overrides the job's", {}, {"image": "me/worker:1"}, {"image": "me/worker:1"}),
    ("an image in the template is enough", {"image": None, "template": template(image="t:1")}, {}, {"image": "t:1"}),
    ("the job's image overrides the template's", {"template": template(image="t:1")}, {}, {"image": IMAGE}),
    (
        "a role's command does not take the job's arguments",
        {"command": ["a"], "args": ["--for=a"]},
        {"command": ["b"]},
        {"command": ["b"], "args": None},
    ),
    (
        "a role's arguments are appended to the job's command",
        {"command": ["a"], "args": ["--x"]},
        {"args": ["--y"]},
        {"command": ["a"], "args": ["--y"]},
    ),
    (
        "a role's resources merge over the job's by name",
        {"resources": {"limits": {"memory": "1Gi", "cpu": 2}}},
        {"resources": {"limits": {"cpu": 4}}},
        {"resources": {"limits": {"memory": "1Gi", "cpu": 4}}},
    ),
    (
        "a role's working directory overrides the job's",
        {"workingDir": "/a"},
        {"workingDir": "/b"},
        {"workingDir": "/b"},
    ),
    (
        "the role's template is merged over the job's",
        {"template": template(imagePullPolicy="Always", tty=True)},
        {"template": template(imagePullPolicy="Never")},
        {"imagePullPolicy": "Never", "tty": True},
    ),
]


@table(*LAYERS)
def test_layers(case):
    of_job, of_role, expected = case
    fields = {key: value for key, value in of_job.items() if value is not None}
    document = {"roles": {"worker": {"replicas": 1, **of_role}}, **fields}
    of = job(**document) if "image" not in of_job else _without_image(document)
    made = trainer(pods.objects(of, Status(), CLUSTER).pods[0])
    assert {key: made.get(key) for key in expected} == expected


def _without_image(document: dict[str, Any]) -> Any:
    of = job(**document)
    return of.model_copy(update={"spec": of.spec.model_copy(update={"image": None})})


# Sentence, job's env, role's env, template's env, variables of the program.
ENVIRONMENTS = [
    ("the job's variables are set for every role", [("X", "1")], [], [], {"X": "1"}),
    ("a role's variable overrides the job's", [("X", "1")], [("X", "2")], [], {"X": "2"}),
    ("the template's variables are kept", [("X", "1")], [], [("Y", "2")], {"X": "1", "Y": "2"}),
    ("the job's variable overrides the template's", [("X", "1")], [], [("X", "2")], {"X": "1"}),
    ("PYTHONUNBUFFERED is set", [], [], [], {"PYTHONUNBUFFERED": "1"}),
    (
        "the seed of hashes that the user sets overrides that of the job",
        [("PYTHONHASHSEED", "0")],
        [],
        [],
        {"PYTHONHASHSEED": "0"},
    ),
    (
        "a variable that the user sets overrides the default",
        [("PYTHONUNBUFFERED", "0")],
        [],
        [],
        {"PYTHONUNBUFFERED": "0"},
    ),
    (
        "a variable that the user sets for a role overrides the default",
        [],
        [("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")],
        [],
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_FR_BUFFER_SIZE": "2000"},
    ),
    (
        "a variable that the user sets in the template overrides the default",
        [],
        [],
        [("TORCH_FR_BUFFER_SIZE", "0")],
        {"TORCH_FR_BUFFER_SIZE": "0"},
    ),
    (
        "a proxy is not used between the pods of the job",
        [("https_proxy", "http://proxy:3128")],
        [],
        [("no_proxy", "intranet")],
        {
            "no_proxy": "intranet,.job.team.svc,.svc,.cluster.local,localhost,127.0.0.1",
            "NO_PROXY": "intranet,.job.team.svc,.svc,.cluster.local,localhost,127.0.0.1",
            "no_grpc_proxy": "intranet,.job.team.svc,.svc,.cluster.local,localhost,127.0.0.1",
        },
    ),
    ("without a proxy there are no exceptions", [("X", "1")], [], [], {"no_proxy": None, "NO_PROXY": None}),
]


@table(*ENVIRONMENTS)
def test_environment(case):
    of_job, of_role, of_template, expected = case

    def env(pairs):
        return [{"name": name, "value": value} for name, value in pairs]

    made = first(
        env=env(of_job),
        roles={"worker": {"replicas": 1, "env": env(of_role)}},
        template=template(env=env(of_template)),
    )
    found = environment(made)
    assert {name: found.get(name) for name in expected} == expected
    assert len(found) == len(trainer(made)["env"]), "no variable is there twice"


@pytest.mark.parametrize(
    "fields",
    [
        {"roles": {"master": 1, "worker": 1}},
        {"framework": "tensorflow", "roles": {"chief": 1, "worker": 1, "ps": 1, "evaluator": 1}},
        {"framework": "horovod", "roles": {"worker": 2}},
        {"framework": "horovod", "roles": {"worker": 1, "launcher": 1}, "horovod": {"controller": "MPI"}},
    ],
    ids=["pytorch", "tensorflow", "horovod with gloo", "horovod with mpi"],
)
def test_every_pod_has_job_role_index_attempt_and_checkpoint_directory_in_variables(fields):
    made = objects(Status(attempt=4), checkpoint={"claim": "runs", "path": "/keep"}, **fields)
    for pod in made.pods:
        labels, found = pod["metadata"]["labels"], environment(pod)
        assert {name: value for name, value in found.items() if (name or "").startswith("ALLRANKS_")}.items() >= {
            "ALLRANKS_JOB": "job",
            "ALLRANKS_JOB_UID": UID,
            "ALLRANKS_ROLE": labels["allranks.dev/role"],
            "ALLRANKS_INDEX": labels["allranks.dev/index"],
            "ALLRANKS_ATTEMPT": "4",
            "ALLRANKS_CHECKPOINT_DIR": "/keep",
        }.items()
        assert found["PYTHONUNBUFFERED"] == "1"
        assert {"name": "checkpoint", "mountPath": "/keep"} in trainer(pod)["volumeMounts"]
        assert {"name": "checkpoint", "persistentVolumeClaim": {"claimName": "runs"}} in pod["spec"]["volumes"]
        assert {"name": "dshm", "mountPath": "/dev/shm"} in trainer(pod)["volumeMounts"]
        assert {"name": "dshm", "emptyDir": {"medium": "Memory"}} in pod["spec"]["volumes"]
        assert trainer(pod)["terminationMessagePolicy"] == "FallbackToLogsOnError"
        assert pod["spec"]["automountServiceAccountToken"] is False


# --- defaults below the user's template -----------------------------------------------------------------------------

# Sentence, pod spec in the template, field of the pod's spec, its value.
POD_SPECS = [
    ("pods are never restarted in place", {}, "restartPolicy", "Never"),
    ("the template can request restarts in place", {"restartPolicy": "OnFailure"}, "restartPolicy", "OnFailure"),
    (
        "pods run as non-root with the runtime's seccomp profile",
        {},
        "securityContext",
        {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    ),
    (
        "the template's security context is merged over the default",
        {"securityContext": {"runAsNonRoot": False, "fsGroup": 7}},
        "securityContext",
        {"runAsNonRoot": False, "fsGroup": 7, "seccompProfile": {"type": "RuntimeDefault"}},
    ),
    ("the template can request a token", {"automountServiceAccountToken": True}, "automountServiceAccountToken", True),
    ("a node selector is passed on", {"nodeSelector": {"gpu": "h100"}}, "nodeSelector", {"gpu": "h100"}),
    (
        "pods on the host's network resolve names of the cluster",
        {"hostNetwork": True},
        "dnsPolicy",
        "ClusterFirstWithHostNet",
    ),
    ("a DNS policy of the template is kept", {"hostNetwork": True, "dnsPolicy": "None"}, "dnsPolicy", "None"),
    ("other pods have the default", {}, "dnsPolicy", None),
    ("without GPUs there is no toleration", {}, "tolerations", None),
    ("a toleration of the template is kept", {"tolerations": [{"key": "a"}]}, "tolerations", [{"key": "a"}]),
    ("the template's init containers are kept", {"initContainers": [{"name": "i"}]}, "initContainers", [{"name": "i"}]),
    (
        "the template's volumes are kept",
        {"volumes": [{"name": "data", "emptyDir": {}}]},
        "volumes",
        [{"name": "data", "emptyDir": {}}, {"name": "dshm", "emptyDir": {"medium": "Memory"}}],
    ),
    ("the template cannot set the host name", {"hostname": "mine"}, "hostname", "job-worker-0-0"),
    ("the template cannot set the subdomain", {"subdomain": "mine"}, "subdomain", "job"),
]


@table(*POD_SPECS)
def test_pod_spec(case):
    spec, field, value = case
    assert first(template={"spec": spec})["spec"].get(field) == value


TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
GPU = {"limits": {"nvidia.com/gpu": 1}}

# Sentence, tolerations in the template, tolerations of a pod with a GPU.
TOLERATIONS = [
    ("a pod with a GPU tolerates the taint of GPU nodes", None, [TOLERATION]),
    ("the template's tolerations are kept", [{"key": "a"}], [{"key": "a"}, TOLERATION]),
    ("the taint is tolerated once", [TOLERATION], [TOLERATION]),
]


@table(*TOLERATIONS)
def test_tolerations(case):
    own, expected = case
    spec = {"spec": {"tolerations": own}} if own else {}
    assert first(resources=GPU, template=spec)["spec"]["tolerations"] == expected


LOST = [
    {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    for key in ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
]
OWN = {"key": LOST[0]["key"], "operator": "Exists", "tolerationSeconds": 900}
ALL = {"operator": "Exists"}
SCHEDULING = {"key": LOST[0]["key"], "operator": "Exists", "effect": "NoSchedule"}

# Sentence, tolerations in the template, tolerations of a pod with node_lost_seconds 30.
NODE_LOST = [
    ("a lost node is tolerated for 30 s", [], LOST),
    ("the template's own toleration is kept", [OWN], [OWN, LOST[1]]),
    ("a toleration of all taints is kept", [ALL], [ALL]),
    ("a toleration of NoSchedule is not one of NoExecute", [SCHEDULING], [SCHEDULING, *LOST]),
]


@table(*NODE_LOST)
def test_node_lost(case):
    own, expected = case
    platform = replace(CLUSTER, node_lost_seconds=30)
    [pod] = pods.objects(job(roles={"worker": 1}, template={"spec": {"tolerations": own}}), Status(), platform).pods
    assert pod["spec"]["tolerations"] == expected


def test_the_security_context_of_the_trainer_is_merged_over_the_restricted_one():
    made = trainer(first(template=template(securityContext={"runAsUser": 7, "capabilities": {"add": ["IPC_LOCK"]}})))
    assert made["securityContext"] == {
        "runAsUser": 7,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    }


def test_the_users_own_dev_shm_is_kept():
    own = {"name": "mine", "mountPath": "/dev/shm"}
    spec = template(volumeMounts=[own])
    spec["spec"]["volumes"] = [{"name": "mine", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]
    made = first(template=spec)
    assert trainer(made)["volumeMounts"] == [own]
    assert made["spec"]["volumes"] == spec["spec"]["volumes"]


def test_sidecars_get_only_the_security_context_of_their_pod():
    sidecar = {"name": "logs", "image": "logs:1", "env": [{"name": "RANK", "value": "x"}]}
    made = first(template={"spec": {"containers": [sidecar]}})
    assert [container["name"] for container in made["spec"]["containers"]] == ["trainer", "logs"]
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert made["spec"]["containers"][1] == {**sidecar, "securityContext": restricted}


def test_labels_and_annotations_of_the_template_are_kept_except_reserved_labels():
    mine = {"labels": {"team": "birds", "allranks.dev/role": "queen"}, "annotations": {"note": "n"}}
    metadata = first(template={"metadata": mine})["metadata"]
    assert metadata["annotations"]["note"] == "n"
    assert metadata["labels"]["team"] == "birds"
    assert metadata["labels"]["allranks.dev/role"] == "worker"


CLUSTER_AUTOSCALER, KARPENTER = "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"
ISTIO, LINKERD = "sidecar.istio.io/inject", "linkerd.io/inject"


@table(
    ("nothing set: no eviction, no sidecar", {}, {}, ("false", "true"), ("false", "false"), "disabled"),
    (
        "the template permits eviction",
        {},
        {CLUSTER_AUTOSCALER: "true", KARPENTER: "false"},
        ("true", "false"),
        ("false", "false"),
        "disabled",
    ),
    ("the template's label asks for Istio", {ISTIO: "true"}, {}, ("false", "true"), ("true", None), "disabled"),
    ("the template's annotation asks for Istio", {}, {ISTIO: "true"}, ("false", "true"), (None, "true"), "disabled"),
    (
        "the template selects a revision of Istio",
        {"istio.io/rev": "canary"},
        {},
        ("false", "true"),
        (None, None),
        "disabled",
    ),
    ("the template asks for Linkerd", {}, {LINKERD: "enabled"}, ("false", "true"), ("false", "false"), "enabled"),
)
def test_autoscalers_and_meshes_leave_training_pods_alone_unless_the_template_says_otherwise(case):
    labels, annotations, (evict, disrupt), istio, linkerd = case
    metadata = first(template={"metadata": {"labels": labels, "annotations": annotations}})["metadata"]
    assert (metadata["annotations"][CLUSTER_AUTOSCALER], metadata["annotations"][KARPENTER]) == (evict, disrupt)
    assert (metadata["labels"].get(ISTIO), metadata["annotations"].get(ISTIO)) == istio
    assert metadata["annotations"][LINKERD] == linkerd


def test_a_port_that_the_user_declares_is_not_duplicated():
    own = {"containerPort": 29500, "name": "mine"}
    assert trainer(first(template=template(ports=[own])))["ports"] == [own]


def test_priority_class_and_topology_key_place_the_pods():
    spec = first(scheduling={"priorityClassName": "urgent", "topologyKey": "rack"})["spec"]
    assert spec["priorityClassName"] == "urgent"
    assert spec["affinity"] == {
        "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "rack", "labelSelector": {"matchLabels": {"allranks.dev/job-name": "job"}}}
            ]
        }
    }


def test_a_checkpoint_can_be_any_volume():
    made = first(checkpoint={"volume": {"nfs": {"server": "nas", "path": "/runs"}}})
    assert {"name": "checkpoint", "nfs": {"server": "nas", "path": "/runs"}} in made["spec"]["volumes"]
    assert {"name": "checkpoint", "mountPath": "/checkpoints"} in trainer(made)["volumeMounts"]


def test_a_pod_without_a_token_or_root_gets_its_helper_from_an_init_container():
    made = first(framework="horovod", roles={"worker": 1})
    assert made["spec"]["initContainers"] == [
        {
            "name": "allranks-helper",
            "image": "helper:1",
            "command": ["allranks", "inject", "/allranks"],
            "volumeMounts": [{"name": "allranks-helper", "mountPath": "/allranks"}],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ]
    assert trainer(made)["command"] == ["python3", "/allranks/horovod_gloo.py", "python3", "train.py"]


# Sentence, the trainer's resources, the helper's.
HELPER_RESOURCES = [
    (
        "Guaranteed",
        {"limits": {"cpu": 8, "memory": "64Gi", "nvidia.com/gpu": 4}},
        {"limits": {"cpu": 8, "memory": "64Gi"}},
    ),
    (
        "Guaranteed, with requests",
        {"limits": {"cpu": "4", "memory": "1Gi"}, "requests": {"cpu": "4", "memory": "1Gi"}},
        {"limits": {"cpu": "4", "memory": "1Gi"}, "requests": {"cpu": "4", "memory": "1Gi"}},
    ),
    ("Burstable", {"requests": {"cpu": "4"}}, {"requests": {"cpu": "4"}}),
    ("BestEffort", {"limits": {"nvidia.com/gpu": 1}}, None),
]


@table(*HELPER_RESOURCES)
def test_the_helper_keeps_the_qos_class_and_takes_nothing_from_a_quota(case):
    resources, expected = case
    [helper] = first(framework="horovod", roles={"worker": 1}, resources=resources)["spec"]["initContainers"]
    assert helper.get("resources") == expected


def test_a_template_merges_into_the_helper_by_name():
    own = [{"name": "fetch", "image": "f"}, {"name": "allranks-helper", "resources": {"limits": {"cpu": "1"}}}]
    spec = {"template": {"spec": {"initContainers": own}}, "roles": {"worker": 1}}
    helper, fetch = first(framework="horovod", **spec)["spec"]["initContainers"]
    assert (helper["name"], helper["image"]) == ("allranks-helper", "helper:1")
    assert helper["resources"] == {"limits": {"cpu": "1"}}
    assert (fetch["name"], fetch["image"]) == ("fetch", "f")
    assert first(**spec)["spec"]["initContainers"] == [fetch]  # no helper, nothing to merge into


def test_pods_with_a_helper_get_the_secrets_for_pulling_its_image():
    platform = replace(CLUSTER, helper_pull_secrets=("mirror", "own"))
    template = {"spec": {"imagePullSecrets": [{"name": "own"}]}}
    helped = job("horovod", roles={"worker": 1}, template=template)
    [pod] = pods.objects(helped, Status(), platform).pods
    assert pod["spec"]["imagePullSecrets"] == [{"name": "own"}, {"name": "mirror"}]
    [plain] = pods.objects(job(roles={"worker": 1}), Status(), platform).pods
    assert "imagePullSecrets" not in plain["spec"]


# --- problems that no schema finds -----------------------------------------------------------------------------------

# Sentence, job, problems.
PROBLEMS = [
    ("a plain job has none", {}, []),
    (
        "a reserved variable in the template is rejected",
        {"template": template(env=[{"name": "MASTER_ADDR", "value": "x"}])},
        [("spec.template.spec.containers[trainer].env", "MASTER_ADDR is set by allranks: remove it")],
    ),
    (
        "a variable that begins with ALLRANKS_ in a role's template is rejected",
        {"roles": {"worker": {"template": template(env=[{"name": "ALLRANKS_JOB", "value": "x"}])}}},
        [("spec.roles.worker.template.spec.containers[trainer].env", "ALLRANKS_JOB is set by allranks: remove it")],
    ),
    (
        "another framework's variable is accepted",
        {"template": template(env=[{"name": "TF_CONFIG", "value": "x"}])},
        [],
    ),
    (
        "restartPolicy Always of the training container is rejected",
        {"template": {"spec": {"containers": [{"name": "trainer", "restartPolicy": "Always"}]}}},
        [
            (
                "spec.template.spec.containers[trainer].restartPolicy",
                "must be Never or OnFailure: with Always a finished rank would run again",
            )
        ],
    ),
    (
        "a sidecar may have restartPolicy Always",
        {"template": {"spec": {"containers": [{"name": "proxy", "image": "p", "restartPolicy": "Always"}]}}},
        [],
    ),
    (
        "restartPolicy Always is rejected",
        {"template": {"spec": {"restartPolicy": "Always"}}},
        [
            (
                "spec.template.spec.restartPolicy",
                "must be Never or OnFailure: with Always a finished rank would run again",
            )
        ],
    ),
    (
        "Horovod with gloo needs a command, because the image's entrypoint is unknown",
        {"framework": "horovod", "command": None},
        [
            (
                "spec.roles.worker.command",
                "a command is needed: allranks starts it through a helper and cannot read the image's entrypoint",
            )
        ],
    ),
    ("PyTorch needs no command", {"command": None}, []),
]


@table(*PROBLEMS)
def test_problems(case):
    fields, expected = case
    of = job(**{key: value for key, value in fields.items() if value is not None})
    if "command" in fields:
        of = of.model_copy(update={"spec": of.spec.model_copy(update={"command": None})})
    assert pods.problems(of) == expected


def test_a_role_without_an_image_is_rejected():
    of = job(template={"metadata": {"labels": {"a": "b"}}})
    of = of.model_copy(update={"spec": of.spec.model_copy(update={"image": None})})
    assert pods.problems(of) == [
        (
            "spec.roles.worker.image",
            "an image is needed, here, in spec.image or in the container trainer of the template",
        )
    ]


@pytest.mark.parametrize(
    "empty",
    [{"spec": None}, {"metadata": None}, {"spec": {"containers": None}}, template(env=None), template(ports=None)],
    ids=["spec", "metadata", "containers", "env", "ports"],
)
def test_a_null_in_a_template_is_ignored(empty):
    assert pods.problems(job(template=empty)) == []
    assert objects(template=empty) == objects()
