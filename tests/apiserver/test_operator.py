"""The operator on a real API server: failures, invalid input, and what real clients observe."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from allranks.api.job import KIND
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.operator import crd_check, job_watch
from allranks.operator.app import Operator
from support import controlplane, live
from support.api import ApiError
from support.api import path as path_of
from support.controlplane import ControlPlane
from support.kubelet import Hand, Program
from support.live import eventually, job, phase
from support.operators import cached_versions
from support.simulator import pod_status

from .conftest import DEFINITIONS

BRIEF = Program(seconds=0.3)
LONG = Program(seconds=None)


# Failures


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_the_operator_survives_the_api_servers_restart(control_plane: ControlPlane, namespace: str, how) -> None:
    connection = live.connection(control_plane)
    with live.operator(connection, namespace) as operator, live.kubelet(connection, LONG, namespace=namespace):
        control_plane.api.create(job(), namespace)
        eventually(lambda: phase(control_plane, namespace) == "Running")
        session = operator.session
        control_plane.stop_api_server(how)
        time.sleep(1)  # the operator detects it
        control_plane.start_api_server()
        control_plane.api.patch(KIND, namespace, "demo", {"spec": {"suspend": True}})
        eventually(lambda: phase(control_plane, namespace) == "Suspended")
        control_plane.api.patch(KIND, namespace, "demo", {"spec": {"suspend": False}})
        eventually(lambda: phase(control_plane, namespace) == "Running")
        assert operator.session is session, "the session continues"
        assert control_plane.api.get(KIND, namespace, "demo")["status"]["restarts"]["counted"] == 0


def test_a_failure_leaves_the_peers_less_time_than_their_own_grace_period(
    control_plane: ControlPlane, namespace: str
) -> None:
    if control_plane.has_nodes:
        pytest.skip("plays the nodes itself")
    api = control_plane.api
    hand = Hand(api, namespace, lambda: datetime.now(UTC).replace(microsecond=0), lambda _: datetime.max)
    with live.operator(live.connection(control_plane), namespace):
        api.create(job(template={"spec": {"terminationGracePeriodSeconds": 600}}), namespace)
        for name in ("demo-master-0-0", "demo-worker-0-0"):
            eventually(lambda name=name: api.find("Pod", namespace, name))
            hand.place(name, "node-1")
            hand.set_status(name, pod_status.running)
        hand.end("demo-worker-0-0", 1, "Error")
        eventually(lambda: api.find("Pod", namespace, "demo-master-0-1"), what="the next attempt")
        peer = api.get("Pod", namespace, "demo-master-0-0")["metadata"]
        assert (peer["deletionGracePeriodSeconds"], "deletionTimestamp" in peer) == (30, True)


def test_a_restart_of_the_operator_does_not_change_settled_jobs(control_plane: ControlPlane, namespace: str) -> None:
    connection = live.connection(control_plane)
    with live.kubelet(connection, LONG, namespace=namespace):
        with live.operator(connection, namespace):
            for number in range(20):
                control_plane.api.create(job(f"demo-{number}"), namespace)
            eventually(lambda: all(phase(control_plane, namespace, f"demo-{n}") == "Running" for n in range(20)))

        def versions() -> dict[str, str]:
            found = [o for kind in (KIND, "Pod", "Service") for o in control_plane.api.list(kind, namespace)]
            return {o["metadata"]["uid"]: o["metadata"]["resourceVersion"] for o in found}

        before = versions()
        with live.operator(connection, namespace) as operator:
            eventually(lambda: operator.idle and len(cached_versions(operator.session)) >= 60)
            assert operator.session
            assert operator.session.client.writes == 0
        assert versions() == before


@pytest.mark.nightly
def test_after_a_kill_while_a_thousand_jobs_start_the_next_operator_completes_them(
    control_plane: ControlPlane, namespace: str
) -> None:
    connection, count = live.connection(control_plane), 1000

    async def create() -> None:
        client = Client(connection)
        jobs = (job(f"demo-{number}", roles={"worker": {"replicas": 1}}) for number in range(count))
        await asyncio.gather(*(client.create(paths.job_path(namespace), one) for one in jobs))
        await client.close()

    def made(kind: str) -> int:
        return len(control_plane.api.list(kind, namespace))

    asyncio.run(create())
    with live.operator(connection, namespace) as operator:
        eventually(lambda: operator.session and len(operator.session.pods) > count / 3)
    assert made("Pod") < count, "it was killed too late for this test"
    with live.operator(connection, namespace) as operator:
        eventually(lambda: operator.session and len(operator.session.pods) == count)
        eventually(lambda: operator.idle)
    assert (made("Pod"), made("Service")) == (count, count)
    with live.operator(connection, namespace) as operator:
        eventually(lambda: operator.idle and len(cached_versions(operator.session)) == 2 * count)
        assert operator.session
        assert operator.session.client.writes == 0
    found = control_plane.api.list(KIND, namespace)
    assert {(o["status"]["attempt"], o["status"]["restarts"]["disruptions"]) for o in found} == {(0, 0)}


@pytest.mark.parametrize("unreadable", ["kube-public", pytest.param("was-deleted", marks=pytest.mark.nightly)])
def test_an_unreadable_namespace_does_not_block_others(
    control_plane: ControlPlane, namespace: str, unreadable: str
) -> None:
    """A Role is deleted with its namespace: both look the same to the operator."""
    rules = [{"apiGroups": ["", "allranks.dev"], "resources": ["*"], "verbs": ["*"]}]
    group = "rbac.authorization.k8s.io"
    for kind, what in (
        ("Role", {"rules": rules}),
        (
            "RoleBinding",
            {
                "roleRef": {"apiGroup": group, "kind": "Role", "name": "all"},
                "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
            },
        ),
    ):
        manifest = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "all"}, **what}
        done = control_plane.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(manifest))
        assert done.returncode == 0, done.stderr
    token = control_plane.kubectl("create", "token", "default", "-n", namespace).stdout.strip()
    confined = replace(live.connection(control_plane), token=token)
    with (
        live.operator(confined, unreadable, namespace) as operator,
        live.kubelet(live.connection(control_plane), BRIEF, namespace=namespace),
    ):
        control_plane.api.create(job(pool="gpu"), namespace)
        control_plane.api.create(job("other"), namespace)
        eventually(lambda: phase(control_plane, namespace, "other") == "Succeeded")
        [condition] = control_plane.api.get(KIND, namespace, "demo")["status"]["conditions"]
        assert condition["reason"] == "PoolsNotServed"
        eventually(lambda: operator.session and operator.session.synced)
        assert operator.session
        assert operator.session.leading, "it accepts reports"
        assert not operator.unready()
        assert operator.metrics.registry.get_sample_value("allranks_unreadable_namespaces") == 1


def test_a_user_without_a_name_can_run_the_operator_as_in_a_container(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr("getpass.getuser", nameless)
    with live.operator(live.connection(control_plane), namespace) as operator:
        eventually(lambda: operator.session and operator.session.synced)


@pytest.mark.parametrize("listed", [pytest.param("absent", marks=pytest.mark.nightly), "still listed"])
def test_the_operator_waits_for_the_crds(
    control_plane: ControlPlane, namespace: str, listed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server may still list CRDs for a moment after they were deleted."""
    wait_for_crds, waits = crd_check.wait_for_crds, threading.Event()

    async def observed(*arguments: Any) -> None:
        waits.set()
        await wait_for_crds(*arguments)

    async def return_once(*_: Any) -> None:
        monkeypatch.setattr(crd_check, "wait_for_crds", observed)

    monkeypatch.setattr(crd_check, "wait_for_crds", observed if listed == "absent" else return_once)
    connection = live.connection(control_plane)
    names = [yaml.safe_load(path.read_text())["metadata"]["name"] for path in DEFINITIONS]
    live.wait_until_served(control_plane.api)
    try:
        for name in names:
            control_plane.api.delete("CustomResourceDefinition", None, name)
        definitions = [("CustomResourceDefinition", None, name) for name in names]
        eventually(lambda: not any(control_plane.api.find(*each) for each in definitions))
        with live.operator(connection, namespace, pools=False) as operator:
            eventually(waits.is_set)
            assert not operator.idle
            for path in DEFINITIONS:
                control_plane.kubectl("apply", "-f", str(path))
            with live.kubelet(connection, BRIEF, namespace=namespace):
                eventually(lambda: not _refused(lambda: control_plane.api.create(job(), namespace)))
                eventually(lambda: phase(control_plane, namespace) == "Succeeded")
    finally:
        controlplane.install(control_plane.api, DEFINITIONS)  # the tests after this one need them


@pytest.mark.nightly
def test_the_operator_continues_after_a_thousand_errors_in_a_row(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like four hours of 500s at the longest backoff (15 s), without the waiting."""
    asked = 0

    class Quick(job_watch.EndlessBackoff):
        def __iter__(self):
            nonlocal asked
            while True:
                asked += 1
                yield 0.001

    monkeypatch.setattr(job_watch, "EndlessBackoff", Quick)
    from allranks.kube import client, watch

    monkeypatch.setattr(client, "LAST_BACKOFF_SECONDS", 0.002)
    monkeypatch.setattr(watch, "LAST_BACKOFF_SECONDS", 0.002)
    monkeypatch.setattr(watch, "FIRST_BACKOFF_SECONDS", 0.001)
    connection = live.connection(control_plane)
    with live.operator(connection, namespace) as operator, live.kubelet(connection, LONG, namespace=namespace):
        control_plane.api.create(job(), namespace)
        eventually(lambda: phase(control_plane, namespace) == "Running")
        session = operator.session
        control_plane.stop_api_server()
        eventually(lambda: asked > 1000)
        control_plane.start_api_server()
        control_plane.api.patch(KIND, namespace, "demo", {"spec": {"suspend": True}})
        eventually(lambda: phase(control_plane, namespace) == "Suspended")
        assert operator.session is session


# Invalid input


def _refused(request) -> str:
    try:
        request()
    except ApiError as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"env": [{"name": "MASTER_ADDR", "value": "x"}]}, r"spec.env: .*set by allranks: remove any of.*MASTER_ADDR"),
        ({"env": [{"name": "ALLRANKS_JOB", "value": "x"}]}, r"spec.env: .*choose another name"),
        ({"roles": {"chief": {"replicas": 1}}}, r"spec.roles.chief: .*is a role of tensorflow, ray and spmd only"),
        ({"tensorflow": {}}, r"spec.tensorflow: .*does not match framework"),
        ({"checkpoint": {"volume": {"hostPath": {"path": "/x"}}}}, r"spec.checkpoint.volume: .*hostPath is refused"),
    ],
)
def test_invalid_input_is_rejected_with_the_path_of_the_field(
    control_plane: ControlPlane, namespace: str, change: dict[str, Any], message: str
) -> None:
    done = control_plane.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(job(**change)))
    assert done.returncode == 1
    assert re.search(message, done.stderr), done.stderr


def test_a_name_of_63_characters_is_rejected_because_pod_names_contain_it(
    control_plane: ControlPlane, namespace: str
) -> None:
    message = _refused(lambda: control_plane.api.create(job("a" * 63), namespace))
    assert "metadata.name: at most 42 characters" in message


def test_an_unknown_field_is_rejected_by_kubectl(control_plane: ControlPlane, namespace: str) -> None:
    done = control_plane.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(job(framwork="x")))
    assert done.returncode == 1
    assert 'unknown field "spec.framwork"' in done.stderr


def test_a_job_that_was_stored_under_an_older_schema_is_marked_and_others_are_not_affected(
    control_plane: ControlPlane, namespace: str
) -> None:
    """Schemas change between versions, stored objects do not. Here one is stored without a schema."""
    definition = yaml.safe_load(DEFINITIONS[0].read_text())
    assert definition["spec"]["names"]["kind"] == KIND
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    loose = json.loads(json.dumps(definition))
    loose["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": anything}
    loose["spec"]["versions"][0]["subresources"].pop("scale")
    broken = job("broken", framework="caffe")
    worse = job("worse", roles={"worker": {"replicas": "many"}})
    huge = job("huge", args=["x" * 8000] * 100)
    control_plane.kubectl("replace", "-f", "-", input=json.dumps(loose))
    try:
        eventually(lambda: not _refused(lambda: control_plane.api.create(broken, namespace)))
        control_plane.api.create(huge, namespace)
        control_plane.api.create(worse, namespace)
    finally:
        control_plane.kubectl("replace", "-f", "-", input=json.dumps(definition))
    eventually(
        lambda: "caffe" in _refused(lambda: control_plane.api.create({**broken, "metadata": {"name": "no"}}, namespace))
    )
    connection = live.connection(control_plane)
    with live.operator(connection, namespace), live.kubelet(connection, BRIEF, namespace=namespace):
        control_plane.api.create(job("good"), namespace)
        eventually(lambda: phase(control_plane, namespace, "good") == "Succeeded")
        eventually(lambda: phase(control_plane, namespace, "huge") == "Succeeded")
        eventually(lambda: phase(control_plane, namespace, "broken") == "Failed")
        [condition] = control_plane.api.get(KIND, namespace, "broken")["status"]["conditions"]
        assert condition["reason"] == "InvalidSpec"
        assert "spec.framework" in condition["message"]
        # When a CEL rule cannot be evaluated, the API server rejects every status, so there is only an Event.
        messages = {e["involvedObject"]["name"]: e["message"] for e in control_plane.api.list("Event", namespace)}
        assert "spec.roles.worker.replicas: must be a whole number" in messages["worse"]


def test_a_job_that_is_deleted_while_it_starts_leaves_no_objects(control_plane: ControlPlane, namespace: str) -> None:
    def things() -> list[Any]:
        return [found for kind in ("Pod", "Service", KIND) for found in control_plane.api.list(kind, namespace)]

    with live.operator(live.connection(control_plane), namespace) as operator:
        for number in range(10):
            control_plane.api.create(job(f"demo-{number}", roles={"worker": {"replicas": 10}}), namespace)
            time.sleep(0.01 * number)
            control_plane.api.delete(KIND, namespace, f"demo-{number}")
        eventually(lambda: operator.idle and not things())


# Real clients


def test_a_job_gets_the_network_policy_and_the_secret_that_keep_strangers_away(control_plane, namespace) -> None:
    connection = live.connection(control_plane)
    with (
        live.operator(connection, namespace, network_policies=True),
        live.kubelet(connection, LONG, namespace=namespace),
    ):
        control_plane.api.create(job(framework="horovod", roles={"worker": {"replicas": 2}}), namespace)
        eventually(lambda: phase(control_plane, namespace) == "Running")
        policy = control_plane.api.get("NetworkPolicy", namespace, "demo")
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        assert policy["metadata"]["ownerReferences"][0]["kind"] == KIND
        [secret] = control_plane.api.list("Secret", namespace)
        assert secret["metadata"]["name"].startswith("demo-rendezvous-")
        assert len(secret["data"]["secret"]) > 32
        # A second attempt finds both.
        control_plane.api.patch(KIND, namespace, "demo", {"spec": {"suspend": True}})
        eventually(lambda: phase(control_plane, namespace) == "Suspended")
        control_plane.api.patch(KIND, namespace, "demo", {"spec": {"suspend": False}})
        eventually(lambda: phase(control_plane, namespace) == "Running")
        assert control_plane.api.list("Secret", namespace) == [secret]


def test_kubectl_waits_for_conditions_and_for_the_phase_as_argo_reads_it(
    control_plane: ControlPlane, namespace: str
) -> None:
    connection = live.connection(control_plane)

    def wait(name: str, what: str) -> int:
        arguments = (f"--for={what}", f"dt/{name}", "-n", namespace, "--timeout=280s")
        return control_plane.kubectl("wait", *arguments).returncode

    with live.operator(connection, namespace), live.kubelet(connection, BRIEF, namespace=namespace):
        control_plane.api.create(job("good"), namespace)
        assert wait("good", "condition=Complete") == 0
        # The successCondition of an Argo workflow is `status.phase == Succeeded`.
        assert wait("good", "jsonpath={.status.phase}=Succeeded") == 0
    failing = Program(seconds=0.2, code=3)
    with live.operator(connection, namespace), live.kubelet(connection, failing, namespace=namespace):
        control_plane.api.create(job("bad", restart={"maxRestarts": 0}), namespace)
        assert wait("bad", "condition=Failed") == 0
        assert wait("bad", "jsonpath={.status.phase}=Failed") == 0
        table = control_plane.kubectl("get", "dt", "-n", namespace).stdout.splitlines()
        assert table[0].split() == [
            "NAME",
            "FRAMEWORK",
            "PHASE",
            "READY",
            "RESTARTS",
            "PROGRESS",
            "ETA",
            "AGE",
            "REASON",
        ]
        assert [line.split()[:3] for line in table[1:]] == [
            ["bad", "pytorch", "Failed"],
            ["good", "pytorch", "Succeeded"],
        ]
        described = control_plane.kubectl("describe", "dt", "bad", "-n", namespace).stdout
        assert (
            "master-0 failed with exit code 3 (Error)" in described
            or "worker-0 failed with exit code 3 (Error)" in described
        )


def test_kubectl_scales_and_observed_generation_follows_for_kstatus(
    control_plane: ControlPlane, namespace: str
) -> None:
    connection = live.connection(control_plane)
    with live.operator(connection, namespace), live.kubelet(connection, LONG, namespace=namespace):
        control_plane.api.create(job(), namespace)
        eventually(lambda: phase(control_plane, namespace) == "Running")
        assert control_plane.kubectl("scale", "dt/demo", "--replicas=3", "-n", namespace).returncode == 0

        def settled() -> bool:
            found = control_plane.api.get(KIND, namespace, "demo")
            status = found["status"]
            return status["observedGeneration"] == found["metadata"]["generation"] == 2 and status["ready"] == "4/4"

        eventually(settled)
        scale = json.loads(
            control_plane.kubectl("get", "dt/demo", "--subresource=scale", "-o=json", "-n", namespace).stdout
        )
        assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (3, 3)
        selected = control_plane.kubectl(
            "get", "pods", "-n", namespace, "-o=name", f"-l{scale['status']['selector']}"
        ).stdout
        assert len([line for line in selected.splitlines() if line.endswith("-1")]) == 3


@pytest.mark.nightly
def test_kubectl_explains_every_field(control_plane: ControlPlane) -> None:
    """One page per object of the schema: each field has a description."""
    schemas = {yaml.safe_load(p.read_text())["spec"]["names"]["plural"]: p for p in DEFINITIONS}
    for plural, path in schemas.items():
        root = yaml.safe_load(path.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for where, node in _objects(root, plural):
            page = control_plane.kubectl("explain", where).stdout
            for name, child in node["properties"].items():
                assert re.search(rf"^  {re.escape(name)}\t", page, re.MULTILINE), (where, name)
                if where != plural:
                    assert child.get("description"), f"{where}.{name} has no description"


def _objects(node: dict[str, Any], where: str):
    """Checks one role only: all have the same type."""
    if "properties" in node:
        yield where, node
        children = node["properties"]
        if where.endswith(".roles") and "spec" in where:
            children = {"worker": children["worker"]}
        for name, child in children.items():
            yield from _objects(child.get("items", child), f"{where}.{name}")


# Monitoring


def test_probes_and_metrics_show_the_state_of_the_operator(control_plane: ControlPlane, namespace: str) -> None:
    import urllib.request

    def asked(operator, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{operator.server.port}{path}", timeout=5) as answer:
            return answer.read().decode()

    connection = live.connection(control_plane)
    with live.operator(connection, namespace) as operator, live.kubelet(connection, BRIEF, namespace=namespace):
        eventually(lambda: operator.session and operator.session.synced)
        assert asked(operator, "/readyz") == "ok\n"
        control_plane.api.create(job(), namespace)
        eventually(lambda: phase(control_plane, namespace) == "Succeeded")
        eventually(lambda: operator.idle)
        page = asked(operator, "/metrics")
        labels = f'framework="pytorch",job_namespace="{namespace}",phase="Succeeded"'
        assert f"allranks_jobs{{{labels}}} 1.0" in page
        assert f"allranks_jobs_finished_total{{{labels}}} 1.0" in page
        assert 'allranks_job_start_seconds_count{framework="pytorch"} 1.0' in page
        assert "demo" not in page, "no label contains the name of a job"
        assert asked(operator, "/healthz") == "ok\n"
        assert operator.session
        watch = next(iter(operator.session.watches.values()))
        watch.alive_at -= 10_000
        with pytest.raises(urllib.error.HTTPError, match="503") as raised:
            asked(operator, "/healthz")
        assert b"no activity of the watch of pods" in raised.value.read()
        raised.value.close()


def test_metrics_with_authentication_need_an_account_that_may_get_them(
    control_plane: ControlPlane, namespace: str
) -> None:
    import urllib.request

    api, role = control_plane.api, f"metrics-{namespace}"
    rbac = "/apis/rbac.authorization.k8s.io/v1"

    def token_of(account: str) -> str:
        body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}
        api.request("POST", path_of("ServiceAccount", namespace), body)
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        answer = api.request("POST", path_of("ServiceAccount", namespace, account, "token"), request)
        return str(answer["status"]["token"])

    def code(operator: Operator, token: str = "") -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{operator.server.port}/metrics")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    rules = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    api.request("POST", f"{rbac}/clusterroles", {"metadata": {"name": role}, "rules": rules})
    binding = {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "scraper", "namespace": namespace}],
    }
    api.request("POST", f"{rbac}/clusterrolebindings", binding)
    try:
        with live.operator(live.connection(control_plane), namespace, metrics_auth=True, probe_port=0) as operator:
            assert operator.probes
            eventually(lambda: operator.probes and operator.probes.port)
            assert (code(operator), code(operator, "forged")) == (401, 401)
            assert code(operator, token_of("stranger")) == 403
            scraper = token_of("scraper")  # The authorizer may observe the binding late.
            eventually(lambda: code(operator, scraper) == 200)
            eventually(lambda: operator.session and operator.session.synced)
            with urllib.request.urlopen(f"http://127.0.0.1:{operator.probes.port}/readyz", timeout=5) as answer:
                assert answer.read() == b"ok\n"
    finally:
        api.request("DELETE", f"{rbac}/clusterrolebindings/{role}")
        api.request("DELETE", f"{rbac}/clusterroles/{role}")
