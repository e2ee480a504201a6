"""Every pod that the API server accepts is decoded."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from allranks.api.status import Status
from allranks.core.diagnosis import pod_ends, reasons, root_cause
from allranks.core.facts.model import Exit, InitContainer, Pod
from allranks.kube.pod_codec import to_cached_pod
from allranks.kube.raw_pod import Raw
from support.builders import job, table

CREATED = datetime(2026, 1, 1, tzinfo=UTC)


def decoded(**metadata: Any) -> Pod:
    given = {"name": "a", "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"} | metadata
    return to_cached_pod(msgspec.json.decode(msgspec.json.encode({"metadata": given}), type=Raw)).pod


def test_a_deletion_was_requested_one_grace_period_before_its_deadline() -> None:
    pod = decoded(deletionTimestamp="2026-01-01T00:01:30Z", deletionGracePeriodSeconds=30)
    assert pod.deleted_at == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("grace", "gone_at"),
    [
        (10**11, "2272-12-29T03:47:47Z"),
        (10**15, "2090-05-21T09:04:01Z"),
        (2**63 - 1, "2026-11-21T15:53:54Z"),
    ],
)
def test_a_grace_period_of_centuries_is_decoded(grace: int, gone_at: str) -> None:
    """Users may set it. These are answers of a real API server, whose own sum overflows."""
    assert decoded(deletionTimestamp=gone_at, deletionGracePeriodSeconds=grace).deleted_at == CREATED


ERROR = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "i:1"'}}
CONFIG = {"waiting": {"reason": "CreateContainerConfigError"}}
INITIALIZING = {"waiting": {"reason": "PodInitializing"}}
CREATING = {"waiting": {"reason": "ContainerCreating"}}
RUNS: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:05Z"}}
DONE = {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:00:09Z"}}
PULL = 'Back-off pulling image "i:1"'


def containers(**states: Any) -> list[dict[str, Any]]:
    return [{"name": name, "state": state} for name, state in states.items()]


def starting(init: list[dict[str, Any]], main: list[dict[str, Any]], phase: str = "Pending", **conditions: str) -> Pod:
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:02Z"}
    given = [{"type": kind, "status": value} for kind, value in conditions.items()]
    status = {"phase": phase, "conditions": [placed, *given]}
    status |= {"initContainerStatuses": init, "containerStatuses": main}
    manifest = {"metadata": {"name": "a", "uid": "u", "resourceVersion": "1"}, "status": status}
    return to_cached_pod(msgspec.json.decode(msgspec.json.encode(manifest), type=Raw)).pod


SINCE = "since 2026-01-01T00:00:02Z"
TRAINER = containers(trainer=INITIALIZING)
# Sentence, init containers, containers, conditions, start error, text.
STARTS = [
    ("the trainer's image", [], containers(trainer=ERROR), {}, "ImagePullBackOff", PULL),
    (
        "the helper's image",
        containers(**{"allranks-helper": ERROR}),
        TRAINER,
        {"Initialized": "False"},
        "ImagePullBackOff",
        f"init container allranks-helper: {PULL}",
    ),
    (
        "the configuration of an init container after a sidecar that runs",
        containers(proxy=RUNS, fetch=CONFIG),
        TRAINER,
        {"Initialized": "False"},
        "CreateContainerConfigError",
        "init container fetch: CreateContainerConfigError",
    ),
    (
        "a sidecar beside a trainer that runs",
        [],
        containers(trainer=RUNS, logs=ERROR),
        {},
        "ImagePullBackOff",
        f"container logs: {PULL}",
    ),
    (
        "the trainer's image comes before a sidecar's",
        [],
        containers(logs=CONFIG, trainer=ERROR),
        {},
        "ImagePullBackOff",
        f"{PULL}; container logs: CreateContainerConfigError",
    ),
    (
        "any reason of a runtime that is not a usual one, in an init container",
        containers(**{"allranks-helper": {"waiting": {"reason": "ImageInspectError", "message": "short name mode"}}}),
        TRAINER,
        {"Initialized": "False", "PodReadyToStartContainers": "True"},
        "ImageInspectError",
        "init container allranks-helper: short name mode",
    ),
    (
        "a reason that no kubelet has yet, in the trainer",
        [],
        containers(trainer={"waiting": {"reason": "DeviceOnFire"}}),
        {},
        "DeviceOnFire",
        "waits for container trainer: DeviceOnFire " + SINCE,
    ),
    (
        "the message of a container that waits without an error",
        containers(fetch={"waiting": {"reason": "PodInitializing", "message": "the volume is copied"}}),
        TRAINER,
        {"Initialized": "False", "PodReadyToStartContainers": "True"},
        "",
        "init container fetch: the volume is copied",
    ),
    (
        "a crash loop is no start error, and hides none",
        containers(fetch={"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}),
        containers(trainer=INITIALIZING, logs={"waiting": {"reason": "RegistryUnavailable", "message": "503"}}),
        {"Initialized": "False"},
        "RegistryUnavailable",
        "container logs: 503; init container fetch: back-off 10s",
    ),
    (
        "volumes",
        [],
        containers(trainer=CREATING),
        {"PodReadyToStartContainers": "False"},
        "PodNotReadyToStart",
        f"waits for its volumes and its network: ContainerCreating {SINCE}; kubectl describe pod shows why",
    ),
    (
        "volumes of a pod with init containers",
        containers(fetch=INITIALIZING),
        TRAINER,
        {"PodReadyToStartContainers": "False", "Initialized": "False"},
        "PodNotReadyToStart",
        f"waits for its volumes and its network: PodInitializing {SINCE}; kubectl describe pod shows why",
    ),
    (
        "an init container that runs long is no error",
        containers(proxy=RUNS, fetch=RUNS, unpack=INITIALIZING),
        TRAINER,
        {"Initialized": "False", "PodReadyToStartContainers": "True"},
        "",
        f"waits for init container fetch: PodInitializing {SINCE}",
    ),
    (
        "an image that takes long to pull is no error",
        [],
        containers(trainer=CREATING),
        {"PodReadyToStartContainers": "True"},
        "",
        f"waits for container trainer: ContainerCreating {SINCE}",
    ),
    (
        "the trainer after a sidecar that started",
        containers(fetch=DONE, proxy=RUNS),
        TRAINER,
        {"Initialized": "True", "PodReadyToStartContainers": "True"},
        "",
        f"waits for container trainer: PodInitializing {SINCE}",
    ),
    ("a kubelet that is silent", [], [], {}, "", f"waits for the kubelet of its node {SINCE}"),
]


@table(*STARTS)
def test_a_pending_pod_says_what_it_waits_for(case: Any) -> None:
    init, main, conditions, error, text = case
    pod = starting(init, main, **conditions)
    assert (pod.start_error, pod.waiting_text) == (error, text)


def test_a_reason_of_an_unusual_scheduler_is_no_start_error() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "NotEnoughResources", "message": "2/4 tasks"}
    manifest = {"metadata": {"name": "a"}, "status": {"phase": "Pending", "conditions": [condition]}}
    pod = to_cached_pod(msgspec.convert(manifest, Raw)).pod
    assert (pod.waiting_reason, pod.waiting_message, pod.start_error) == ("Unschedulable", "2/4 tasks", "")


def test_a_sidecar_that_cannot_restart_is_no_start_error() -> None:
    assert not starting([], containers(trainer=RUNS, logs=ERROR), phase="Running").start_error


def test_an_init_container_that_fails_again_and_again_is_named() -> None:
    message = "back-off 5m0s restarting failed container=fetch"
    pod = starting(containers(fetch={"waiting": {"reason": "CrashLoopBackOff", "message": message}}), TRAINER)
    assert (pod.waiting_reason, pod.start_error) == ("CrashLoopBackOff", "")
    assert pod.waiting_text == f"init container fetch: {message}"


# The program's end, by the states of its container and its restart policy.

EXIT = {"exitCode": 3, "reason": "Error", "startedAt": "2026-01-01T00:00:10Z", "finishedAt": "2026-01-01T00:00:20Z"}


def with_status(trainer: Mapping[str, Any], spec: Mapping[str, Any] | None = None, **status: Any) -> Pod:
    """A pod whose training container has this state."""
    own = {"restartPolicy": "Never", "containers": [{"name": "trainer"}, {"name": "proxy"}]}
    beside = {"name": "proxy", "state": {"running": {"startedAt": "2026-01-01T00:00:10Z"}}}
    labels = {"allranks.dev/role": "worker", "allranks.dev/index": "0", "allranks.dev/attempt": "0"}
    metadata = {"name": "a", "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    of = {
        "metadata": {**metadata, "labels": labels},
        "spec": {**own, **(spec or {})},
        "status": {"phase": "Running", "containerStatuses": [{"name": "trainer", **trainer}, beside], **status},
    }
    return to_cached_pod(msgspec.json.decode(msgspec.json.encode(of), type=Raw)).pod


def ended(code: int = 3, **terminated: Any) -> dict[str, Any]:
    return {"state": {"terminated": {**EXIT, "exitCode": code, **terminated}}}


def policy(of_container: str, *rules: Mapping[str, Any]) -> dict[str, Any]:
    return {"containers": [{"name": "trainer", "restartPolicy": of_container, "restartPolicyRules": list(rules)}]}


RETRY = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
OTHERS = {"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [42]}}
ALL = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}


@table(
    ("a program that failed beside a sidecar has ended", 3, {}, {}, True),
    ("also while the image of a sidecar cannot be pulled", 3, {}, {"phase": "Pending"}, True),
    ("a program that completed beside a sidecar has ended", 0, {}, {}, True),
    ("OnFailure: a failure is restarted in place", 3, {"restartPolicy": "OnFailure"}, {}, False),
    ("OnFailure: a success is final", 0, {"restartPolicy": "OnFailure"}, {}, True),
    ("OnFailure: a failure is final in a failed pod", 3, {"restartPolicy": "OnFailure"}, {"phase": "Failed"}, True),
    ("Always: a success is not final", 0, {"restartPolicy": "Always"}, {}, False),
    ("the container's own policy comes first", 3, policy("OnFailure"), {}, False),
    (
        "the container's own policy comes before that of the pod",
        3,
        policy("Never") | {"restartPolicy": "OnFailure"},
        {},
        True,
    ),
    ("a rule restarts its exit codes", 42, policy("Never", RETRY), {}, False),
    ("a rule restarts all containers", 42, policy("Never", ALL), {}, False),
    ("a rule does not restart other exit codes", 3, policy("Never", RETRY), {}, True),
    ("a rule restarts all but its exit codes", 3, policy("Never", OTHERS), {}, False),
)
def test_whether_a_container_has_ended_for_good(case):
    code, spec, status, final = case
    found = with_status(ended(code), spec, **status)
    assert (found.exit is not None) == final
    assert found.succeeded == (final and code == 0)
    assert pod_ends.failed(found) == (final and code != 0)


def test_a_failure_of_a_pod_that_is_being_deleted_is_final():
    raw = {
        "metadata": {"name": "a", "uid": "u", "resourceVersion": "1", "deletionTimestamp": "2026-01-01T00:01:00Z"},
        "spec": {"restartPolicy": "OnFailure"},
        "status": {"phase": "Running", "containerStatuses": [{"name": "trainer", **ended(143)}]},
    }
    found = to_cached_pod(msgspec.convert(raw, Raw)).pod
    assert found.exit is not None
    assert found.exit.code == 143


def test_a_crash_loop_has_its_last_exit_and_its_number_of_restarts():
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
    trainer = {"state": waiting, "lastState": ended(5)["state"], "restartCount": 4}
    found = with_status(trainer, {"restartPolicy": "OnFailure"})
    assert (found.exit, found.container_restarts) == (None, 4)
    assert found.last_exit == Exit(5, datetime(2026, 1, 1, 0, 0, 20, tzinfo=UTC))
    assert found.started_at == datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC)
    judged = [pod_ends.judge_crash_loop(job(restart={"maxRestarts": n}), found).exit for n in (0, 3, 4, 9_999)]
    assert [exit and (exit.code, exit.reason) for exit in judged] == [(5, "CrashLoopBackOff")] * 2 + [None] * 2


def test_an_init_container_in_a_crash_loop_fails_the_pod_too_but_not_a_sidecar():
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    looping = {"state": waiting, "lastState": ended(2, message="no such dataset")["state"], "restartCount": 4}
    trainer = {"state": {"waiting": {"reason": "PodInitializing"}}}
    for policy, fails in ((None, True), ("Always", False)):
        spec = {"restartPolicy": "OnFailure", "initContainers": [{"name": "fetch", "restartPolicy": policy}]}
        statuses = [{"name": "fetch", **looping}]
        found = with_status(trainer, spec, phase="Pending", initContainerStatuses=statuses)
        judged = pod_ends.judge_crash_loop(job(), found)
        assert pod_ends.failed(judged) == fails
        if fails:
            cause = next(root_cause.failures(job(), Status(), [judged], [], CREATED))
            assert (cause.reason, cause.exit_code) == ("InitContainerFailed", None)
            assert cause.message == "init container fetch ended with exit code 2: no such dataset"
            assert found.init == InitContainer("fetch", 2, "no such dataset")


# Evictions for a pod's own limits, rejections and reboots.

USAGE = 'Usage of EmptyDir volume "dshm" exceeds the limit "1Gi". '
OWN_LIMIT = {"phase": "Failed", "reason": "Evicted", "message": USAGE}
PRESSURE = {
    "phase": "Failed",
    "reason": "Evicted",
    "message": "The node was low on resource: memory.",
    "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}],
}


@pytest.mark.parametrize("code", [137, 143, 0, 255])
def test_an_eviction_without_disruption_target_is_the_pods_own_limit(code: int):
    """A program that handles SIGTERM may exit with 0: it has not completed."""
    found = with_status(ended(code), **OWN_LIMIT)
    assert found.exit is not None
    assert (found.exit.code, found.exit.reason, found.exit.message) == (code or 137, "LimitExceeded", USAGE)
    assert (found.disruption, found.succeeded, pod_ends.failed(found)) == (None, False, True)


def test_a_kubelet_may_lose_the_end_of_a_container_that_it_evicts():
    """A status that a kubelet of Kubernetes 1.36 wrote (tests/e2e/test_kubelets.py)."""
    message = "The container could not be located when the pod was deleted.  The container used to be Running"
    lost = {"exitCode": 137, "finishedAt": None, "startedAt": None, "reason": "ContainerStatusUnknown"}
    state = {"waiting": {"reason": "ContainerCreating"}}
    trainer = {"state": state, "lastState": {"terminated": {**lost, "message": message}}, "restartCount": 1}
    found = with_status(trainer, **OWN_LIMIT, containerStatuses=[{"name": "trainer", **trainer}])
    assert (found.exit, found.disruption, found.settling) == (None, None, False)
    cause = next(root_cause.failures(job(), Status(), [found], [], CREATED))
    assert (cause.reason, cause.exit_code, cause.message) == ("LimitExceeded", None, USAGE.strip())


def test_an_init_container_may_exceed_the_limit_too():
    init = [{"name": "fetch", **ended(137)}]
    found = with_status({"state": {"waiting": {"reason": "PodInitializing"}}}, **OWN_LIMIT, initContainerStatuses=init)
    assert (found.exit, found.disruption, found.waiting_reason) == (None, None, "LimitExceeded")


def test_an_eviction_with_disruption_target_is_a_disruption():
    found = with_status(ended(137), **PRESSURE)
    assert found.disruption is not None
    assert found.disruption.reason == "TerminationByKubelet"


BOTH_ENDED = {"containerStatuses": [{"name": name, **ended(143)} for name in ("trainer", "proxy")]}
SIDECAR_RUNS = {"initContainerStatuses": [{"name": "mesh", "state": {"running": {}}}]}


@table(
    ("all containers have ended, and the phase is still Running", BOTH_ENDED, True),
    ("also Pending, if they ended quickly", BOTH_ENDED | {"phase": "Pending"}, True),
    ("a container runs", {}, False),
    ("a native sidecar runs", BOTH_ENDED | SIDECAR_RUNS, False),
    ("the pod has failed", BOTH_ENDED | {"phase": "Failed"}, False),
    ("the pod is marked as disrupted", BOTH_ENDED | PRESSURE | {"phase": "Running"}, False),
    ("there is no container yet", {"containerStatuses": []}, False),
)
def test_a_pod_settles_until_its_kubelet_has_written_its_phase(case):
    status, settling = case
    assert with_status(ended(143), **status).settling == settling


def test_a_pod_that_is_being_deleted_does_not_settle():
    metadata = {"name": "a", "deletionTimestamp": "2026-01-01T00:01:00Z"}
    of = {"metadata": metadata, "status": {"phase": "Running", **BOTH_ENDED}}
    assert not to_cached_pod(msgspec.convert(of, Raw)).pod.settling


@pytest.mark.parametrize("reason", ["Evicted", "NodeShutdown", "OutOfcpu", "UnexpectedAdmissionError", "NodeAffinity"])
def test_a_rejected_pod_never_ran_and_does_not_count(reason: str):
    found = with_status({}, phase="Failed", reason=reason, message="Pod was rejected", containerStatuses=[])
    assert pod_ends.failed(found)
    cause = next(root_cause.failures(job(), Status(), [found], [], CREATED))
    assert (cause.reason, cause.exit_code, reasons.is_uncounted(cause.reason)) == (reason, None, True)


@pytest.mark.parametrize(("code", "reason"), [(255, "Unknown"), (137, "ContainerStatusUnknown")])
def test_a_container_that_a_reboot_ended_has_no_exit_code(code: int, reason: str):
    found = with_status(ended(code, reason=reason), phase="Failed")
    cause = next(root_cause.failures(job(), Status(), [found], [], CREATED))
    assert (cause.reason, cause.exit_code, cause.signal) == ("ContainerStatusUnknown", None, None)
    assert reasons.is_uncounted(cause.reason)


def test_exit_code_255_of_a_program_counts():
    found = with_status(ended(255), phase="Failed")
    cause = next(root_cause.failures(job(), Status(), [found], [], CREATED))
    assert (cause.exit_code, reasons.is_uncounted(cause.reason)) == (255, False)


def with_native_sidecar(phase: str, trainer: int, sidecar: int, reason: str = "") -> Pod:
    """A pod with the native sidecar `proxy`, as the kubelet reports it after its program has ended."""

    def ended(code: int) -> dict[str, Any]:
        return {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"} | FINISHED}

    status = {
        "phase": phase,
        "reason": reason,
        "initContainerStatuses": [{"name": "proxy", "restartCount": 0, "state": ended(sidecar)}],
        "containerStatuses": [{"name": "trainer", "restartCount": 0, "state": ended(trainer)}],
    }
    spec = {
        "restartPolicy": "Never",
        "initContainers": [{"name": "proxy", "restartPolicy": "Always"}],
        "containers": [{"name": "trainer"}],
    }
    manifest = {"metadata": {"name": "a", "uid": "u", "resourceVersion": "1"}, "spec": spec, "status": status}
    return to_cached_pod(msgspec.json.decode(msgspec.json.encode(manifest), type=Raw)).pod


FINISHED = {"startedAt": "2026-01-01T00:00:05Z", "finishedAt": "2026-01-01T00:00:09Z"}


def test_a_program_beside_a_native_sidecar_completes_whatever_the_sidecars_exit_code() -> None:
    for phase, sidecar in (("Succeeded", 0), ("Succeeded", 137), ("Running", 0)):
        assert with_native_sidecar(phase, 0, sidecar).succeeded


def test_a_program_that_failed_beside_a_native_sidecar_is_the_failure() -> None:
    pod = with_native_sidecar("Failed", 3, 137)
    assert pod_ends.failed(pod)
    assert pod.exit is not None
    assert pod.exit.code == 3
    assert "proxy" not in pod.waiting_message


def test_a_native_sidecar_that_was_killed_is_no_failed_init_container() -> None:
    status = {
        "phase": "Failed",
        "reason": "NodeShutdown",
        "message": "Pod was rejected as the node is shutting down.",
        "initContainerStatuses": [{"name": "proxy", "state": {"terminated": {"exitCode": 137} | FINISHED}}],
        "containerStatuses": [{"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    spec = {"initContainers": [{"name": "proxy", "restartPolicy": "Always"}], "containers": [{"name": "trainer"}]}
    manifest = {"metadata": {"name": "a", "uid": "u", "resourceVersion": "1"}, "spec": spec, "status": status}
    pod = to_cached_pod(msgspec.json.decode(msgspec.json.encode(manifest), type=Raw)).pod
    assert (pod.waiting_reason, pod.waiting_message) == (status["reason"], status["message"])


SIGNALS = [
    ("an exit code alone says nothing of a signal", {"exitCode": 137}, None),
    ("the runtime reports the signal", {"exitCode": 137, "signal": 9}, 9),
    ("the kernel killed the container for memory", {"exitCode": 137, "reason": "OOMKilled"}, 9),
    ("the kernel killed another process of the container for memory", {"exitCode": 1, "reason": "OOMKilled"}, None),
]


@pytest.mark.parametrize(("terminated", "signal"), [case[1:] for case in SIGNALS], ids=[case[0] for case in SIGNALS])
def test_a_signal_is_reported_only_if_it_is_certain(terminated: dict[str, Any], signal: int | None) -> None:
    found = with_status({"state": {"terminated": {**EXIT, **terminated}}})
    assert found.exit is not None
    assert found.exit.signal == signal


def test_a_program_that_was_not_executed_never_started() -> None:
    """containerd reports 1970 as the time of the start, which would look like progress."""
    found = with_status(ended(128, reason="StartError", startedAt="1970-01-01T00:00:00Z"))
    assert found.exit is not None
    assert (found.started_at, found.exit.reason) == (None, "StartError")


def test_devices_that_the_kubelet_reports_as_unhealthy_are_decoded() -> None:
    health = [{"resourceID": "GPU-1", "health": "Healthy"}, {"resourceID": "GPU-2", "health": "Unhealthy"}]
    resources = [{"name": "nvidia.com/gpu", "resources": health}, {"name": "claim:c/r", "resources": [health[1]]}]
    status = {"name": "trainer", "state": {"running": {}}, "allocatedResourcesStatus": resources}
    pod = with_containers(status)
    assert pod.unhealthy_devices == ("nvidia.com/gpu GPU-2", "claim:c/r GPU-2")


def test_the_image_and_the_user_of_the_training_container_are_decoded() -> None:
    """As a kubelet with containerd 2 writes them; older runtimes do not name the user."""
    digest = "ghcr.io/allranks/pytorch@sha256:" + "ab" * 32
    linux = {"uid": 65532, "gid": 65532, "supplementalGroups": [65532]}
    trainer = {"name": "trainer", "image": "ghcr.io/allranks/pytorch:1", "imageID": digest, "user": {"linux": linux}}
    sidecar = {"name": "proxy", "imageID": "other", "user": {"linux": {"uid": 1, "gid": 1}}}
    found = with_containers(sidecar, trainer)
    assert (found.image_id, found.user) == (digest, (65532, 65532))
    older = with_containers({"name": "trainer", "imageID": f"docker-pullable://{digest}"})
    assert (older.image_id, older.user) == (digest, None)
    assert (with_containers().image_id, with_containers().user) == ("", None)


def with_containers(*statuses: dict[str, Any]) -> Pod:
    raw = {"metadata": {"name": "a", "uid": "u"}, "status": {"containerStatuses": statuses}}
    return to_cached_pod(msgspec.json.decode(msgspec.json.encode(raw), type=Raw)).pod
