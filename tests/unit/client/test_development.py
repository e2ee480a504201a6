"""What `allranks dev --cluster` sends to a job, and how it measures edits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from allranks.api.status import CodeStatus, PastAttempt, ProgressStatus, Status
from allranks.client import development
from allranks.client.development import Edits
from allranks.code.bundle import EMPTY, MAX_SHIPPED_BYTES
from allranks.core.facts.development import ANNOTATION
from allranks.core.facts.restarts import RESTART_ANNOTATION
from allranks.errors import CannotShip, ClusterError
from allranks.kube.merge_patch import apply
from support.builders import at, failure

BUNDLE = EMPTY.with_file("train.py", b"print(1)\n")
JOBS, MAPS = "/apis/allranks.dev/v1alpha1/namespaces/team/distributedtrainings", "/api/v1/namespaces/team/configmaps"
RUNNING = {"phase": "Running", "attempt": 2, "attemptTime": "2026-03-04T10:00:00Z"}
CODE = {"configMap": "allranks-code-old", "sha256": "a" * 64, "commit": "abc1234", "dirty": True, "path": "/code"}


class Cluster:
    """Stores ConfigMaps and one job, by path."""

    namespace = "team"

    def __init__(self, status: Any = None, code: Any = None) -> None:
        metadata = {"name": "demo", "namespace": "team", "uid": "u1"}
        self.job: dict[str, Any] = {"metadata": metadata, "spec": {"code": code or CODE}, "status": status or RUNNING}
        self.objects = {f"{JOBS}/demo": self.job}
        self.refuse: set[str] = set()

    async def request(self, verb: str, path: str, query: Any = None, body: Any = None, **_: Any) -> Any:
        if verb in self.refuse:
            raise ClusterError("forbidden", 403, "Forbidden")
        match verb:
            case "POST":
                metadata = {**body["metadata"], "uid": "u2", "resourceVersion": "1"}
                path = f"{path}/{metadata['name']}"
                self.objects[path] = {**body, "metadata": metadata}
            case "PATCH":
                self.objects[path] = apply(body, self.objects[path])
            case "DELETE":
                del self.objects[path]
        return self.objects.get(path, body)

    async def get(self, path: str, *_: Any, **__: Any) -> Any:
        if path not in self.objects:
            raise ClusterError("there is none", 404, "NotFound")
        return self.objects[path]

    @property
    def now(self) -> dict[str, Any]:
        return self.objects[f"{JOBS}/demo"]


def run(work: Any) -> Any:
    return asyncio.run(work)


def test_a_restart_with_code_changes_code_and_request_at_once_and_keeps_the_path():
    cluster: Any = Cluster()
    changed = run(development.restart_with_code(cluster, cluster.job, BUNDLE))
    assert changed.line.endswith("attempt 3 replaces 2")
    assert cluster.now["spec"]["code"] == {"configMap": BUNDLE.config_map, "sha256": BUNDLE.sha256, "path": "/code"}
    assert cluster.now["metadata"]["annotations"] == {RESTART_ANNOTATION: "2"}
    stored = cluster.objects[f"{MAPS}/{BUNDLE.config_map}"]
    assert [owner["uid"] for owner in stored["metadata"]["ownerReferences"]] == ["u1"]


@pytest.mark.parametrize("phase", ["Failed", "Suspended", "Queued"])
def test_a_job_without_pods_is_not_restarted_with_code(phase: str):
    cluster: Any = Cluster({**RUNNING, "phase": phase})
    with pytest.raises(ClusterError, match=f"demo is {phase}"):
        run(development.restart_with_code(cluster, cluster.job, BUNDLE))


def test_a_job_whose_code_is_in_a_claim_is_refused_with_advice():
    cluster: Any = Cluster(code={"claim": "projects"})
    with pytest.raises(ClusterError, match="no code that can be replaced"):
        run(development.restart_with_code(cluster, cluster.job, BUNDLE))


def test_a_bundle_that_is_too_large_changes_nothing():
    noise = "".join(chr(33 + (number * 7919) % 90) + str(number) for number in range(MAX_SHIPPED_BYTES // 2))
    cluster: Any = Cluster()
    with pytest.raises(CannotShip, match="a ConfigMap takes"):
        run(development.send_code(cluster, cluster.job, EMPTY.with_file("data.txt", noise.encode())))
    assert cluster.now == cluster.job
    assert len(cluster.objects) == 1


def test_code_that_the_user_may_not_give_to_the_job_is_deleted_again():
    cluster: Any = Cluster()
    cluster.refuse = {"PATCH"}
    with pytest.raises(ClusterError, match="forbidden"):
        run(development.send_code(cluster, cluster.job, BUNDLE))
    assert list(cluster.objects) == [f"{JOBS}/demo"]


def test_former_code_is_deleted_unless_another_job_has_it():
    cluster: Any = Cluster()
    ours, theirs = {"uid": "u1"}, {"uid": "u9"}
    for name, owners in (("alone", [ours]), ("shared", [ours, theirs]), ("foreign", [theirs])):
        metadata = {"name": name, "uid": name, "resourceVersion": "1", "labels": {"allranks.dev/code": "true"}}
        cluster.objects[f"{MAPS}/{name}"] = {"metadata": {**metadata, "ownerReferences": owners}}
    run(development.delete_former_code(cluster, cluster.job, ["alone", "shared", "foreign", "missing"]))
    assert [path.rpartition("/")[2] for path in cluster.objects] == ["demo", "shared", "foreign"]


def test_the_job_is_developed_for_five_minutes_from_now():
    cluster: Any = Cluster()
    run(development.attach(cluster, cluster.job))
    until = datetime.fromisoformat(cluster.now["metadata"]["annotations"][ANNOTATION])
    assert 290 < (until - datetime.now(UTC)).total_seconds() <= 300


def test_the_end_suspends_keeps_or_deletes_the_job():
    def left(on_exit: Any, **status: Any) -> tuple[str, Any]:
        cluster: Any = Cluster({**RUNNING, **status})
        cluster.job["metadata"]["annotations"] = {ANNOTATION: "2026-01-01T00:00:00Z", "team": "nlp"}
        text = run(development.leave(cluster, cluster.job, on_exit))
        job = cluster.objects.get(f"{JOBS}/demo")
        return text, job and (job["spec"].get("suspend"), job["metadata"]["annotations"])

    assert left("suspend") == (
        "demo is suspended: allranks resume demo continues it, allranks delete demo deletes it",
        (True, {"team": "nlp"}),
    )
    assert left("keep")[1] == (None, {"team": "nlp"})
    assert left("delete") == ("demo is deleted", None)
    assert left("suspend", phase="Succeeded") == ("demo is Succeeded", (None, {"team": "nlp"}))


# --- times -----------------------------------------------------------------------------------------------------------

NEW = CodeStatus(config_map="b", sha256="b" * 64)
BEFORE = Status(phase="Running", attempt=0, attempt_time=at(0), running_time=at(5), code=replace(NEW, sha256="a" * 64))
PAST = PastAttempt(attempt=0, start_time=at(0), end_time=at(60), reason="CodeChanged", how="InPlace")
BEGUN = Status(phase="Restarting", attempt=1, attempt_time=at(60), code=NEW, history=[PAST])


def test_an_edit_is_measured_from_the_save_by_one_clock_for_each_part():
    edits = Edits()
    assert edits.saved("b" * 64, 1000.0) == "edit 1: code bbbbbbbbbbbb"
    assert list(edits.observe(BEFORE, 1000.2)) == []
    assert list(edits.observe(BEGUN, 1000.5)) == []
    running = replace(BEGUN, running_time=at(61))
    assert list(edits.observe(running, 1002.0)) == ["edit 1: all ranks run after 1.5 s, in the same pods"]
    stepped = replace(running, progress=ProgressStatus(first_step=7, first_step_time=at(63)))
    assert list(edits.observe(stepped, 1009.0)) == ["step 7 of edit 1 after 3.5 s"]
    assert list(edits.observe(stepped, 1010.0)) == []


def test_new_pods_are_named_with_their_reason():
    edits = Edits()
    edits.saved("b" * 64, 1000.0)
    past = replace(PAST, how="NewPods", why_new_pods="worker-0 has no pod")
    [line] = edits.observe(replace(BEGUN, running_time=at(60), history=[past]), 1000.5)
    assert line == "edit 1: all ranks run after 0.5 s, in new pods: worker-0 has no pod"


def test_an_edit_that_fails_is_named_with_the_failure():
    edits = Edits()
    edits.saved("b" * 64, 1000.0)
    list(edits.observe(BEGUN, 1000.5))
    failed = failure(attempt=1, index=1, time=at(62), message="SyntaxError: invalid syntax")
    past = replace(PAST, attempt=1, start_time=at(60), failure=failed)
    after = replace(BEGUN, attempt=2, attempt_time=at(62), history=[PAST, past], last_failure=failed)
    [line] = edits.observe(after, 1003.0)
    assert line == "edit 1 failed after 2.5 s: worker-1 in attempt 1: exit code 1: SyntaxError: invalid syntax"


def test_nothing_is_said_of_attempts_before_the_first_edit():
    assert list(Edits().observe(replace(BEGUN, running_time=at(61)), 1000.0)) == []
