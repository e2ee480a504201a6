"""Rendered objects of the chart: valid, restricted, and with no more rights than needed."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from allranks.api.pool import DataPods
from allranks.cli.commands.operator_frontend import operator_frontend
from allranks.core.facts.data_store import DEFAULT_RESOURCES
from allranks.core.facts.policy import Policy
from allranks.operator import health_check
from allranks.operator.settings import Settings
from allranks.telemetry.server import PATH as REPORT_PATH
from support.helm import CHART, ROOT, Helm, HelmError, Manifest, built

INSTALL = ROOT / "docs" / "platform" / "install.md"

pytestmark = pytest.mark.cluster

ALL = {
    "metrics": {
        "monitor": {"kind": "PodMonitor"},
        "rules": {"enabled": True},
        "dashboard": {"enabled": True},
    },
    "networkPolicy": {"enabled": True},
    "pools": {"create": {"a100": {"gpu": {"count": 8}}}},
}
RELEASES: dict[str, Manifest] = {
    "defaults": {},
    "high availability": {"replicas": 3},
    "namespaces": {"namespaces": ["team-a", "team-b"]},
    "namespaces without CRDs": {"namespaces": ["team-a"], "crds": {"enabled": False}},
    "namespaces with pools": {"namespaces": ["team-a"], "pools": {"enabled": True}},
    "namespaces with reports": {"namespaces": ["team-a"], "reports": {"enabled": True}},
    "queues": {"queues": {"enabled": True}},
    "gangs": {"gangs": {"enabled": True}},
    "no reports": {"reports": {"enabled": False}, "networkPolicy": {"enabled": True}},
    "everything": {"replicas": 2, **ALL},
    "service monitor": {"metrics": {"monitor": {"kind": "ServiceMonitor"}}},
    "metrics with authentication": {"metrics": {"authentication": True, "monitor": {"kind": "ServiceMonitor"}}},
    "no roles": {"rbac": {"create": False}, "serviceAccount": {"create": False, "name": "own"}},
}
CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "TrainingPool"}


@pytest.fixture(params=RELEASES, scope="module")
def release(request: pytest.FixtureRequest, helm: Helm) -> list[Manifest]:
    return helm.template(RELEASES[request.param])


def of_kind(objects: list[Manifest], *kinds: str) -> list[Manifest]:
    return [manifest for manifest in objects if manifest["kind"] in kinds]


def pods(objects: list[Manifest]) -> list[Manifest]:
    templates = [deployment["spec"]["template"] for deployment in of_kind(objects, "Deployment")]
    return templates + of_kind(objects, "Pod")


def environment(objects: list[Manifest]) -> dict[str, str | None]:
    """Variables of the operator that have plain values."""
    return {variable["name"]: variable.get("value") for variable in containers(objects)["operator"]["env"]}


def containers(objects: list[Manifest]) -> dict[str, Manifest]:
    """Those of the Deployment by their names."""
    [deployment] = of_kind(objects, "Deployment")
    return {container["name"]: container for container in deployment["spec"]["template"]["spec"]["containers"]}


def rules(objects: list[Manifest]) -> list[Manifest]:
    """Rules of all roles that the operator is bound to."""
    return [
        rule
        for role in of_kind(objects, "Role", "ClusterRole")
        if not any("aggregate-to" in label for label in role["metadata"]["labels"])
        for rule in role["rules"]
    ]


def test_lint_finds_nothing(helm: Helm) -> None:
    for values in RELEASES.values():
        assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), values=values)


def test_unit_tests_of_the_chart_pass(tmp_path: Path) -> None:
    command = [built("untt"), CHART]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={"HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_object_has_a_unique_name_the_charts_labels_and_a_namespace_if_namespaced(
    release: list[Manifest],
) -> None:
    keys = set()
    for manifest in release:
        metadata = manifest["metadata"]
        key = (manifest["kind"], metadata.get("namespace"), metadata["name"])
        assert key not in keys
        keys.add(key)
        assert metadata["labels"]["app.kubernetes.io/instance"] == "allranks", key
        assert ("namespace" in metadata) == (manifest["kind"] not in CLUSTER_SCOPED), key


def test_every_pod_satisfies_the_restricted_standard(release: list[Manifest]) -> None:
    for pod in pods(release):
        spec = pod["spec"]
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }
            assert container["resources"]["requests"]
            assert container["resources"]["limits"]
        assert {"hostNetwork", "hostPID", "hostIPC"}.isdisjoint(spec)
        for volume in spec.get("volumes", ()):
            assert volume["emptyDir"]["sizeLimit"] if volume["name"] != "token" else "projected" in volume


def test_only_the_operators_container_gets_a_token_and_it_opens_no_port(release: list[Manifest]) -> None:
    assert all(account["automountServiceAccountToken"] is False for account in of_kind(release, "ServiceAccount"))
    with_token = []
    for pod in pods(release):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert not spec.get("initContainers")
        assert not spec.get("shareProcessNamespace"), "a process could read the token of another"
        tokens = {volume["name"] for volume in spec.get("volumes", ()) if "emptyDir" not in volume}
        with_token += [
            container
            for container in spec["containers"]
            if any(mount["name"] in tokens for mount in container.get("volumeMounts", ()))
        ]
    [container] = with_token
    assert (container["name"], container["command"]) == ("operator", ["allranks", "operator"])
    assert "ports" not in container
    [mount] = [mount for mount in container["volumeMounts"] if mount["name"] == "token"]
    assert mount == {
        "name": "token",
        "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
        "readOnly": True,
    }


def test_the_token_has_the_files_that_the_operator_reads(release: list[Manifest]) -> None:
    [deployment] = of_kind(release, "Deployment")
    [volume] = [v for v in deployment["spec"]["template"]["spec"]["volumes"] if v["name"] == "token"]
    files = set()
    for source in volume["projected"]["sources"]:
        [(kind, content)] = source.items()
        files |= {content["path"]} if kind == "serviceAccountToken" else {item["path"] for item in content["items"]}
    assert files == {"token", "ca.crt", "namespace"}


def test_the_frontend_connects_to_the_socket_of_the_operator_and_cannot_replace_it(release: list[Manifest]) -> None:
    frontend = containers(release)["frontend"]
    variables = {variable["name"]: variable["value"] for variable in frontend["env"]}
    operator = environment(release)
    socket = Path(str(operator["ALLRANKS_SOCKET"]))
    assert variables["ALLRANKS_SOCKET"] == str(socket)
    assert frontend["volumeMounts"] == [{"name": "socket", "mountPath": str(socket.parent), "readOnly": True}]
    mounts = {mount["mountPath"]: mount["name"] for mount in containers(release)["operator"]["volumeMounts"]}
    assert mounts[str(socket.parent)] == "socket"
    check = str(operator["ALLRANKS_CHECK_SOCKET"])
    assert mounts[str(Path(check).parent)] == "tmp", "the frontend does not mount it"
    # Each option of the frontend is set here, and each variable is one of its options.
    options = {option.envvar for option in operator_frontend.params if option.name != "help"}
    assert options - {"ALLRANKS_ADDRESS"} == set(variables) | {"ALLRANKS_REPORT_PORT"}
    assert ("ALLRANKS_REPORT_PORT" in variables) == bool(operator["ALLRANKS_REPORT_URL"])
    assert operator["ALLRANKS_LOG_LEVEL"] == variables["ALLRANKS_LOG_LEVEL"]


ALLOWED = {
    ("allranks.dev", "distributedtrainings"): {"get", "list", "watch", "create", "patch", "delete"},
    ("allranks.dev", "distributedtrainings/status"): {"patch"},
    ("allranks.dev", "distributedtrainings/finalizers"): {"update"},
    ("allranks.dev", "trainingpools"): {"get", "list", "watch"},
    ("allranks.dev", "trainingsweeps"): {"get", "list", "watch"},
    ("allranks.dev", "trainingsweeps/status"): {"patch"},
    ("allranks.dev", "trainingsweeps/finalizers"): {"update"},
    ("", "pods"): {"create", "get", "list", "watch", "delete"},
    ("", "services"): {"create", "get"},
    ("", "configmaps"): {"create", "get", "delete"},
    ("", "secrets"): {"create"},
    ("", "namespaces"): {"get"},
    ("", "nodes"): {"list", "watch"},
    ("", "events"): {"create", "patch"},
    ("networking.k8s.io", "networkpolicies"): {"create", "get"},
    ("policy", "poddisruptionbudgets"): {"create", "get"},
    ("coordination.k8s.io", "leases"): {"create", "get", "update"},
    ("authentication.k8s.io", "tokenreviews"): {"create"},
    ("apiextensions.k8s.io", "customresourcedefinitions"): {"get"},
}
"""All rights of the operator."""
FULL: Manifest = {"replicas": 2, "networkPolicy": {"jobs": True}, "podDisruptionBudget": {"jobs": True}}
QUEUES = {
    ("kueue.x-k8s.io", "workloads"): {"create", "get", "list", "watch", "patch", "delete"},
    ("kueue.x-k8s.io", "workloads/status"): {"patch"},
    ("kueue.x-k8s.io", "localqueues"): {"get", "list", "watch"},
    ("kueue.x-k8s.io", "resourceflavors"): {"get", "list", "watch"},
    ("kueue.x-k8s.io", "workloadpriorityclasses"): {"get", "list", "watch"},
    ("scheduling.k8s.io", "priorityclasses"): {"get", "list", "watch"},
}
GANGS = {
    (group, "podgroups"): {"create", "get", "list", "watch", "delete"}
    for group in ("scheduling.k8s.io", "scheduling.volcano.sh", "scheduling.x-k8s.io")
}
OPTIONAL = QUEUES | GANGS | {("authorization.k8s.io", "subjectaccessreviews"): {"create"}}
"""With queues.enabled, with gangs.enabled, and with metrics.authentication."""


def test_names_that_yaml_takes_for_other_types_stay_texts(helm: Helm) -> None:
    names = ["y", "on", "no", "100", "1e3"]
    values = {"pools": {"create": {name: {"gpu": {"count": 8}} for name in names}}, "priorityClassName": "100"}
    objects = helm.template(values, namespace="1e3")
    assert sorted(of["metadata"]["name"] for of in of_kind(objects, "TrainingPool")) == sorted(names)
    assert {type(of["metadata"].get("namespace", "")) for of in objects} == {str}
    assert {of["spec"].get("priorityClassName", "100") for of in pods(objects)} == {"100"}


def granted(objects: list[Manifest]) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for rule in rules(objects):
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def test_the_operator_has_exactly_the_rights_that_it_needs(helm: Helm) -> None:
    assert granted(helm.template(FULL)) == ALLOWED


@pytest.mark.parametrize(
    ("enabled", "jobs", "creates"), [(False, None, False), (True, None, True), (True, False, False)]
)
def test_policies_of_jobs_follow_the_charts_own_policy_unless_set(helm: Helm, enabled, jobs, creates) -> None:
    made = helm.template({"networkPolicy": {"enabled": enabled, "jobs": jobs}})
    assert (("networking.k8s.io", "networkpolicies") in granted(made)) is creates
    assert environment(made)["ALLRANKS_NETWORK_POLICIES"] == str(creates).lower()


def test_namespaces_are_read_unless_the_policy_is_operator_wide_only(helm: Helm) -> None:
    confined = helm.template({"namespaces": ["team-a"]})
    assert granted(confined)[("", "namespaces")] == {"get"}
    assert {role["kind"] for role in confined if role["kind"].endswith("Role")} == {"Role"}
    made = helm.template({"policy": {"readNamespaces": False}})
    assert ("", "namespaces") not in granted(made)
    assert environment(made)["ALLRANKS_NAMESPACE_POLICIES"] == "false"


def test_nodes_are_watched_with_exactly_the_right_for_it(helm: Helm) -> None:
    assert environment(helm.template())["ALLRANKS_NODE_CONDITIONS"].split(",") == list(Settings().node_conditions)
    assert environment(helm.template())["ALLRANKS_NODE_TAINTS"].split(",") == list(Settings().node_taints)
    for values in ({"nodeHealth": {"enabled": False}}, {"namespaces": ["team-a"]}):
        release = helm.template(values)
        assert ("", "nodes") not in granted(release)
        assert environment(release)["ALLRANKS_NODE_CONDITIONS"] == environment(release)["ALLRANKS_NODE_TAINTS"] == ""
    confined = helm.template({"namespaces": ["team-a"], "nodeHealth": {"enabled": True}})
    assert granted(confined)[("", "nodes")] == {"list", "watch"}


def test_queues_come_with_exactly_the_rights_that_they_need(helm: Helm) -> None:
    made = helm.template({**FULL, "queues": {"enabled": True}})
    assert granted(made) == ALLOWED | QUEUES
    assert environment(made)["ALLRANKS_QUEUES"] == "true"
    assert environment(helm.template({}))["ALLRANKS_QUEUES"] == "false"


def test_gangs_come_with_exactly_the_rights_that_they_need(helm: Helm) -> None:
    made = helm.template({**FULL, "gangs": {"enabled": True, "coschedulingScheduler": "mine"}})
    assert granted(made) == ALLOWED | GANGS
    found = environment(made)
    assert (found["ALLRANKS_GANGS"], found["ALLRANKS_COSCHEDULING_SCHEDULER"]) == ("true", "mine")
    assert environment(helm.template({}))["ALLRANKS_GANGS"] == "false"


@pytest.mark.parametrize("jobs", [False, True])
def test_budgets_of_jobs_come_with_the_right_to_create_them(helm: Helm, jobs: bool) -> None:
    made = helm.template({"podDisruptionBudget": {"jobs": jobs}})
    assert (("policy", "poddisruptionbudgets") in granted(made)) is jobs
    assert environment(made)["ALLRANKS_DISRUPTION_BUDGETS"] == str(jobs).lower()


def test_the_settings_that_the_chart_passes_are_valid(helm: Helm) -> None:
    values = {
        "policy": {
            "defaults": {
                "ttlSecondsAfterFinished": 0,
                "activeDeadlineSeconds": 315360000,
                "pool": "gpu",
                "runAsUser": 1000,
                "podSecurity": "Baseline",
            },
            "limits": {
                "podSecurity": "Restricted",
                "pods": 16,
                "pools": ["gpu", "cpu"],
                "imagePrefixes": ["ghcr.io/team/"],
            },
        }
    }
    for release, policy in (
        ({}, Policy()),
        (
            values,
            Policy(
                default_ttl_seconds_after_finished=0,
                default_active_deadline_seconds=315_360_000,
                default_pool="gpu",
                default_run_as_user=1000,
                max_pods=16,
                allowed_pools=("gpu", "cpu"),
                image_prefixes=("ghcr.io/team/",),
                default_pod_security="Baseline",
                max_pod_security="Restricted",
            ),
        ),
    ):
        env = {name: text for name, text in environment(helm.template(release)).items() if text is not None}
        with pytest.MonkeyPatch.context() as patch:
            for name, text in env.items():
                patch.setenv(name, text)
            settings = Settings()
        assert settings.policy == policy
        assert settings.namespace_policies


def test_the_chart_gives_pods_that_transfer_the_same_resources_as_the_operator_does_without_it(helm: Helm) -> None:
    text = str(environment(helm.template({"data": {"claim": "data"}}))["ALLRANKS_DATA_PODS"])
    store = Settings(data_claim="data", data_pods=text).data
    assert store
    assert store.pods == DataPods(resources=DEFAULT_RESOURCES, node_selector={}, tolerations=[])


def test_the_operator_knows_every_account_of_its_release(helm: Helm) -> None:
    release = helm.template({"ui": {"enabled": True}, "archive": {"enabled": True, "claim": "history"}})
    metadata = [account["metadata"] for account in of_kind(release, "ServiceAccount")]
    accounts = {f"{account['namespace']}/{account['name']}" for account in metadata}
    assert len(accounts) == 3
    settings = Settings(reserved_accounts=str(environment(helm.template())["ALLRANKS_RESERVED_ACCOUNTS"]))
    assert accounts == {f"sys/{name}" for name in settings.reserved_accounts_of("sys")}
    assert settings.reserved_accounts_of("team") == ()


@pytest.mark.parametrize(
    ("repository", "image"),
    [
        ("ghcr.io/allranks/operator", "mirror.example:5000/ml/allranks/operator:0.1.0"),
        ("allranks/operator", "mirror.example:5000/ml/allranks/operator:0.1.0"),
        ("operator", "mirror.example:5000/ml/operator:0.1.0"),
    ],
)
def test_a_global_registry_replaces_that_of_every_image(helm: Helm, repository: str, image: str) -> None:
    values = {
        "global": {"imageRegistry": "mirror.example:5000/ml"},
        "image": {"repository": repository, "tag": "0.1.0"},
    }
    release = helm.template(values)
    assert {container["image"] for pod in pods(release) for container in _containers(pod)} == {image}
    assert environment(release)["ALLRANKS_HELPER_IMAGE"] == image


def _containers(pod: Manifest) -> list[Manifest]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def test_common_annotations_are_on_every_object_beside_its_own(helm: Helm) -> None:
    values = {**FULL, **ALL, "commonAnnotations": {"team": "ml"}, "deploymentAnnotations": {"team": "x", "own": "y"}}
    release = helm.template(values)
    [deployment] = of_kind(release, "Deployment")
    assert deployment["metadata"]["annotations"] == {"team": "x", "own": "y"}
    for manifest in release:
        if manifest is not deployment:
            assert manifest["metadata"]["annotations"]["team"] == "ml", (manifest["kind"], manifest["metadata"]["name"])


def test_extra_volumes_hosts_and_probes_are_those_of_the_values(helm: Helm) -> None:
    volume = {"name": "ca", "configMap": {"name": "ca"}}
    mount = {"name": "ca", "mountPath": "/etc/ca"}
    values = {
        "extraVolumes": [volume],
        "extraVolumeMounts": [mount],
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["registry"]}],
        "dnsPolicy": "Default",
        "probes": {"livenessPeriodSeconds": 60, "timeoutSeconds": 9},
    }
    [deployment] = of_kind(helm.template(values), "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    container, frontend = spec["containers"]
    assert volume in spec["volumes"]
    assert mount in container["volumeMounts"]
    assert spec["hostAliases"] == values["hostAliases"]
    assert spec["dnsPolicy"] == "Default"
    assert mount not in frontend["volumeMounts"]
    for probe in (container["livenessProbe"], frontend["livenessProbe"]):
        assert (probe["periodSeconds"], probe["timeoutSeconds"]) == (60, 9)
    assert frontend["readinessProbe"]["timeoutSeconds"] == 9


def test_extra_objects_are_objects_or_text_with_template_syntax(helm: Helm) -> None:
    extra = [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "{{ .Release.Name }}-a"}},
        "apiVersion: v1\nkind: Secret\nmetadata: {name: '{{ .Release.Namespace }}-b'}",
    ]
    made = of_kind(helm.template({"extraObjects": extra}), "Secret")
    assert [secret["metadata"]["name"] for secret in made] == ["allranks-a", "sys-b"]


def test_the_documentation_lists_the_rights(helm: Helm) -> None:
    table = re.findall(r"^\| ([\w, /]+) \| ([\w, ;]+) \|", INSTALL.read_text(), re.MULTILINE)
    described: dict[str, set[str]] = {}
    for resources, verbs in table:
        for resource in set(resources.split(", ")) - {"resource", "alert"}:
            found = re.findall(r"get|list|watch|create|update|patch|delete", verbs)
            described.setdefault(resource, set()).update(found)
    assert described == {resource: verbs for (_, resource), verbs in granted(helm.template(FULL)).items()}


def test_no_release_grants_more(release: list[Manifest]) -> None:
    for key, verbs in granted(release).items():
        assert verbs <= (ALLOWED | OPTIONAL)[key]


def test_the_operator_changes_jobs_only_for_sweeps_and_for_low_utilization(helm: Helm) -> None:
    rights = granted(helm.template({"sweeps": {"enabled": False}}))
    assert rights["allranks.dev", "distributedtrainings"] == {"get", "list", "watch", "patch", "delete"}
    release = helm.template({"sweeps": {"enabled": False}, "utilization": {"suspend": False}})
    rights = granted(release)
    assert rights["allranks.dev", "distributedtrainings"] == {"get", "list", "watch", "delete"}
    assert not [resource for _, resource in rights if "sweep" in resource]
    assert environment(release)["ALLRANKS_SWEEPS"] == "false"


def test_access_to_metrics_is_reviewed_only_with_authentication(release: list[Manifest]) -> None:
    reviews = ("authorization.k8s.io", "subjectaccessreviews") in granted(release)
    assert str(reviews).lower() == environment(release)["ALLRANKS_METRICS_AUTH"] or not of_kind(release, "ClusterRole")


def test_probes_have_a_port_that_is_in_no_service_and_no_policy(release: list[Manifest]) -> None:
    frontend = containers(release)["frontend"]
    ports = {port["name"]: port["containerPort"] for port in frontend["ports"]}
    variables = {variable["name"]: variable["value"] for variable in frontend["env"]}
    assert str(ports["probes"]) == variables["ALLRANKS_PROBE_PORT"]
    assert str(ports["http"]) == variables["ALLRANKS_PORT"]
    for kind, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert frontend[kind]["httpGet"] == {"path": path, "port": "probes"}
    for manifest in of_kind(release, "Service", "NetworkPolicy"):
        assert "probes" not in json.dumps(manifest["spec"])
        assert str(ports["probes"]) not in json.dumps(manifest["spec"])


def test_a_failure_of_the_frontend_does_not_restart_the_operator(release: list[Manifest]) -> None:
    """The kubelet runs the check in the container of the operator, on a socket that the frontend cannot reach."""
    operator = containers(release)["operator"]
    for kind in ("startupProbe", "livenessProbe"):
        module = operator[kind]["exec"]["command"][2]
        assert importlib.import_module(module).main
        path = environment(release)["ALLRANKS_CHECK_SOCKET"]
        assert operator[kind]["exec"]["command"] == ["python3", "-m", module, path]
        assert operator[kind]["timeoutSeconds"] > health_check.SECONDS
    assert "readinessProbe" not in operator, "that of the frontend asks the operator"


def test_the_operator_reads_no_other_crds(helm: Helm) -> None:
    [rule] = [r for r in rules(helm.template({})) if "customresourcedefinitions" in r["resources"]]
    kinds = ("distributedtrainings", "trainingpools", "trainingsweeps")
    assert rule["resourceNames"] == [f"{kind}.allranks.dev" for kind in kinds]


def test_rights_for_the_lease_exist_only_with_leader_election_and_for_this_lease(release: list[Manifest]) -> None:
    env = environment(release)
    leases = [
        (role["kind"], role["metadata"]["namespace"], rule.get("resourceNames"))
        for role in of_kind(release, "Role", "ClusterRole")
        for rule in role["rules"]
        if "leases" in rule["resources"]
    ]
    wanted = [("Role", "sys", None), ("Role", "sys", [env["ALLRANKS_LEASE_NAME"]])]
    assert leases == (wanted if env["ALLRANKS_LEADER_ELECTION"] == "true" else [])


def test_no_role_has_a_wildcard(release: list[Manifest]) -> None:
    for role in of_kind(release, "Role", "ClusterRole"):
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("namespaces", {"CustomResourceDefinition"}),
        ("namespaces without CRDs", set()),
        ("namespaces with pools", {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}),
        ("namespaces with reports", {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}),
    ],
)
def test_confined_to_namespaces_only_requested_objects_are_cluster_wide(name: str, kinds: set[str], helm: Helm) -> None:
    assert {manifest["kind"] for manifest in helm.template(RELEASES[name])} & CLUSTER_SCOPED == kinds


def test_pods_get_the_address_of_the_service_at_which_the_operator_listens(release: list[Manifest]) -> None:
    env = environment(release)
    [service] = of_kind(release, "Service")
    container = containers(release)["frontend"]
    led = {port["port"]: port["targetPort"] for port in service["spec"]["ports"] if port["name"] == "reports"}
    opened = {port["name"]: port["containerPort"] for port in container["ports"] if port["name"] == "reports"}
    url = env["ALLRANKS_REPORT_URL"]
    if not url:
        assert (led, opened) == ({}, {})
        return
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    [port] = led
    assert url == f"http://{name}.{namespace}.svc:{port}{REPORT_PATH}"
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    assert opened == {led[port]: int(variables["ALLRANKS_REPORT_PORT"])}


def test_a_confined_operator_gets_the_namespaces_in_which_it_has_rights(helm: Helm) -> None:
    release = helm.template({"namespaces": ["team-a", "team-b"]})
    env = environment(release)
    roles = [role["metadata"]["namespace"] for role in of_kind(release, "Role")]
    assert env["ALLRANKS_NAMESPACES"].split(",") == roles == ["team-a", "team-b"]


def test_every_role_is_bound_to_the_account_of_the_operator(release: list[Manifest]) -> None:
    [deployment] = of_kind(release, "Deployment")
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    bindings = of_kind(release, "RoleBinding", "ClusterRoleBinding")
    roles = {(role["kind"], role["metadata"].get("namespace"), role["metadata"]["name"])
             for role in of_kind(release, "Role", "ClusterRole") if rules([role])}  # fmt: skip
    assert {(b["roleRef"]["kind"], b["metadata"].get("namespace"), b["roleRef"]["name"]) for b in bindings} == roles
    for binding in bindings:
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "sys"}]


def test_selectors_match_the_operators_pods_and_no_others(helm: Helm) -> None:
    release = helm.template({"replicas": 2, **ALL})
    operator, test = (pod["metadata"]["labels"] for pod in pods(release))

    def matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
        return selector.items() <= labels.items()

    selectors = [
        *(manifest["spec"]["selector"]["matchLabels"]
          for manifest in of_kind(release, "Deployment", "PodDisruptionBudget", "PodMonitor")),
        *(manifest["spec"]["podSelector"]["matchLabels"] for manifest in of_kind(release, "NetworkPolicy")),
        *(manifest["spec"]["selector"] for manifest in of_kind(release, "Service")),
    ]  # fmt: skip
    assert len(selectors) == 5
    for selector in selectors:
        assert matches(selector, operator)
        assert not matches(selector, test)
    [service] = of_kind(release, "Service")
    [monitor] = of_kind(helm.template(RELEASES["service monitor"]), "ServiceMonitor")
    assert matches(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"])


def test_crds_can_be_left_out_and_are_kept_by_default(helm: Helm) -> None:
    def policies(crds: Manifest) -> list[Any]:
        definitions = of_kind(helm.template({"crds": crds}), "CustomResourceDefinition")
        return [d["metadata"].get("annotations", {}).get("helm.sh/resource-policy") for d in definitions]

    assert policies({}) == ["keep", "keep", "keep"]
    assert policies({"keep": False}) == [None, None, None]
    assert policies({"enabled": False}) == []


def test_rendered_crds_are_the_generated_ones(helm: Helm) -> None:
    rendered = {d["metadata"]["name"]: d["spec"] for d in of_kind(helm.template(), "CustomResourceDefinition")}
    sources = [yaml.safe_load(file.read_text()) for file in (ROOT / "crds").glob("*.yaml")]
    assert rendered == {source["metadata"]["name"]: source["spec"] for source in sources}


def test_the_dashboard_is_rendered_unchanged(helm: Helm) -> None:
    [config] = of_kind(helm.template({"metrics": {"dashboard": {"enabled": True}}}), "ConfigMap")
    source = CHART / "dashboards" / "allranks.json"
    assert json.loads(config["data"]["allranks.json"]) == json.loads(source.read_text())


def test_every_alert_has_a_severity_and_an_instruction(helm: Helm) -> None:
    [rule] = of_kind(helm.template({"metrics": {"rules": {"enabled": True}}}), "PrometheusRule")
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    described = re.findall(r"^\| `(Allranks\w+)` \|", INSTALL.read_text(), re.MULTILINE)
    assert [alert["alert"] for alert in alerts] == described
    for alert in alerts:
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}
        assert alert["annotations"]["summary"]
        assert alert["annotations"]["description"]
        runbook = f"https://allranks.dev/platform/runbooks/#{alert['alert'].lower()}"
        assert alert["annotations"]["runbook_url"] == runbook
        assert 'namespace="sys"' in alert["expr"]
        assert "{{" not in re.sub(r"\{\{ \$(value|labels\.\w+)( \| \w+)? \}\}", "", alert["annotations"]["summary"])


BAD: dict[str, tuple[Manifest, str]] = {
    "an unknown value": ({"replicaCount": 2}, "additional properties 'replicaCount' not allowed"),
    "an unknown value inside": ({"image": {"name": "x"}}, "/image.*additional properties 'name' not allowed"),
    "a negative number": ({"replicas": -1}, "/replicas.*minimum: got -1, want 0"),
    "text for a number": ({"replicas": "two"}, "/replicas.*got string, want integer"),
    "one namespace that is no list": ({"namespaces": "team-a"}, "/namespaces.*got string, want array"),
    "a name that is none": ({"namespaces": ["Team A"]}, "/namespaces/0.*'Team A' does not match pattern"),
    "a namespace twice": ({"namespaces": ["a", "a"]}, "/namespaces.*items at 0 and 1 are equal"),
    "a level that is none": ({"settings": {"logLevel": "verbose"}}, "/settings/logLevel.*must be one of 'debug'"),
    "a lease too short": ({"leaderElection": {"leaseSeconds": 1}}, "/leaseSeconds.*minimum: got 1, want 3"),
    "a tag with a digest in it": ({"image": {"tag": "a@sha256:0"}}, "/image/tag.*does not match pattern"),
    "a monitor that is none": ({"metrics": {"monitor": {"kind": "podmonitor"}}}, "must be one of 'none', 'PodMonitor'"),
    "an alert that is none": ({"metrics": {"rules": {"disabled": ["X"]}}}, "/metrics/rules/disabled/0.*must be one of"),
    "pools as a list": ({"pools": {"create": [{"name": "a"}]}}, "/pools/create.*got array, want object"),
    "reports from a string": ({"reports": {"from": "all"}}, "/reports/from.*got string, want array"),
    "a release among its tenants": ({"namespaces": ["sys", "team-a"]}, "users who may create pods there"),
    "several that act": ({"replicas": 2, "leaderElection": {"enabled": False}}, "several operators would act"),
    "a user that is root": ({"policy": {"defaults": {"runAsUser": 0}}}, "/runAsUser.*minimum: got 0, want 1"),
    "a default pool that is refused": (
        {"policy": {"defaults": {"pool": "a"}, "limits": {"pools": ["b"]}}},
        "policy.limits.pools does not allow",
    ),
    "pools without pools.enabled": ({"namespaces": ["a"], "pools": {"create": {"p": {}}}}, "set pools.enabled=true"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_values_are_rejected_with_a_message_that_names_them(name: str, helm: Helm) -> None:
    values, message = BAD[name]
    with pytest.raises(HelmError, match=message):
        helm.template(values)


def test_a_parent_chart_can_pass_globals_and_a_condition(helm: Helm, tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    (parent / "charts").mkdir(parents=True)
    (parent / "charts" / "allranks").symlink_to(CHART)
    chart = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [
        {"name": "allranks", "version": "*", "condition": "allranks.enabled"}]}  # fmt: skip
    (parent / "Chart.yaml").write_text(yaml.safe_dump(chart))
    text = helm("template", "p", str(parent), values={"global": {"x": 1}, "allranks": {"enabled": True}})
    assert "kind: Deployment" in text


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ({}, ["serves jobs in every namespace", "kubectl apply -n default -f", "No pools are created"]),
        (
            {"namespaces": ["team-a", "team-b"]},
            [
                "serves jobs in: team-a, team-b",
                "apply -n team-a -f",
                "--set pools.enabled=true",
                "rbac.aggregate",
                "reports.enabled=true",
            ],
        ),
        ({"pools": {"create": {"a100": {}, "h100": {}}}}, ["Pools: a100, h100."]),
        ({"replicas": 0}, ["WARNING: replicas is 0"]),
        ({"crds": {"keep": False}}, ["`helm uninstall` deletes every DistributedTraining"]),
        ({"crds": {"enabled": False}}, ["The CRDs are not part of this release"]),
    ],
)
def test_notes_describe_the_next_steps(values: Manifest, texts: list[str], helm4: Helm) -> None:
    # Helm 3 renders notes with a cluster only.
    notes = helm4("install", "allranks", str(CHART), "--namespace=sys", "--dry-run=client", values=values)
    notes = notes.partition("NOTES:")[2]
    for text in texts:
        assert text in notes


DOCUMENTED = re.findall(r"^```yaml\n(# values\.yaml\n.*?)^```", INSTALL.read_text(), re.M | re.S)


@pytest.mark.parametrize("values", DOCUMENTED)
def test_values_in_the_documentation_are_valid(values: str, helm: Helm) -> None:
    assert of_kind(helm.template(yaml.safe_load(values)), "Deployment")


class Operator(BaseHTTPRequestHandler):
    """Ready at the second request."""

    requests: list[str] = []
    metrics = 'allranks_build_info{version="1"} 1\n'

    def do_GET(self) -> None:
        self.requests.append(self.path)
        body = b"" if self.path == "/readyz" else self.metrics.encode()
        self.send_response(503 if self.requests == ["/readyz"] else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def operator() -> Iterator[tuple[type[Operator], str]]:
    class Handler(Operator):
        requests: list[str] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield Handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run_test_pod(helm: Helm, url: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """The program of the pod that `helm test` starts."""
    [pod] = of_kind(helm.template(), "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    [container] = pod["spec"]["containers"]
    env = {variable["name"]: variable["value"] for variable in container["env"]}
    assert env["OPERATOR"] == "http://allranks.sys:8080"
    assert container["command"][:2] == ["python3", "-c"]
    return subprocess.run(
        [sys.executable, *container["command"][1:]],
        env=env | {"OPERATOR": url, "SECONDS": str(seconds)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_helm_test_waits_until_the_operator_is_ready(operator: tuple[type[Operator], str], helm: Helm) -> None:
    handler, url = operator
    done = run_test_pod(helm, url, seconds=20)
    assert done.returncode == 0, done.stderr
    assert 'ready: allranks_build_info{version="1"} 1' in done.stdout
    assert handler.requests == ["/readyz", "/readyz", "/metrics"]


def test_helm_test_fails_when_another_server_answers(operator: tuple[type[Operator], str], helm: Helm) -> None:
    handler, url = operator
    handler.metrics = "go_goroutines 1\n"
    done = run_test_pod(helm, url, seconds=20)
    assert done.returncode == 1
    assert "is this the operator?" in done.stderr


def test_helm_test_points_to_the_logs_when_the_operator_does_not_answer(helm: Helm) -> None:
    done = run_test_pod(helm, "http://127.0.0.1:9", seconds=0)
    assert done.returncode == 1
    assert "not ready: kubectl logs -n sys deploy/allranks" in done.stderr
