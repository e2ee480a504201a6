"""`allranks doctor`: each check, its message and its cure; a check that fails or hangs does not hide the others."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import yaml
from click.testing import CliRunner, Result

from allranks.api.crd import crd
from allranks.api.job import KIND
from allranks.api.pool import KIND as POOL_KIND
from allranks.api.sweep import KIND as SWEEP_KIND
from allranks.cli.commands import doctor as command
from allranks.cli.doctor import cluster as of_cluster
from allranks.cli.doctor import machine as of_machine
from allranks.cli.doctor.cluster import check_cluster
from allranks.cli.doctor.findings import Finding, ok, run_checks
from allranks.cli.doctor.machine import Machine
from allranks.cli.main import cli
from allranks.errors import ClusterError
from allranks.version import __version__

GIB = 1 << 30


class Usage(NamedTuple):
    """What shutil.disk_usage returns."""

    total: int
    used: int
    free: int


def statuses(findings: Iterable[Finding]) -> dict[str, tuple[str, str, str]]:
    return {one.check: (one.status, one.message, one.cure) for one in findings}


# --- how checks run --------------------------------------------------------------------------------------------------


def test_a_check_that_fails_or_hangs_does_not_hide_the_others():
    hanging, daemons = threading.Event(), []

    def hangs() -> Iterator[Finding]:
        daemons.append(threading.current_thread().daemon)
        hanging.wait()
        yield ok("hangs", "late")

    def fails() -> Iterator[Finding]:
        raise ValueError("a\nb")

    def denied() -> Iterator[Finding]:
        raise PermissionError(13, "Permission denied")

    checks = {"hangs": hangs, "fails": fails, "denied": denied, "works": lambda: [ok("works", "fine")]}
    found = statuses(run_checks(checks, 2))
    hanging.set()
    assert daemons == [True], "the end of the command would wait for it"
    assert found == {
        "hangs": ("note", "not checked: there was no answer within 2 s", ""),
        "fails": ("note", "not checked: ValueError: a b", ""),
        "denied": ("note", "not checked: permission denied", ""),
        "works": ("ok", "fine", ""),
    }


# --- this machine ----------------------------------------------------------------------------------------------------


class Folder:
    """A PATH with programs, a directory, and file systems."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.modules = folder / "modules"
        self.devices = folder / "dev"
        self.shared = folder / "shm"
        self.work = folder / "work"
        for made in (self.bin, self.modules, self.devices, self.shared, self.work):
            made.mkdir()

    def program(self, name: str, text: str, folder: Path | None = None) -> Path:
        file = (folder or self.bin) / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        return file

    def python(self) -> Path:
        """A python whose frameworks are in `modules`."""
        return self.program("python", f'exec {sys.executable} -S "$@"')

    def framework(self, name: str, text: str) -> None:
        (self.modules / f"{name}.py").write_text(text)

    def machine(self, **changes: Any) -> Machine:
        environ = {"PATH": f"{self.bin}:/usr/bin:/bin", "PYTHONPATH": str(self.modules), **changes.pop("environ", {})}
        parts = {"directory": self.work, "shared_memory": self.shared, "devices": self.devices}
        usage = {"usage": lambda _path: Usage(16 * GIB, 8 * GIB, 8 * GIB)}
        return Machine(environ=environ, **{**parts, **usage, **changes})


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)


TORCH = "__version__ = '9.9'\nclass version: cuda = {cuda}\nclass cuda: is_available = staticmethod(lambda: {usable})\n"


def frameworks(folder: Folder, **changes: Any) -> dict[str, tuple[str, str, str]]:
    return statuses(folder.machine(**changes)._frameworks())


def test_frameworks_are_imported_by_the_python_on_path(folder):
    python = folder.python()
    folder.framework("torch", TORCH.format(cuda=None, usable=False))
    folder.framework("tensorflow", "import sys\nprint('noise')\nraise ImportError('libcudart.so: no such file\\nmore')")
    torchrun = folder.program("torchrun", "")
    found = frameworks(folder)
    assert found["torch"] == ("ok", f"version 9.9, CPU only ({python})", "")
    assert found["torchrun"] == ("ok", str(torchrun), "")
    status, message, cure = found["tensorflow"]
    assert (status, cure) == ("problem", f"reinstall it: {python} -m pip install --force-reinstall tensorflow")
    assert message.endswith(f"but {python} cannot import it: ImportError: libcudart.so: no such file")
    assert "horovod" not in found


def test_no_framework_is_a_note_and_no_python_is_a_problem(folder, monkeypatch):
    folder.python()
    status, message, cure = frameworks(folder)["frameworks"]
    assert (status, "has none of torch, tensorflow, horovod" in message) == ("note", True)
    assert "activate the environment that has your framework" in cure
    empty = {"PATH": str(folder.work)}
    assert frameworks(folder, environ=empty)["python"] == (
        *("problem", "there is no python on PATH"),
        "activate the environment of your training program",
    )


def test_torchrun_must_be_on_path_and_beside_python(folder):
    folder.python()
    folder.framework("torch", TORCH.format(cuda="'13'", usable=True))
    path = {"PATH": f"{folder.bin}:{folder.bin}2"}
    status, message, _ = frameworks(folder, environ=path)["torchrun"]
    assert (status, message) == ("problem", "torch is installed, but torchrun is not on PATH")
    folder.program("torchrun", "", Path(f"{folder.bin}2"))
    status, message, _ = frameworks(folder, environ=path)["torchrun"]
    assert status == "note"
    assert "is not in the environment of" in message


SMI = """\
case "$1" in
-L) echo 'GPU 0: H (UUID: GPU-a)'; echo 'GPU 1: H (UUID: GPU-b)';;
*) echo 'NVIDIA H200, 580.1, 143771 MiB'; echo 'NVIDIA H200, 580.1, 143771 MiB';;
esac"""


def test_gpus_of_nvidia(folder):
    folder.program("nvidia-smi", SMI)
    found = statuses(folder.machine()._gpus())
    assert found == {"gpus": ("ok", "2 x NVIDIA H200 (143771 MiB), driver 580.1", "")}
    limited = statuses(folder.machine(environ={"CUDA_VISIBLE_DEVICES": "1"})._gpus())
    assert limited["gpus"][1].endswith("; CUDA_VISIBLE_DEVICES selects 1")


def test_a_torch_that_cannot_use_the_gpus_is_a_problem(folder):
    folder.python()
    folder.program("nvidia-smi", SMI)
    folder.program("torchrun", "")
    folder.framework("torch", TORCH.format(cuda=None, usable=False))
    status, message, cure = frameworks(folder)["torch"]
    assert (status, "cannot use the GPUs of this machine" in message) == ("problem", True)
    assert cure.endswith("https://pytorch.org/get-started/locally")


def test_gpus_that_do_not_answer_or_have_no_tool(folder):
    assert statuses(folder.machine()._gpus())["gpus"][:2] == ("note", "none: ranks run on the CPU")
    (folder.devices / "kfd").touch()
    assert "AMD GPUs" in statuses(folder.machine()._gpus())["gpus"][1]
    (folder.devices / "nvidia0").touch()
    status, message, cure = statuses(folder.machine()._gpus())["gpus"]
    assert (status, message) == ("problem", "there are NVIDIA devices, but nvidia-smi is not on PATH")
    assert "NVIDIA Container Toolkit" in cure
    folder.program("nvidia-smi", "echo 'Driver/library version mismatch' >&2; exit 18")
    status, message, _ = statuses(folder.machine()._gpus())["gpus"]
    assert (status, message) == ("problem", "nvidia-smi fails: Driver/library version mismatch")


def test_shared_memory_and_disk(folder):
    found = statuses(folder.machine()._shared_memory())["shared memory"]
    assert found == ("ok", f"{folder.shared} has 16.0 GiB, 8.0 GiB free", "")
    small = folder.machine(usage=lambda _path: Usage(64 << 20, 0, 64 << 20))
    status, message, cure = statuses(small._shared_memory())["shared memory"]
    assert (status, "64 MiB free: too small for NCCL" in message) == ("problem", True)
    assert "docker run --shm-size=8g" in cure
    status, message, cure = statuses(small._disk())["disk"]
    assert (status, "has only 64 MiB left" in message) == ("problem", True)
    assert "allranks runs prune --older-than 7d" in cure
    absent = folder.machine(shared_memory=folder.work / "no")
    assert statuses(absent._shared_memory())["shared memory"][0] == "note"


def test_a_directory_that_is_not_writable_is_a_problem(folder, monkeypatch):
    monkeypatch.setattr(of_machine.os, "access", lambda *_: False)
    status, message, _ = statuses(folder.machine()._disk())["disk"]
    assert (status, message) == ("problem", f"{folder.work} is not writable")


def test_a_host_name_without_an_address_is_a_note(folder):
    def unresolved() -> str:
        raise socket.gaierror(-2, "No address associated with hostname")

    findings = list(folder.machine(host_address=unresolved)._network())
    assert [one.status for one in findings] == ["ok", "note"]
    assert findings[1].cure == f"add `127.0.0.1 {socket.gethostname()}` to /etc/hosts"


# --- a cluster -------------------------------------------------------------------------------------------------------


def healthy() -> dict[str, Any]:
    """Path -> answer of a cluster without a problem; an integer is the HTTP status of an error."""
    labels = {"app.kubernetes.io/version": __version__}
    meta = {"name": "allranks", "namespace": "allranks-system", "labels": labels}
    operator = {"metadata": meta, "spec": {"replicas": 2}, "status": {"readyReplicas": 2}}
    h200 = node("a", {"pool": "h200"}, **{"nvidia.com/gpu": "8", "cpu": "64"})
    pool = {"metadata": {"name": "h200"}, "spec": {"nodeSelector": {"pool": "h200"}}}
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    classes = [
        {"metadata": {"name": "standard", "annotations": default}, "provisioner": "pd.csi.storage.gke.io"},
        {"metadata": {"name": "files"}, "provisioner": "nfs.csi.k8s.io"},
    ]
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    return {
        "/version": {"gitVersion": "v1.34.1"},
        f"{crds}/distributedtrainings.allranks.dev": crd(KIND),
        f"{crds}/trainingpools.allranks.dev": crd(POOL_KIND),
        f"{crds}/trainingsweeps.allranks.dev": crd(SWEEP_KIND),
        "/apis/apps/v1/deployments": {"items": [operator]},
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": {"status": {"allowed": True}},
        "/api/v1/nodes": {"items": [h200, node("b"), node("c", ready=False)]},
        "/apis/allranks.dev/v1alpha1/trainingpools": {"items": [pool]},
        "/apis/storage.k8s.io/v1/storageclasses": {"items": classes},
        "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices": {
            "items": [{"endpoints": [{"conditions": {"ready": True}}, {"conditions": {"ready": False}}]}]
        },
        "/apis": {"groups": [{"name": "kueue.x-k8s.io", "preferredVersion": {"version": "v1beta2"}}]},
    }


def node(name: str, labels: dict[str, str] | None = None, ready: bool = True, **allocatable: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready)}]
    status = {"allocatable": allocatable, "conditions": conditions}
    return {"metadata": {"name": name, "labels": labels or {}}, "status": status}


class FakeCluster:
    namespace = "team"

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.client = SimpleNamespace(connection=SimpleNamespace(url="https://api:6443", context="prod"))

    async def get(self, path: str, query: object = None) -> Any:
        answer = self.answers.get(path, 404)
        if answer == "hangs":
            await asyncio.sleep(60)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            raise ClusterError("refused: ask an admin", answer)
        return answer

    async def request(self, verb: str, path: str, *, body: dict[str, Any]) -> Any:
        answer = await self.get(path)
        if callable(allowed := answer["status"]["allowed"]):
            attributes = body["spec"]["resourceAttributes"]
            return {"status": {"allowed": allowed(attributes)}}
        return answer


def examined(**changes: Any) -> dict[str, tuple[str, str, str]]:
    """The findings; the keys of `changes` are ends of paths, and their values answers."""
    answers = healthy()
    for end, answer in changes.items():
        (path,) = [path for path in answers if path.endswith(end)]
        answers[path] = answer

    async def collect() -> list[Finding]:
        return [finding async for finding in check_cluster(FakeCluster(answers))]  # type: ignore[arg-type]

    return statuses(asyncio.run(collect()))


def test_a_cluster_without_a_problem():
    found = examined()
    assert {check: (status, message) for check, (status, message, _) in found.items()} == {
        "api server": ("ok", "https://api:6443 (context prod) is Kubernetes v1.34.1, namespace team"),
        "crds": ("ok", "TrainingSweep has the fields of this client"),
        "operator": ("ok", f"allranks-system/allranks, version {__version__}, 2/2 replicas ready"),
        "rights": ("ok", "you may create, watch and delete jobs, and read pods, logs and events in namespace team"),
        "nodes": ("ok", "2 of 3 nodes are ready; 8 nvidia.com/gpu on 1 node"),
        "pools": ("ok", "h200 matches 1 node"),
        "rdma": ("ok", "no node offers an RDMA device"),
        "storage": ("ok", "standard (pd.csi.storage.gke.io, default), files (nfs.csi.k8s.io, shared)"),
        "dns": ("ok", "kube-dns has 1 ready endpoint"),
        "kueue": ("ok", "installed (v1beta2)"),
    }


def test_every_missing_right_is_a_note_and_hides_nothing_else():
    answers = dict.fromkeys(
        (
            *("distributedtrainings.allranks.dev", "trainingpools.allranks.dev", "trainingsweeps.allranks.dev"),
            *("deployments", "nodes"),
            *("v1alpha1/trainingpools", "storageclasses", "endpointslices", "/apis"),
        ),
        403,
    )
    found = examined(**answers)
    assert {check: message for check, (status, message, _) in found.items() if status != "ok"} == {
        "crds": "not checked: no right to read customresourcedefinitions",
        "operator": "not checked: no right to list deployments in all namespaces",
        "nodes": "not checked: no right to list nodes",
        "pools": "not checked: no right to list trainingpools",
        "rdma": "not checked: no right to list nodes",
        "storage": "not checked: no right to list storageclasses",
        "dns": "not checked: no right to list endpointslices in namespace kube-system",
        "kueue": "not checked: no right to read the API groups",
    }
    assert not [check for check, (status, *_) in found.items() if status == "problem"]
    assert examined(nodes=403)["pools"][1] == "not checked: no right to list nodes; there are h200"


def test_a_check_of_the_cluster_that_fails_or_hangs_does_not_hide_the_others(monkeypatch):
    monkeypatch.setattr(of_cluster, "CHECK_SECONDS", 0.2)
    found = examined(nodes="hangs", storageclasses=ValueError("odd"))
    assert found["nodes"][:2] == ("note", "not checked: there was no answer within 0.2 s")
    assert found["storage"][:2] == ("note", "not checked: ValueError: odd")
    assert found["dns"][0] == "ok"


def test_without_an_answer_of_the_api_server_nothing_else_is_asked(monkeypatch):
    why = "no API server answers at https://api:6443: connection refused: is the cluster up?"
    found = examined(version=ClusterError(why))
    assert found == {
        "api server": (
            "problem",
            "no API server answers at https://api:6443: connection refused",
            "is the cluster up?",
        ),
        "cluster": ("note", "not checked: the API server must answer first", ""),
    }
    monkeypatch.setattr(of_cluster, "CHECK_SECONDS", 0.1)
    assert examined(version="hangs")["api server"][0] == "problem"
    assert examined(version=403)["api server"][0] == "note"
    assert examined(version={"gitVersion": "v1.29.3-eks"})["api server"] == (
        *("problem", "https://api:6443 (context prod) is Kubernetes v1.29.3-eks"),
        "upgrade it: allranks needs 1.30",
    )


def test_the_oldest_version_of_kubernetes_is_that_of_the_chart():
    chart = yaml.safe_load((Path(__file__).parents[3] / "charts" / "allranks" / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={'.'.join(map(str, of_cluster.OLDEST))}.0-0"


def changed_crd(change: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(crd(KIND)))
    change(made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])
    made["metadata"]["labels"] = {"app.kubernetes.io/version": "0.0.1"}
    return made


def only(findings: list[Finding], text: str) -> Finding:
    (found,) = [finding for finding in findings if text in finding.message]
    return found


def crd_findings(definition: Any, plural: str = "distributedtrainings") -> list[Finding]:
    answers = healthy()
    (path,) = [path for path in answers if path.endswith(f"{plural}.allranks.dev")]
    answers[path] = definition
    return asyncio.run(of_cluster._crds(FakeCluster(answers)))  # type: ignore[arg-type]


def test_definitions_that_are_absent_older_or_newer():
    absent = only(crd_findings(404), "DistributedTraining")
    assert (absent.status, absent.cure) == ("problem", "install the operator: docs/platform/install.md")
    older = only(crd_findings(changed_crd(lambda fields: fields.pop("hang"))), "DistributedTraining")
    assert older.status == "problem"
    assert older.message.endswith("(version 0.0.1) is older than this client: it has no DistributedTraining.spec.hang")
    assert older.cure.startswith("kubectl apply --server-side -f crds/distributedtrainings.yaml")
    newer = only(crd_findings(changed_crd(lambda fields: fields.update(extra={"type": "string"}))), "newer")
    assert newer.status == "note"
    assert newer.message.endswith("is newer than this client, which has no DistributedTraining.spec.extra")
    assert only(crd_findings(404, "trainingpools"), "TrainingPool is not installed").status == "note"
    assert only(crd_findings(404, "trainingsweeps"), "TrainingSweep is not installed").status == "note"


def test_an_operator_that_is_absent_or_not_ready_is_a_problem():
    assert examined(deployments={"items": []})["operator"] == (
        *("problem", "no Deployment of the operator: jobs are accepted, but nothing runs them"),
        "install the operator: docs/platform/install.md",
    )
    meta = {"name": "allranks", "namespace": "ns", "labels": {"app.kubernetes.io/version": "0.0.1"}}
    down = {"metadata": meta, "spec": {"replicas": 1}, "status": {}}
    status, message, cure = examined(deployments={"items": [down]})["operator"]
    assert (status, message) == ("problem", "ns/allranks, version 0.0.1, 0/1 replicas ready: nothing runs the jobs")
    assert cure == "kubectl -n ns describe deployment allranks; kubectl -n ns logs deployment/allranks"
    other = {**down, "status": {"readyReplicas": 1}}
    status, message, cure = examined(deployments={"items": [other]})["operator"]
    assert (status, message.endswith(f"; this client is {__version__}")) == ("note", True)


def test_rights():
    def reader(attributes: dict[str, str]) -> bool:
        return attributes["verb"] in ("get", "list", "watch") and attributes["subresource"] != "log"

    some = examined(selfsubjectaccessreviews={"status": {"allowed": reader}})["rights"]
    assert some[:2] == (
        "note",
        "you may not create distributedtrainings, patch distributedtrainings, delete distributedtrainings, "
        "get pods/log in namespace team",
    )
    assert some[2].startswith("ask an admin to bind the ClusterRole edit to you in namespace team")
    none = examined(selfsubjectaccessreviews={"status": {"allowed": False}})["rights"]
    assert none[0] == "problem"
    assert none[1].startswith("you have no rights for jobs in namespace team: create distributedtrainings, get")


def test_nodes_pools_storage_and_dns():
    assert examined(nodes={"items": [node("a", ready=False)]})["nodes"][:2] == ("problem", "0 of 1 nodes are ready")
    no_gpu = examined(nodes={"items": [node("a", {"pool": "h200"})]})
    assert no_gpu["nodes"][:2] == ("note", "1 of 1 nodes are ready; none has GPUs")
    amd = examined(nodes={"items": [node("a", **{"amd.com/gpu": "4"}), node("b", **{"nvidia.com/mig-1g.10gb": "7"})]})
    assert amd["nodes"][1].endswith("; 4 amd.com/gpu on 1 node, 7 nvidia.com/mig-1g.10gb on 1 node")
    assert amd["pools"] == (
        *("problem", "h200 matches no node: none has pool=h200"),
        "label the nodes, or change nodeSelector: kubectl edit trainingpool h200",
    )
    assert examined(storageclasses={"items": []})["storage"][:2] == (
        "note",
        "there is no StorageClass: claims need volumes that an admin creates",
    )
    plain = {"metadata": {"name": "disk"}, "provisioner": "ebs.csi.aws.com"}
    assert examined(storageclasses={"items": [plain]})["storage"][:2] == (
        "note",
        "disk (ebs.csi.aws.com); none is the default",
    )
    plain["metadata"]["annotations"] = {"storageclass.kubernetes.io/is-default-class": "true"}
    assert "none is of a kind that usually" in examined(storageclasses={"items": [plain]})["storage"][1]
    assert examined(endpointslices={"items": []})["dns"][0] == "note"
    down = {"items": [{"endpoints": [{"conditions": {"ready": False}}]}]}
    assert examined(endpointslices=down)["dns"][:2] == (
        "problem",
        "kube-dns has no ready endpoint: ranks cannot find one another",
    )
    assert examined(**{"/apis": {"groups": []}})["kueue"] == ("ok", "not installed", "")


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch, tmp_path) -> None:
    """No cluster is configured, and this machine is checked at once."""
    monkeypatch.setattr(of_machine.Machine, "checks", lambda _self: {"disk": lambda: [ok("disk", "8 GiB free")]})
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def doctor(*args: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *args], catch_exceptions=False)


def test_without_a_cluster_only_this_machine_is_checked(quick):
    result = doctor()
    assert result.exit_code == 0
    assert result.stdout.startswith(
        "This machine\n  ok       disk           8 GiB free\n\nCluster\n  note     api server"
    )
    assert "not checked: no cluster is configured: there is no" in result.stdout
    assert result.stdout.endswith("\nno problems, 1 note\n")
    assert doctor("--local").stdout == "This machine\n  ok       disk           8 GiB free\n\nno problems, no notes\n"


def test_a_cluster_that_is_asked_for_and_not_there_is_a_problem(quick, tmp_path):
    result = doctor("--cluster", "-o", "json")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert (data["problems"], data["notes"]) == (1, 0)
    (finding,) = data["checks"]
    assert {key: finding[key] for key in ("section", "check", "status")} == {
        "section": "cluster",
        "check": "api server",
        "status": "problem",
    }
    absent = doctor("--kubeconfig", str(tmp_path / "no"))
    assert absent.exit_code == 1
    assert "problem  api server     kubeconfig" in absent.stdout
    assert doctor("--local", "--cluster").exit_code == 2


def test_a_problem_has_exit_status_1_and_its_cure_below(quick, monkeypatch):
    async def check(cluster: object, result: Any) -> int:
        result.add(Finding("dns", "problem", "no endpoint", "restart it"))
        return 0

    monkeypatch.setattr(
        command, "run_on_cluster", lambda check_, where, options, other: asyncio.run(check(None, **options))
    )
    result = doctor()
    assert result.exit_code == 1
    assert "\n  problem  dns            no endpoint\n                          cure: restart it\n" in result.stdout
    assert result.stdout.endswith("\n1 problem, no notes\n")
    assert yaml.safe_load(doctor("-o", "yaml").stdout)["problems"] == 1
