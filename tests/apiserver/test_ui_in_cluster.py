"""The UI of a cluster on a real API server: two users with different rights, and one without."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allranks.archive.layout import LogName
from allranks.ui import users
from support.archives import WrittenArchive
from support.commands import JobOnCluster
from support.live import connection, eventually
from support.sweep_samples import a_sweep
from support.ui_in_cluster import Browser, ClusterUi
from support.ui_samples import a_job, event

JOBS = "distributedtrainings"


def token_of(control_plane: Any, namespace: str, account: str) -> str:
    api = control_plane.api
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}, namespace)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    return str(api.request("POST", path, request)["status"]["token"])


def allow(
    control_plane: Any,
    namespace: str,
    account: str,
    verbs: list[str],
    resources: Sequence[str] = ("pods", "pods/log", "events"),
    kinds: Sequence[str] = (JOBS,),
) -> None:
    """A Role in the namespace, by default with the rights for pods and Events that a reader has."""
    rules = [
        {"apiGroups": ["allranks.dev"], "resources": list(kinds), "verbs": verbs},
        {"apiGroups": [""], "resources": list(resources), "verbs": ["get", "list"]},
    ]
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account}
    group = "rbac.authorization.k8s.io/v1"
    base = f"/apis/{group}/namespaces/{namespace}"
    role = {"apiVersion": group, "kind": "Role", "metadata": {"name": account}, "rules": rules}
    control_plane.api.request("POST", f"{base}/roles", role)
    binding = {"apiVersion": group, "kind": "RoleBinding", "metadata": {"name": account}}
    binding |= {"subjects": [subject], "roleRef": reference}
    control_plane.api.request("POST", f"{base}/rolebindings", binding)


@pytest.fixture
def other(control_plane: Any) -> Iterator[str]:
    """A second namespace."""
    name = f"test-{secrets.token_hex(4)}"
    control_plane.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    control_plane.api.delete("Namespace", None, name)


@pytest.fixture
def ui(control_plane: Any) -> Iterator[ClusterUi]:
    with ClusterUi(replace(connection(control_plane), token=None)) as server:
        yield server


def test_two_users_see_and_change_what_each_may(ui, control_plane, namespace, other, job):
    theirs = JobOnCluster(control_plane.api, other, "whales")
    reader = token_of(control_plane, namespace, "reader")
    editor = token_of(control_plane, other, "editor")
    allow(control_plane, namespace, "reader", ["get", "list", "watch"])
    allow(control_plane, other, "editor", ["get", "list", "watch", "patch", "delete"])
    mine, foreign = f"/api/v1/jobs/{namespace}/penguins", f"/api/v1/jobs/{other}/whales"
    eventually(lambda: ui.by(reader, "GET", mine).status == 200, what="the right of the reader")
    eventually(lambda: ui.by(editor, "GET", foreign).status == 200, what="the right of the editor")
    assert ui.by(reader, "GET", mine).json["metadata"]["uid"] == job.uid
    assert ui.by(editor, "GET", foreign).json["metadata"]["uid"] == theirs.uid

    # Neither sees the jobs of the other.
    for path, token, where in ((foreign, reader, other), (mine, editor, namespace)):
        answer = ui.by(token, "GET", path)
        assert (answer.status, answer.json["status"]) == (403, 403)
        assert f"may not list {JOBS}.allranks.dev in namespace {where}: ask its admin for the role view" in answer.text
        assert ui.by(token, "GET", f"/api/v1/stream?namespace={where}").status == 403
        assert ui.by(token, "GET", f"/api/v1/jobs?namespace={where}").status == 403

    # The reader may not change what it sees, the editor may.
    refused = ui.by(reader, "POST", f"{mine}/suspend", {})
    assert refused.status == 403
    assert f"may not patch {JOBS} in namespace {namespace}" in refused.json["detail"]
    assert not control_plane.api.find("DistributedTraining", namespace, "penguins")["spec"].get("suspend")
    done = ui.by(editor, "POST", f"{foreign}/suspend", {})
    assert done.json["message"] == "whales suspended"
    assert control_plane.api.find("DistributedTraining", other, "whales")["spec"]["suspend"] is True


def test_an_admin_sees_all_namespaces(ui, control_plane, namespace, other, job):
    JobOnCluster(control_plane.api, other, "whales")
    answer = eventually(
        lambda: len((found := ui.by(control_plane.admin_token, "GET", "/api/v1/jobs")).json["items"]) >= 2 and found
    )
    assert {(namespace, "penguins"), (other, "whales")} <= {
        (item["metadata"]["namespace"], item["metadata"]["name"]) for item in answer.json["items"]
    }


def test_a_user_without_rights_gets_a_clear_sentence_and_can_choose_a_namespace(ui, control_plane, namespace, job):
    browser = Browser(ui)
    page = browser.get("/")
    assert page.status == 401
    assert 'action="/sign-in"' in page.text
    token = token_of(control_plane, namespace, "newcomer")
    assert browser.post("/sign-in", token=token, target="/").headers["location"] == "/"
    page = browser.get("/")
    name = f"system:serviceaccount:{namespace}:newcomer"
    assert page.status == 403
    assert f"{name} may not list the jobs of all namespaces: choose a namespace" in page.text
    assert '<input type="text" name="namespace"' in page.text
    page = browser.get(f"/?namespace={namespace}")
    assert f"{name} may not list {JOBS}.allranks.dev in namespace {namespace}" in page.text
    assert "penguins" not in page.text


def test_somebody_signs_in_looks_acts_and_signs_out(ui, control_plane, namespace, job):
    allow(control_plane, namespace, "editor", ["get", "list", "watch", "patch"])
    token = token_of(control_plane, namespace, "editor")
    browser = Browser(ui)
    wrong = browser.post("/sign-in", token="not-a-token", target="/")
    assert wrong.status == 401
    assert "the API server does not accept the token: sign in with a new one" in wrong.text
    target = f"/jobs/{namespace}/penguins"
    # As a person who retries until the new role is in effect.
    assert browser.post("/sign-in", token=f" {token}\n", target=target).headers["location"] == target
    page = eventually(lambda: (found := browser.get(f"/?namespace={namespace}")).status == 200 and found)
    assert f"system:serviceaccount:{namespace}:editor" in page.text
    assert "penguins" in eventually(lambda: "penguins" in (found := browser.get("/")).text and found.text)
    assert browser.get(target).status == 200
    assert token not in browser.get(target).text
    assert browser.post(f"{target}/actions/suspend", uid=job.uid).headers["location"] == target
    assert control_plane.api.find("DistributedTraining", namespace, "penguins")["spec"]["suspend"] is True
    # A page of another site cannot act for the browser.
    assert browser.post(f"{target}/actions/resume", origin="https://evil.example", uid=job.uid).status == 403
    assert browser.post("/sign-out").status == 303
    assert browser.get(target).status == 401


# --- deleted jobs ----------------------------------------------------------------------------------------------------


@pytest.fixture
def archive(tmp_path: Path, namespace: str, other: str) -> WrittenArchive:
    """A deleted job in each namespace: penguins in the first one, whales in the other."""
    (tmp_path / "archive").mkdir()
    archive = WrittenArchive(tmp_path / "archive")
    for place, name in ((namespace, "penguins"), (other, "whales")):
        job = a_job(name, "Succeeded", namespace=place)
        archive.job(job, event(name, "DistributedTraining", "Started", "attempt 0 started", uid=f"uid-{name}"))
        archive.log(job, LogName(0, "worker", 0), f"log of {name}")
        archive.job(a_sweep(f"sweep-of-{name}", namespace=job["metadata"]["namespace"]))
    return archive


def test_deleted_jobs_are_shown_to_users_who_may_read_jobs_of_their_namespace(control_plane, namespace, other, archive):
    reader = token_of(control_plane, namespace, "reader")
    allow(control_plane, namespace, "reader", ["get", "list", "watch"])
    newcomer = token_of(control_plane, namespace, "newcomer")
    without_logs = token_of(control_plane, other, "lister")
    allow(control_plane, other, "lister", ["get", "list", "watch"], resources=["events"])
    mine, theirs = f"archive/{namespace}/penguins-uid-penguins", f"archive/{other}/whales-uid-whales"
    server = replace(connection(control_plane), token=None)
    with ClusterUi(server, archive=archive.url) as ui:

        def get(token: str, path: str) -> Any:
            return ui.by(token, "GET", f"/api/v1/{path}")

        eventually(lambda: get(reader, mine).status == 200, what="the right of the reader")
        assert get(reader, f"{mine}/logs").json["lines"][0]["line"] == "log of penguins"
        assert [one["reason"] for one in get(reader, f"{mine}/events").json["items"]] == ["Started"]
        assert get(reader, f"{mine}/report").json["name"] == "penguins"
        listed = get(reader, f"archive?namespace={namespace}").json["items"]
        assert [one["metadata"]["name"] for one in listed] == ["penguins"]

        # Sweeps need a right of their own.
        sweep = f"sweeps/archive/{namespace}/sweep-of-penguins-uid-sweep-of-penguins"
        refused = get(reader, sweep)
        assert refused.status == 403
        assert f"cannot get trainingsweeps.allranks.dev in namespace {namespace}" in refused.json["detail"]
        assert get(reader, f"sweeps/archive?namespace={namespace}").json["items"] == []
        watcher = token_of(control_plane, namespace, "watcher")
        allow(control_plane, namespace, "watcher", ["get", "list", "watch"], kinds=[JOBS, "trainingsweeps"])
        eventually(lambda: get(watcher, sweep).status == 200, what="the right of the watcher")
        [found] = get(watcher, f"sweeps/archive?namespace={namespace}").json["items"]
        assert found["metadata"]["name"] == "sweep-of-penguins"
        assert get(watcher, f"sweeps/archive?namespace={other}").status == 403

        # Nothing says that the other namespace has a job.
        for path in (
            theirs,
            f"{theirs}/logs",
            f"{theirs}/report",
            f"archive?namespace={other}",
            f"history?namespace={other}",
        ):
            answer = get(reader, path)
            assert answer.status == 403, path
            assert "whales" not in answer.json["detail"]
        for path in ("history", f"compare?job={theirs}", f"archive/{other}/no-such-job"):
            answer = get(reader, f"{path}{'&' if '?' in path else '?'}namespace={namespace}")
            assert "whales" not in answer.text.replace(theirs, ""), path
        page = ui.by(reader, "GET", f"/history?namespace={namespace}").text
        assert "penguins" in page
        assert other not in page

        # Without a right for logs there is the job, and no log. Without any right there is nothing.
        eventually(lambda: get(without_logs, theirs).status == 200, what="the right of the lister")
        refused = get(without_logs, f"{theirs}/logs")
        assert refused.status == 403
        assert f"cannot get pods/log in namespace {other}" in refused.json["detail"]
        for path in (mine, f"{mine}/logs", f"archive?namespace={namespace}", "archive"):
            assert get(newcomer, path).status == 403

        everything = {one["metadata"]["name"] for one in get(control_plane.admin_token, "archive").json["items"]}
        assert everything == {"penguins", "whales"}


@pytest.mark.nightly
def test_rights_that_are_taken_away_end_at_the_next_check(control_plane, namespace, job, monkeypatch):
    monkeypatch.setattr(users, "CHECK_SECONDS", 0.2)
    allow(control_plane, namespace, "reader", ["get", "list", "watch"])
    token = token_of(control_plane, namespace, "reader")
    path = f"/api/v1/jobs/{namespace}/penguins"
    with ClusterUi(replace(connection(control_plane), token=None)) as checking:
        eventually(lambda: checking.by(token, "GET", path).status == 200, what="the right")
        base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/reader"
        control_plane.api.request("DELETE", base)
        eventually(lambda: checking.by(token, "GET", path).status == 403, what="the end of the right")
        # A deleted account has no valid token.
        control_plane.api.delete("ServiceAccount", namespace, "reader")
        eventually(lambda: checking.by(token, "GET", path).status == 401, what="the end of the token")
