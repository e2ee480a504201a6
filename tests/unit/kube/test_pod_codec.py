"""Every pod that the API server accepts is decoded."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from allranks.core.model import Pod
from allranks.kube.pod_codec import Raw, to_cached_pod
from support.builders import table

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
        PULL,
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


def test_a_sidecar_that_cannot_restart_is_no_start_error() -> None:
    assert not starting([], containers(trainer=RUNS, logs=ERROR), phase="Running").start_error


def test_an_init_container_that_fails_again_and_again_is_named() -> None:
    message = "back-off 5m0s restarting failed container=fetch"
    pod = starting(containers(fetch={"waiting": {"reason": "CrashLoopBackOff", "message": message}}), TRAINER)
    assert (pod.waiting_reason, pod.start_error) == ("CrashLoopBackOff", "")
    assert pod.waiting_text == f"init container fetch: {message}"
