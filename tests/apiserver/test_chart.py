"""The chart on a real API server: install, upgrade, uninstall, and the permissions that the server's authorizer grants.

Uses a separate control plane without CRDs, because the release installs them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.api import Api, ApiError
from support.controlplane import ControlPlane, free_ports
from support.helm import CHART, ROOT, Helm, HelmError, Manifest, built
from support.live import eventually, wait_until_served

JOB: Manifest = {
    "apiVersion": "allranks.dev/v1alpha1",
    "kind": "DistributedTraining",
    "metadata": {"name": "penguins"},
    "spec": {"framework": "pytorch", "image": "x", "command": ["x"], "roles": {"worker": {"replicas": 1}}},
}
POOLS = {"create": {"a100": {"gpu": {"count": 8}}, "h100": {"gpu": {"count": 8}}}}


class Strict(ControlPlane):
    """As on OpenShift: creating objects that block the deletion of their owner needs a permission."""

    def _run(self, name: str, *arguments: str) -> None:
        strict = ["--enable-admission-plugins=OwnerReferencesPermissionEnforcement"] if name == "kube-apiserver" else []
        super()._run(name, *arguments, *strict)


@pytest.fixture(scope="module")
def bare(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without CRDs."""
    cluster = Strict(programs, tmp_path_factory.mktemp("chart"))
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def api(bare: ControlPlane) -> Iterator[Api]:
    """Deletes the CRDs for the next test."""
    yield bare.api
    wait_until_served(bare.api)
    for definition in bare.api.list("CustomResourceDefinition"):
        with contextlib.suppress(ApiError):  # the test may have deleted it
            bare.api.delete("CustomResourceDefinition", None, definition["metadata"]["name"])
    eventually(lambda: not bare.api.list("CustomResourceDefinition"))


@pytest.fixture
def helm(bare: ControlPlane, api: Api, tmp_path: Path) -> Iterator[Helm]:
    """Uninstalls at the end what the test installs."""
    helm = Helm(built("helm"), tmp_path, (f"--kubeconfig={bare.kubeconfig}",))
    yield helm
    for release in json.loads(helm("list", "--all-namespaces", "--output=json")):
        helm("uninstall", release["name"], f"--namespace={release['namespace']}")


@pytest.fixture
def sys_(api: Api) -> str:
    """A namespace that admits only restricted pods."""
    return new_namespace(api, "sys", {"pod-security.kubernetes.io/enforce": "restricted"})


@pytest.fixture
def team(api: Api) -> str:
    return new_namespace(api, "team")


def new_namespace(api: Api, prefix: str, labels: dict[str, str] | None = None) -> str:
    name = f"{prefix}-{secrets.token_hex(4)}"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}})
    return name


def install(helm: Helm, namespace: str, values: Manifest | None = None, release: str = "allranks") -> str:
    return helm("install", release, str(CHART), f"--namespace={namespace}", values=values or {})


def upgrade(helm: Helm, namespace: str, values: Manifest | None = None, release: str = "allranks") -> str:
    return helm("upgrade", release, str(CHART), f"--namespace={namespace}", values=values or {})


def deployment(bare: ControlPlane, namespace: str, name: str = "allranks") -> Manifest:
    return json.loads(bare.kubectl("get", "deployment", name, "-o", "json", "-n", namespace).stdout)


def counts(api: Api) -> dict[str, int]:
    return {pool["metadata"]["name"]: pool["spec"]["gpu"]["count"] for pool in api.list("TrainingPool")}


def uids(api: Api) -> set[str]:
    return {pool["metadata"]["uid"] for pool in api.list("TrainingPool")}


def test_pools_are_created_by_the_first_install_and_managed_by_the_release_from_the_next_one_on(
    helm: Helm, api: Api, sys_: str
) -> None:
    install(helm, sys_, {"pools": POOLS})
    assert counts(api) == {"a100": 8, "h100": 8}
    first = uids(api)

    upgrade(helm, sys_, {"pools": {"create": {**POOLS["create"], "a100": {"gpu": {"count": 4}}}}})
    assert counts(api) == {"a100": 4, "h100": 8}
    assert uids(api) == first
    assert "helm.sh/hook" not in api.get("TrainingPool", None, "a100")["metadata"]["annotations"]

    upgrade(helm, sys_, {"pools": {"create": {"a100": {"gpu": {"count": 2}}}}})
    assert counts(api) == {"a100": 2, "h100": 8}, "a pool that is removed from the values is kept: jobs may use it"
    assert uids(api) == first


@pytest.mark.nightly
def test_a_rollback_to_the_first_release_keeps_the_pools(helm: Helm, api: Api, sys_: str) -> None:
    install(helm, sys_, {"pools": POOLS})
    upgrade(helm, sys_, {"pools": POOLS})
    before = uids(api)
    helm("rollback", "allranks", "1", f"--namespace={sys_}")
    assert uids(api) == before
    upgrade(helm, sys_, {"pools": POOLS})
    assert uids(api) == before


@pytest.mark.nightly
def test_an_invalid_pool_is_rejected_with_the_reason_of_the_api_server(helm: Helm, sys_: str) -> None:
    install(helm, sys_)
    with pytest.raises(HelmError, match=r"gpu\.count"):
        upgrade(helm, sys_, {"pools": {"create": {"a100": {"gpu": {"count": 0}}}}})


def test_objects_of_users_survive_an_uninstall_and_serve_the_next_release(
    helm: Helm, api: Api, sys_: str, team: str
) -> None:
    install(helm, sys_, {"pools": POOLS})
    api.create(JOB, team)
    before = api.get("DistributedTraining", team, "penguins")["metadata"]["uid"]

    helm("uninstall", "allranks", f"--namespace={sys_}")
    assert len(api.list("CustomResourceDefinition")) == 3
    assert counts(api) == {"a100": 8, "h100": 8}
    assert not [role for role in api.list("ClusterRole") if "allranks" in role["metadata"]["name"]]

    install(helm, sys_, {"pools": POOLS})
    assert api.get("DistributedTraining", team, "penguins")["metadata"]["uid"] == before


@pytest.mark.nightly
def test_crds_without_keep_are_deleted_with_the_release(helm: Helm, api: Api, sys_: str) -> None:
    install(helm, sys_)
    upgrade(helm, sys_, {"crds": {"keep": False}})
    wait_until_served(api)
    helm("uninstall", "allranks", f"--namespace={sys_}")
    eventually(lambda: not api.list("CustomResourceDefinition"))


def test_an_upgrade_updates_the_crds_and_does_not_change_jobs(
    helm: Helm, api: Api, sys_: str, team: str, tmp_path: Path
) -> None:
    older = tmp_path / "older"
    shutil.copytree(CHART, older)
    template = older / "templates" / "crd-distributedtrainings.yaml"
    template.write_text(template.read_text().replace("    - name: Progress\n", "    - name: Steps\n"))
    helm("install", "allranks", str(older), f"--namespace={sys_}")
    api.create(JOB, team)

    def columns() -> list[str]:
        spec = api.get("CustomResourceDefinition", None, "distributedtrainings.allranks.dev")["spec"]
        return [column["name"] for column in spec["versions"][0]["additionalPrinterColumns"]]

    assert "Steps" in columns()
    upgrade(helm, sys_)
    assert "Steps" not in columns()
    assert "Progress" in columns()
    assert api.get("DistributedTraining", team, "penguins")["metadata"]["generation"] == 1


@pytest.mark.nightly
def test_replicas_can_be_increased_and_decreased(helm: Helm, bare: ControlPlane, sys_: str) -> None:
    """A Deployment with strategy Recreate must not have rolling update parameters."""
    install(helm, sys_)
    for replicas, strategy in ((2, "RollingUpdate"), (1, "Recreate"), (3, "RollingUpdate")):
        upgrade(helm, sys_, {"replicas": replicas})
        spec = deployment(bare, sys_)["spec"]
        assert (spec["replicas"], spec["strategy"]["type"]) == (replicas, strategy)
        budgets = json.loads(bare.kubectl("get", "pdb", "-o", "json", "-n", sys_).stdout)["items"]
        assert len(budgets) == (replicas > 1)


def test_the_operators_pods_are_admitted_under_the_restricted_standard(
    helm: Helm, bare: ControlPlane, sys_: str
) -> None:
    install(helm, sys_, {"replicas": 2, "ui": {"enabled": True}, "archive": {"enabled": True, "claim": "a"}})
    operator = deployment(bare, sys_)["spec"]["template"]
    archiver = deployment(bare, sys_, "allranks-archiver")["spec"]["template"]
    ui = deployment(bare, sys_, "allranks-ui")["spec"]["template"]
    [test] = [hook for hook in yaml.safe_load_all(helm("get", "hooks", "allranks", f"--namespace={sys_}")) if hook]
    for name, pod in (("operator", operator), ("ui", ui), ("archiver", archiver), ("test", test)):
        manifest = {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {**pod["metadata"], "name": name}}
        manifest["spec"] = {**manifest["spec"], "serviceAccountName": "allranks"}
        bare.api.create(manifest, sys_)
        bare.api.delete("Pod", sys_, name, grace=0)
    operator["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(ApiError, match="violates PodSecurity"):
        bare.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": operator["spec"]}, sys_)


def may(bare: ControlPlane, who: str, verb: str, what: str, namespace: str | None = None) -> bool:
    """The answer of the API server's authorizer; `what` is `resource` or `resource/subresource`, with its group."""
    resource, _, subresource = what.partition("/")
    plural, _, group = resource.partition(".")
    attributes = {"verb": verb, "resource": plural, "group": group, "subresource": subresource}
    attributes |= {"namespace": namespace} if namespace else {}
    groups = ["system:authenticated"]
    if who.startswith("system:serviceaccount:"):
        groups += ["system:serviceaccounts", f"system:serviceaccounts:{who.split(':')[2]}"]
    review = bare.api.request(
        "POST",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": who, "groups": groups, "resourceAttributes": attributes},
        },
    )
    return review["status"]["allowed"]


JOBS, POOL = "distributedtrainings.allranks.dev", "trainingpools.allranks.dev"
NEEDED = [
    *(("get", JOBS), ("list", JOBS), ("watch", JOBS), ("delete", JOBS), ("patch", f"{JOBS}/status")),
    ("update", f"{JOBS}/finalizers"),
    *((verb, "pods") for verb in ("create", "get", "list", "watch", "delete")),
    *((verb, what) for what in ("services", "configmaps") for verb in ("create", "get")),
    ("delete", "configmaps"),
    *(("create", "secrets"), ("create", "events"), ("patch", "events"), ("get", "namespaces")),
]
NEEDED_IN_THE_CLUSTER = [("list", "nodes"), ("watch", "nodes")]
"""Only without `namespaces`: for nodeHealth."""
FORBIDDEN = [
    *((verb, "secrets") for verb in ("get", "list", "watch", "update", "patch", "delete")),
    *((verb, JOBS) for verb in ("create", "update", "patch")),
    *(("create", "pods/exec"), ("get", "pods/log"), ("update", "pods"), ("deletecollection", "pods")),
    *(
        ("list", "configmaps"),
        ("update", "configmaps"),
        ("deletecollection", "configmaps"),
        ("list", "services"),
        ("delete", "services"),
        ("create", "serviceaccounts"),
    ),
    *((verb, "namespaces") for verb in ("list", "watch", "create", "update", "patch", "delete")),
    *(("get", "nodes"), ("update", "nodes"), ("create", "roles.rbac.authorization.k8s.io")),
    *(("list", "customresourcedefinitions.apiextensions.k8s.io"), ("create", POOL), ("delete", POOL)),
    *(("get", "leases.coordination.k8s.io"), ("create", "leases.coordination.k8s.io")),
]


WITHOUT_SWEEPS = {"sweeps": {"enabled": False}, "utilization": {"suspend": False}}
"""For sweeps the operator creates and patches jobs, and it patches those with low utilization."""


@pytest.mark.nightly
def test_with_sweeps_the_operator_may_create_and_patch_jobs(
    helm: Helm, bare: ControlPlane, sys_: str, team: str
) -> None:
    install(helm, sys_)
    operator = f"system:serviceaccount:{sys_}:allranks"
    eventually(lambda: may(bare, operator, "create", JOBS, team))
    assert may(bare, operator, "patch", JOBS, team)
    assert not may(bare, operator, "create", "trainingsweeps.allranks.dev", team)


def test_the_operator_has_exactly_the_permissions_that_it_needs(
    helm: Helm, bare: ControlPlane, sys_: str, team: str
) -> None:
    install(helm, sys_, WITHOUT_SWEEPS)
    operator = f"system:serviceaccount:{sys_}:allranks"
    eventually(lambda: may(bare, operator, "list", JOBS))  # the authorizer's cache follows
    needed = [*NEEDED, *NEEDED_IN_THE_CLUSTER]
    assert [missing for missing in needed if not may(bare, operator, *missing, team)] == []
    assert [wrong for wrong in FORBIDDEN if may(bare, operator, *wrong, team)] == []
    assert may(bare, operator, "list", "pods"), "in all namespaces at once"
    assert may(bare, operator, "watch", POOL)
    assert may(bare, operator, "create", "tokenreviews.authentication.k8s.io")


def test_a_release_for_namespaces_has_permissions_only_there(
    helm: Helm, bare: ControlPlane, sys_: str, team: str
) -> None:
    install(helm, sys_, {"namespaces": [team], **WITHOUT_SWEEPS})
    operator = f"system:serviceaccount:{sys_}:allranks"
    eventually(lambda: may(bare, operator, "list", JOBS, team))
    assert [needed for needed in NEEDED if not may(bare, operator, *needed, team)] == []
    assert [wrong for wrong in FORBIDDEN if may(bare, operator, *wrong, team)] == []
    for namespace in ("default", sys_, None):
        assert [wrong for wrong in NEEDED if may(bare, operator, *wrong, namespace)] == []
    assert not may(bare, operator, "list", POOL)
    assert not may(bare, operator, "create", "tokenreviews.authentication.k8s.io")


@pytest.mark.nightly
def test_two_releases_for_different_namespaces_share_the_crds(
    helm: Helm, bare: ControlPlane, api: Api, sys_: str, team: str
) -> None:
    install(helm, sys_, {"namespaces": [sys_], "pools": {"enabled": True}})
    with pytest.raises(HelmError, match="exists and cannot be imported"):
        install(helm, team, {"namespaces": [team]})
    helm("uninstall", "allranks", f"--namespace={team}", "--ignore-not-found")
    install(helm, team, {"namespaces": [team], "pools": {"enabled": True}, "crds": {"enabled": False}})
    for namespace, other in ((sys_, team), (team, sys_)):
        operator = f"system:serviceaccount:{namespace}:allranks"
        eventually(lambda operator=operator, namespace=namespace: may(bare, operator, "list", JOBS, namespace))
        assert may(bare, operator, "list", POOL)
        assert not may(bare, operator, "list", JOBS, other)


@pytest.mark.nightly
def test_the_lease_has_the_name_of_the_release(helm: Helm, bare: ControlPlane, sys_: str, team: str) -> None:
    install(helm, sys_, {"replicas": 2})
    operator = f"system:serviceaccount:{sys_}:allranks"
    token = bare.kubectl("create", "token", "allranks", "-n", sys_).stdout.strip()
    client = Api(bare.url, bare.ca_file, token)
    eventually(lambda: may(bare, operator, "create", "leases.coordination.k8s.io", sys_))
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "allranks"}}
    client.create(lease, sys_)
    assert client.get("Lease", sys_, "allranks")
    other = {**lease, "metadata": {"name": "another"}}
    bare.api.create(other, sys_)
    for action in (
        lambda: client.get("Lease", sys_, "another"),
        lambda: client.create(lease, team),
        lambda: client.delete("Lease", sys_, "allranks"),
    ):
        with pytest.raises(ApiError, match="cannot"):
            action()
    client.close()


def test_the_cluster_roles_for_users_include_jobs(helm: Helm, bare: ControlPlane, sys_: str, team: str) -> None:
    install(helm, sys_)
    for role in ("view", "edit", "admin"):
        bare.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}", "-n", team)
        eventually(lambda role=role: may(bare, role, "get", f"{JOBS}/status", team))
        assert may(bare, role, "watch", JOBS, team)
        for verb, what in (("create", JOBS), ("delete", JOBS), ("patch", f"{JOBS}/scale")):
            assert may(bare, role, verb, what, team) == (role != "view")
        assert not may(bare, role, "patch", f"{JOBS}/status", team), "status is the operator's"
        assert not may(bare, role, "create", POOL)


@pytest.mark.nightly
def test_pools_can_be_made_readable_for_everyone(helm: Helm, bare: ControlPlane, sys_: str) -> None:
    install(helm, sys_, {"pools": {"readers": ["system:authenticated"]}})
    eventually(lambda: may(bare, "anna", "list", POOL))
    assert not may(bare, "anna", "create", POOL)


BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INSTALL = {
    section.partition("\n")[0]: BLOCK.findall(section)
    for section in (ROOT / "docs" / "platform" / "install.md").read_text().split("\n## ")
}
"""Section of docs/platform/install.md -> (language, text) of its blocks."""
BEFORE = {
    "Upgrade": "kubectl apply --server-side -f older/",
    "Uninstall": "helm install allranks charts/allranks --namespace allranks-system",
}
"""Commands that a section presupposes."""
SHIM = """#!/bin/sh
# No pods run here: waiting would not end.
[ "$1" != test ] || exit 0
for argument; do shift; [ "$argument" = --wait ] || set -- "$@" "$argument"; done
exec {program} --kubeconfig={kubeconfig} "$@"
"""


@pytest.mark.nightly
@pytest.mark.parametrize("section", [name for name, blocks in INSTALL.items() if "zsh" in dict(blocks)])
def test_commands_of_the_documentation_work(
    section: str, helm: Helm, bare: ControlPlane, api: Api, tmp_path: Path
) -> None:
    for namespace in ("allranks-system", "team-a", "team-b"):
        with contextlib.suppress(ApiError):
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    for folder in ("charts", "crds"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    shutil.copytree(ROOT / "crds", tmp_path / "older")
    for file in (tmp_path / "older").iterdir():
        file.write_text(file.read_text().replace("name: Age", "name: Years"))
    (tmp_path / "bin").mkdir()
    for program in (helm.program, bare.programs / "kubectl"):
        shim = tmp_path / "bin" / program.name
        shim.write_text(SHIM.format(program=program, kubeconfig=bare.kubeconfig))
        shim.chmod(0o755)
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path)}

    def run(script: str) -> str:
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    (tmp_path / "values.yaml").write_text("{}")
    run(BEFORE.get(section, ""))
    for language, text in INSTALL[section]:
        if language == "yaml":
            assert text.startswith("# values.yaml\n")
            (tmp_path / "values.yaml").write_text(text)
        elif not re.search("docker push|oci://", text):  # these need a registry
            wait_until_served(api)
            run(text)
    if section == "Upgrade":
        columns = yaml.safe_load(run("kubectl get crd trainingpools.allranks.dev -o yaml"))["spec"]["versions"][0]
        assert "Years" not in json.dumps(columns)


@pytest.mark.nightly
def test_without_helm_the_second_apply_creates_the_pools(
    helm: Helm, bare: ControlPlane, api: Api, sys_: str, tmp_path: Path
) -> None:
    text = helm("template", "allranks", str(CHART), f"--namespace={sys_}", values={"pools": POOLS})
    file = tmp_path / "allranks.yaml"
    file.write_text(text)
    bare.kubectl("apply", "--server-side", "-f", str(file))
    done = bare.kubectl("apply", "--server-side", "-f", str(file))
    assert done.returncode == 0, done.stderr
    assert counts(api) == {"a100": 8, "h100": 8}
    wait_until_served(api)
    bare.kubectl("delete", "-f", str(file))


JOBS_TO_RUN = (
    {"framework": "pytorch", "roles": {"master": {"replicas": 1}, "worker": {"replicas": 1}}},
    {"framework": "tensorflow", "roles": {"worker": {"replicas": 2}}},
    {"framework": "horovod", "roles": {"worker": {"replicas": 2}}},
    {
        "framework": "horovod",
        "horovod": {"controller": "MPI", "slotsPerWorker": 1},
        "roles": {"launcher": {"replicas": 1}, "worker": {"replicas": 2}},
    },
    {"framework": "pytorch", "pool": "a100", "roles": {"worker": {"replicas": 1}}},
)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"pools": POOLS}, id="cluster-wide"),
        pytest.param(
            {"replicas": 2, "pools": POOLS, "leaderElection": {"leaseSeconds": 60}},
            id="two replicas",
            marks=pytest.mark.nightly,
        ),
        pytest.param({"namespaces": ["TEAM"], "pools": {"enabled": True, **POOLS}}, id="confined"),
    ],
)
def test_the_operator_does_all_its_work_with_these_rights_and_settings(
    values: Manifest, helm: Helm, bare: ControlPlane, sys_: str, team: str, tmp_path: Path
) -> None:
    install(helm, sys_, {**values, "namespaces": [team for _ in values.get("namespaces", ())]})
    port, other_port = free_ports(2)
    with contextlib.ExitStack() as running:
        operator = running.enter_context(run_operator(bare, sys_, tmp_path, port))
        if values.get("replicas") == 2:
            eventually(lambda: metrics(port).get("allranks_leader") == 1)
            running.enter_context(run_operator(bare, sys_, tmp_path, other_port))
            eventually(lambda: asked(other_port, "/readyz") == "ok\n")
            assert eventually(lambda: metrics(other_port))["allranks_leader"] == 0, "a standby is ready"
        running.enter_context(run_kubelet(bare, tmp_path))
        eventually(lambda: asked(port, "/readyz") == "ok\n")
        eventually(lambda: bare.api.find("ServiceAccount", team, "default"))
        for number, spec in enumerate(JOBS_TO_RUN):
            common = {"image": "x", "command": ["x"], "ttlSecondsAfterFinished": 0}
            bare.api.create({**JOB, "metadata": {"name": f"job-{number}"}, "spec": {**common, **spec}}, team)
        # They succeed and are deleted immediately (ttlSecondsAfterFinished 0).
        eventually(lambda: not bare.api.list("DistributedTraining", team))
        reasons = {event["reason"] for event in bare.api.list("Event", team)}
        assert "Complete" in reasons or "Succeeded" in reasons, reasons

        found = eventually(lambda: metrics(port))
        assert found['allranks_watch_age_seconds{resource="jobs"}'] < 60
        assert [series for series in found if 'code="403"' in series] == []
        operator.terminate()
        assert operator.wait(300) == 0
    assert "forbidden" not in (tmp_path / f"operator-{port}.log").read_text().lower()


@contextlib.contextmanager
def run_operator(bare: ControlPlane, namespace: str, folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Starts both containers of the Deployment, with the token of its ServiceAccount for the operator, but locally and
    on other ports. Yields the operator's process."""
    containers = {c["name"]: c for c in deployment(bare, namespace)["spec"]["template"]["spec"]["containers"]}
    config = json.loads(bare.kubeconfig.read_text())
    token = bare.kubectl("create", "token", "allranks", f"--namespace={namespace}").stdout.strip()
    config["users"][0]["user"] = {"token": token}
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    check = str(folder / f"c{port}")
    sockets = {"ALLRANKS_SOCKET": str(folder / f"s{port}"), "ALLRANKS_CHECK_SOCKET": check}
    changed = {
        "operator": {**sockets, "KUBECONFIG": str(kubeconfig)},
        "frontend": {**sockets, "ALLRANKS_PORT": str(port), "ALLRANKS_PROBE_PORT": "0", "ALLRANKS_REPORT_PORT": "0",
                     "ALLRANKS_ADDRESS": "127.0.0.1"},
    }  # fmt: skip
    with contextlib.ExitStack() as running:
        processes = {}
        sources = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        for name, container in containers.items():
            env = {v["name"]: namespace if "valueFrom" in v else v.get("value", "") for v in container["env"]}
            program, *arguments = container["command"]
            assert program == "allranks"
            command = [sys.executable, "-m", program, *arguments]
            log = folder / f"{name}-{port}.log"
            processes[name] = running.enter_context(process(command, log, env=env | changed[name] | sources))
        for probe in ("startupProbe", "livenessProbe"):
            _, *arguments, _ = containers["operator"][probe]["exec"]["command"]
            check_command = [sys.executable, *arguments, check]
            eventually(lambda command=check_command: succeeds(command))
        yield processes["operator"]


def succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, timeout=300, check=False).returncode == 0


def run_kubelet(bare: ControlPlane, folder: Path) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Its pods succeed after half a second."""
    command = [sys.executable, "-m", "support.kubelet", f"--kubeconfig={bare.kubeconfig}", "--run-seconds=0.5"]
    return process(command, folder / "kubelet.log", cwd=ROOT / "tests")


@contextlib.contextmanager
def process(command: list[str], log: Path, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, **how) as running:
        try:
            yield running
        finally:
            running.kill()


def asked(port: int, path: str) -> str:
    """The operator's response; empty on errors."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return ""


def metrics(port: int) -> dict[str, float]:
    """Series -> value."""
    lines = [line.rpartition(" ") for line in asked(port, "/metrics").splitlines() if not line.startswith("#")]
    return {series: float(value) for series, _, value in lines}
