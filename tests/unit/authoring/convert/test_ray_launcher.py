"""Files of Ray's cluster launcher (`ray up`) become a Ray cluster without a program, with groups of workers."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from allranks.api.validation import parse
from allranks.authoring.convert.documents import convert
from allranks.authoring.convert.ray_launcher import group_roles
from allranks.core.objects import pods
from support.builders import table

TYPES = """
cluster_name: My_Cluster
max_workers: 4
idle_timeout_minutes: 20
docker:
  image: ray:1
  worker_image: ray:1-gpu
  container_name: ray
provider: {type: aws, region: us-west-2}
auth: {ssh_user: ubuntu}
available_node_types:
  ray.head.default:
    resources: {CPU: 0}
    node_config: {InstanceType: m5.large}
  ray.worker.default:
    min_workers: 1
    max_workers: 3
    resources: {CPU: 4, memory: 8589934592}
    worker_setup_commands: [pip3 install -q einops]
  gpu_p3.2xlarge:
    min_workers: 0
    max_workers: 2
    resources: {CPU: 8, GPU: 1, fast_disk: 1}
    docker: {worker_image: "ray:1-p3"}
  unused: {min_workers: 0, max_workers: 0, node_config: {}}
head_node_type: ray.head.default
setup_commands:
  - pip install -U "ray[tune]" "torch>=2.1" numpy
  - pip install -r requirements.txt
  - sudo apt-get install htop
file_mounts: {/code: ./src}
head_start_ray_commands: [ray stop, "ray start --head --port=6379"]
worker_start_ray_commands: [ray stop, "ulimit -n 65536; ray start --address=$RAY_HEAD_IP:6379", nvidia-smi]
"""
EARLY = """
cluster_name: seed
min_workers: 2
max_workers: 4
docker: {image: "ray:1", container_name: ray}
provider: {type: azure, location: westus2}
head_node: {azure_arm_parameters: {vmSize: Standard_D2s_v3}}
worker_nodes: {azure_arm_parameters: {vmSize: Standard_D2s_v3}}
setup_commands: []
"""


def converted(text: str) -> Any:
    [result] = convert([("cluster.yaml", yaml.safe_load(text))])
    return result


def test_each_node_type_is_a_role_with_its_resources_and_image():
    result = converted(TYPES)
    assert result.name == "Ray cluster My_Cluster"
    [document] = result.documents
    assert document["metadata"]["name"] == "my-cluster"
    spec = document["spec"]
    assert spec["roles"] == {
        "head": {"replicas": 1, "image": "ray:1"},
        "default": {
            "replicas": 1,
            "image": "ray:1-gpu",
            "resources": {"requests": {"cpu": 4}, "limits": {"memory": 8589934592}},
        },
        "gpup32xlarge": {
            "replicas": 2,
            "image": "ray:1-p3",
            "resources": {"requests": {"cpu": 8}, "limits": {"nvidia.com/gpu": 1}},
        },
    }
    assert (spec["ray"], "command" in spec) == ({"idleSeconds": 1200}, False), "a head with CPU: 0 runs no tasks"
    assert spec["packages"] == ["torch>=2.1", "numpy", "einops"]
    assert pods.problems(parse(document)) == []


def test_what_has_no_counterpart_is_named_with_what_to_use_instead():
    dropped = dict(converted(TYPES).draft.dropped)
    assert dropped.keys() == {
        *("provider", "auth", "max_workers", "file_mounts[/code]"),
        *("setup_commands[0]", "setup_commands[1]", "setup_commands[2]", "worker_start_ray_commands"),
        "available_node_types.ray.head.default.node_config",
        "available_node_types.gpu_p3.2xlarge.resources.fast_disk",
    }
    assert "(it was m5.large)" in dropped["available_node_types.ray.head.default.node_config"]
    assert "label ray.io/node-group" in dropped["available_node_types.gpu_p3.2xlarge.resources.fast_disk"]
    assert dropped["setup_commands[0]"] == "the image has Ray: ray[tune] is not installed"
    assert dropped["worker_start_ray_commands"] == "allranks starts Ray: nvidia-smi is not run"


def test_a_file_of_an_early_version_has_one_group_of_workers_and_ends_after_an_idle_hour():
    [document] = converted(EARLY).documents
    assert document["spec"]["roles"] == {"head": {"replicas": 1}, "worker": {"replicas": 2}}
    assert document["spec"]["ray"] == {"headRunsTasks": True, "idleSeconds": 3600}
    assert pods.problems(parse(document)) == []


def test_a_head_type_that_does_not_exist_is_refused():
    result = converted(TYPES.replace("head_node_type: ray.head.default", "head_node_type: head"))
    [(path, message)] = result.problems
    assert path == "head_node_type"
    assert message.startswith("must be one of available_node_types: ray.head.default, ray.worker.default")


@pytest.mark.parametrize("text", ["cluster_name: a", "kind: Pod\ncluster_name: a\nprovider: {}", "provider: {}"])
def test_another_document_stays_as_it_is(text):
    assert converted(text).draft is None


@table(
    ("a single group", ["gpu-group"], ["worker"]),
    ("letters and digits", ["ray.worker.cpu-4", "8x_GPU"], ["cpu4", "group8xgpu"]),
    ("names of other meanings", ["head", "all", ""], ["grouphead", "groupall", "group"]),
    ("names that become equal", ["a-b", "a_b"], ["ab", "ab1"]),
)
def test_the_names_of_groups_are_names_of_roles(case):
    names, roles = case
    assert group_roles(names) == roles


GROUP = """
      - groupName: {name}
        replicas: {replicas}
        template: {{spec: {{containers: [{{name: ray-worker, image: "ray:1"}}]}}}}
"""
RAYJOB = f"""
apiVersion: ray.io/v1
kind: RayJob
metadata: {{name: mnist}}
spec:
  entrypoint: python train.py
  shutdownAfterJobFinishes: true
  rayClusterSpec:
    headGroupSpec:
      template: {{spec: {{containers: [{{name: ray-head, image: "ray:1"}}]}}}}
    workerGroupSpecs:
{GROUP.format(name="cpu-group", replicas=2)}{GROUP.format(name="gpu-group", replicas=1)}
"""


def test_each_group_of_a_RayJob_is_a_role():
    result = converted(RAYJOB)
    roles = result.documents[0]["spec"]["roles"]
    assert {role: spec["replicas"] for role, spec in roles.items()} == {"head": 1, "cpugroup": 2, "gpugroup": 1}
    assert dict(result.draft.comments)["spec", "roles", "gpugroup"].startswith(
        "The group gpu-group. A task chooses it by"
    )
    assert pods.problems(parse(result.documents[0])) == []
