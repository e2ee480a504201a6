"""Tests that pods make before their program: who makes them, and what follows from a failed one."""

from __future__ import annotations

import json
from dataclasses import replace

from allranks.api.pool import PoolSpec
from allranks.api.status import PastAttempt, Status
from allranks.authoring.checks.notes import notes_of
from allranks.core.diagnosis import restart_policy
from allranks.core.diagnosis.culprit import Evidence, culprit
from allranks.core.diagnosis.reasons import describe_failure
from allranks.core.diagnosis.verdict import judged
from allranks.core.facts import bad_nodes, preflight
from allranks.core.facts.forgiveness import FORGIVEN_ANNOTATION, as_text
from allranks.core.objects import pods
from allranks.core.objects.preflight import PORT, VARIABLE
from support.builders import CLUSTER, NOW, at, failed, failure, job, pod, table

ALL = {"gpu": True, "network": True, "disk": True}
TESTED = job(roles={"worker": 4}, preflight=ALL)
RUNNING = Status(attempt=0, attempt_time=at(0), running_time=at(1))
POOL = replace(CLUSTER, pools={"h200": PoolSpec.model_validate({"preflight": {"disk": True, "timeoutSeconds": 30}})})


def after_faults(*nodes: str, because: str = "DeviceError") -> Status:
    faults = [failure(because=because, node=node, time=at(60)) for node in nodes]
    return replace(RUNNING, history=[PastAttempt(end_time=NOW, reason="Error", failure=fault) for fault in faults])


@table(
    ("by default", job(), RUNNING, CLUSTER, None),
    ("of the job", job(preflight={"gpu": True}), RUNNING, CLUSTER, (("gpu",), 180)),
    ("of the pool", job(pool="h200"), RUNNING, POOL, (("disk",), 30)),
    ("of both", job(pool="h200", preflight={"gpu": True}), RUNNING, POOL, (("gpu",), 180)),
    ("not this job", job(pool="h200", preflight={"disk": False}), RUNNING, POOL, None),
    ("two faults on a node", job(), after_faults("a", "a"), CLUSTER, (("disk", "gpu", "network"), 180)),
    ("on two nodes", job(), after_faults("a", "b"), CLUSTER, None),
    ("of the program", job(), after_faults("a", "a", because="NetworkError"), CLUSTER, None),
    ("two faults, but not this job", job(preflight={"gpu": False}), after_faults("a", "a"), CLUSTER, None),
)
def test_the_tests_of_an_attempt(case):
    of, status, platform, expected = case
    tests = preflight.settings(of, status, platform)
    assert (tests and (tests.checks, tests.seconds)) == expected


def test_faults_that_are_forgiven_start_no_tests():
    of = job()
    annotations = {FORGIVEN_ANNOTATION: as_text({"a": at(90)})}
    forgiven = of.model_copy(update={"metadata": of.metadata.model_copy(update={"annotations": annotations})})
    assert preflight.settings(of, after_faults("a", "a"), CLUSTER)
    assert preflight.settings(forgiven, after_faults("a", "a"), CLUSTER) is None


def trainers(of, status=RUNNING):
    return [manifest["spec"]["containers"][0] for manifest in pods.objects(of, status, CLUSTER).pods]


def variables(of):
    values = ({v["name"]: v.get("value") for v in trainer["env"]}.get(VARIABLE) for trainer in trainers(of))
    return [json.loads(value) if value else None for value in values]


def test_a_tested_pod_starts_its_program_through_the_helper():
    [trainer, *_] = trainers(job(command=["torchrun", "train.py"], preflight={"disk": True}))
    assert trainer["command"][:2] == ["/bin/sh", "-c"]
    assert trainer["command"][3:] == ["/allranks/preflight.py", "torchrun", "train.py"]
    [manifest, *_] = pods.objects(job(command=["t"], preflight={"disk": True}), RUNNING, CLUSTER).pods
    assert [container["name"] for container in manifest["spec"]["initContainers"]] == ["allranks-helper"]


def test_pods_test_the_network_only_with_others_that_start_together():
    of = job(roles={"worker": 3}, command=["t"], preflight={"network": True})
    address = f"job-worker-0-0.job.team.svc:{PORT}"
    assert variables(of) == [
        {"checks": ["network"], "seconds": 180, "rank": rank, "size": 3, "address": address} for rank in range(3)
    ]
    alone = job(roles={"worker": 3}, command=["t"], preflight={"network": True}, restart={"scope": "Pod"})
    assert variables(alone) == [{"checks": [], "seconds": 180}] * 3


def test_pods_without_ranks_are_not_tested():
    of = job(framework="tensorflow", roles={"chief": 1, "ps": 1}, preflight={"gpu": True})
    tested = {"checks": ["gpu"], "seconds": 180}
    assert sorted(map(str, variables(of))) == sorted(map(str, [tested, None]))


def test_a_pod_that_runs_the_entrypoint_of_its_image_is_not_tested():
    of = job(roles={"worker": 2}, command=None, preflight=ALL)
    assert "command" not in trainers(of)[0]
    assert variables(of) == [None, None]
    warning, _ = [note for note in notes_of(of) if note.path == "spec.preflight"]
    assert warning.severity == "warning"
    assert warning.message.startswith("preflight: pods of role worker are not tested")


@table(
    ("three", {}, []),
    ("two", {"roles": {"worker": 2}}, ["because 2 pods with ranks start together: it needs three"]),
    ("three alone", {"restart": {"scope": "Pod"}}, ["because no pods with ranks start together: it needs three"]),
)
def test_a_note_says_that_the_network_of_few_pods_names_no_node(case):
    fields, expected = case
    notes = notes_of(job(**{"roles": {"worker": 3}, "preflight": ALL} | fields))
    assert [note.message.split(", ", 1)[1] for note in notes if note.path == "spec.preflight"] == expected


def line(**values: str) -> str:
    return f"step 1\nallranks: preflight failed: {json.dumps(values)}\n"


BAD = line(check="gpu", replica="worker-2", text="cuda:3: a matrix product is wrong")


def weigh(message: str, of=TESTED, **fields):
    found = {("worker", index): pod("worker", index) for index in range(4)}
    found["worker", 1] = failed("worker", 1, message=message)
    return culprit(Evidence(of, RUNNING, CLUSTER, found), failure(index=1, message=message, **fields))


def test_the_cause_is_the_replica_that_did_not_pass_whichever_pod_says_so():
    cause = weigh(BAD)
    assert (cause.index, cause.rank, cause.node, cause.pod) == (2, 2, "node-2", "job-worker-2-0")
    assert (cause.reason, cause.because, cause.exit_code) == ("PreflightFailed", "PreflightFailed", None)
    assert cause.message == "gpu: cuda:3: a matrix product is wrong"
    assert describe_failure(cause) == "worker-2 did not pass the preflight of its node (PreflightFailed)"
    assert judged(TESTED, RUNNING, cause).verdict == "Node"


@table(
    ("no preflight", BAD, job(roles={"worker": 4})),
    ("not the last line", f"{BAD}ValueError: broken", TESTED),
    ("no JSON", "allranks: preflight failed: {worker-2}", TESTED),
    ("a field is missing", line(check="gpu", replica="worker-2"), TESTED),
    ("no such replica", line(check="gpu", replica="worker-9", text="wrong"), TESTED),
)
def test_other_output_is_no_evidence(case):
    message, of = case
    assert weigh(message, of=of).because is None


def test_a_failed_preflight_does_not_count_and_the_next_attempt_excludes_the_node():
    cause = weigh(BAD)
    decision = restart_policy.decide_restart(TESTED, RUNNING, cause)
    assert (decision.action, decision.explanation) == (
        "RestartUncounted",
        "its program did not run: node node-2 is avoided",
    )
    history = [PastAttempt(end_time=NOW, reason=cause.reason, failure=cause)]
    assert bad_nodes.excluded_nodes(replace(RUNNING, history=history, avoided_nodes=["node-2"])) == ["node-2"]


def test_a_rule_about_exit_codes_does_not_decide_about_a_failed_preflight():
    of = job(
        roles={"worker": 4}, preflight=ALL, restart={"rules": [{"exitCodes": list(range(1, 255)), "action": "Fail"}]}
    )
    assert restart_policy.decide_restart(of, RUNNING, weigh(BAD, of=of)).action == "RestartUncounted"


def test_on_one_machine_a_failed_preflight_ends_the_run():
    decision = restart_policy.decide_restart(TESTED, RUNNING, weigh(BAD), replace(CLUSTER, local=True))
    assert (decision.action, decision.explanation) == ("Fail", "not restarted: there is no other node")
