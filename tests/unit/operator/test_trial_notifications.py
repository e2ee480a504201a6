"""Receivers of the end of a job that the watch delivers: a label makes no trial of it, its controller does."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from allranks.core.facts.model import Platform
from allranks.core.reconcile import reconcile
from allranks.kube import compact_jobs
from allranks.operator.cache import PodCache
from allranks.operator.observer import Decoded, Observer
from allranks.operator.timing import Clock
from support.builders import CLUSTER, manifest

NOTIFYING = replace(CLUSTER, notifies={"Failed": ("oncall",)})
SWEEP = {"apiVersion": "allranks.dev/v1alpha1", "kind": "TrainingSweep", "name": "search", "uid": "s"}


def receivers(**metadata: Any) -> list[str]:
    """The outbox of a job whose deadline has passed, from the bytes of the watch to the plan."""
    job = manifest(activeDeadlineSeconds=60)
    job["metadata"] |= {"uid": "u", "resourceVersion": "1", "generation": 1, **metadata}
    started = "2026-03-04T10:00:00Z"
    times = dict.fromkeys(("startTime", "attemptTime", "activeSince"), started)
    job["status"] = {"phase": "Pending", "observedGeneration": 1, **times}
    event = json.loads(compact_jobs.line(json.dumps({"type": "ADDED", "object": job}).encode()))

    def platform(_: object) -> Platform:
        return NOTIFYING

    observer = Observer(pods=PodCache(lambda key, urgent: None), platform=platform, clock=Clock())
    observed = observer.observe(("team", "job"), compact_jobs.compact(event["object"]), Decoded(), ())
    plan = reconcile(observed)
    assert plan.next is not None
    assert plan.next.phase == "Failed"
    return plan.next.notifications


@pytest.mark.parametrize(
    ("metadata", "notified"),
    [
        ({}, ["Failed/0 oncall"]),
        ({"labels": {"allranks.dev/sweep": "search"}}, ["Failed/0 oncall"]),
        ({"labels": {"allranks.dev/sweep": "search"}, "ownerReferences": [SWEEP]}, ["Failed/0 oncall"]),
        ({"ownerReferences": [{**SWEEP, "kind": "CronJob", "controller": True}]}, ["Failed/0 oncall"]),
        ({"ownerReferences": [{**SWEEP, "controller": True}]}, []),
        ({"labels": {"allranks.dev/sweep": "x"}, "ownerReferences": [{**SWEEP, "controller": True}]}, []),
    ],
    ids=["a job", "a label", "an owner that is no controller", "another controller", "a trial", "a labelled trial"],
)
def test_the_platform_hears_of_the_end_of_every_job_but_of_trials(
    metadata: dict[str, Any], notified: list[str]
) -> None:
    assert receivers(**metadata) == notified
