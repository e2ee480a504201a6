"""Evaluation of benchmark results: ratios, counts, tables."""

from __future__ import annotations

import json

import pytest
from bench.common import percentiles
from bench.creation import summary
from bench.life import agent, writes
from bench.table import changes, markdown, own_writes, targets

MACHINE = {
    "date": "2026-01-01", "cores": 2, "processor": "P", "memory_gb": 4, "python": "3.11", "commit": "c", "load": 0.1,
}  # fmt: skip


def sample(seconds: float) -> dict[str, float]:
    return {"seconds": seconds, "cpu": 0.1, "server_cpu": 1.0, "memory": 60.0}


def test_the_ratio_is_that_of_the_medians_of_one_run():
    found = summary(
        {"raw": {"1 x 2": [sample(1.0), sample(0.5), sample(0.9)]}, "ours": {"1 x 2": [sample(1.2)] * 3}}, "raw"
    )
    assert found["ours"]["1 x 2"]["of_the_limit"] == 0.75
    assert (found["raw"]["1 x 2"]["from"], found["raw"]["1 x 2"]["to"]) == (0.5, 1.0)


def test_a_system_without_a_measurement_has_no_number():
    found = summary(
        {"raw": {"1 x 2": [sample(1.0)], "2 x 1": [sample(1.0)]}, "slow": {"1 x 2": [], "2 x 1": []}}, "raw"
    )
    assert found["slow"] == {}
    assert "| slow | - | - |" in markdown({"machine": MACHINE, "creation": found})


def test_a_part_that_was_measured_later_has_its_own_commit():
    day = {"seconds": 9, "jobs": 1, "pods": 4, "memory_mb": [80.0, 81.0], "growth": 1.01}
    head, *_ = markdown({"machine": MACHINE, "day": day, "added": {"day": MACHINE | {"commit": "d"}}}).split("\n\n")
    first, second = head.splitlines()
    assert "Python 3.11, load" in first
    assert "commit c," in first
    assert second.startswith("day: 2026-01-01, commit d,")


@pytest.mark.parametrize(
    ("text", "who"),
    [
        ("allranks", "allranks"),
        ("kube-controller-manager/v1.36.3 (linux/amd64) x/job-controller", "kube-controller-manager/job-controller"),
        ("Python/3.11 aiohttp/3.13.1", "Python"),
    ],
)  # fmt: skip
def test_the_program_behind_a_user_agent(text, who):
    assert agent(text) == who


def test_changes_are_counted_by_client_without_rejected_ones(tmp_path):
    def event(who: str, verb: str, resource: str, code: int = 201, namespace: str = "n", subresource: str = "") -> str:
        of = {"namespace": namespace, "resource": resource, "subresource": subresource}
        return json.dumps({"userAgent": who, "verb": verb, "objectRef": of, "responseStatus": {"code": code}})

    log = tmp_path / "audit.log"
    lines = [event("allranks", "create", "pods")] * 8 + [event("allranks", "create", "pods", 409)]
    lines += [event("allranks", "patch", "distributedtrainings", 200, subresource="status")] * 4
    lines += [event("allranks", "create", "pods", namespace="other"), event("bench", "patch", "pods", 200)]
    lines += [event("kube-controller-manager/v1.36.3 (x) y/service-account-controller", "create", "serviceaccounts")]
    log.write_text("\n".join(lines))
    found = writes(log, "n", 2)
    assert found["allranks"] == {"create pods": 4, "patch distributedtrainings/status": 2}
    found["allranks"]["create events"] = 2
    assert own_writes({"writes_per_job": found}) == {"allranks": found["allranks"]}
    assert changes({"writes_per_job": found}) == 6


def test_percentiles_use_the_nearest_rank():
    assert percentiles(range(1, 201)) == {"p50": 100, "p99": 198}
    assert percentiles([3.0]) == {"p50": 3.0, "p99": 3.0}


def test_a_target_is_compared_with_the_measurement():
    creation = {"allranks": {"1 x 256": {"of_the_limit": 0.85, "seconds": 1.0}}, "Indexed Job, no throttle": {}}
    rows = [tuple(row) for row in targets({"creation": creation})]
    assert rows == [("1 x 256: pods per second, relative to the limit", ">= 0.9", "0.85", "**no**")]


def test_with_cores_reserved_for_the_server_targets_are_the_same_but_labelled():
    found = summary({"raw POSTs": {"1 x 256": [sample(0.9)]}, "allranks": {"1 x 256": [sample(1.0)]}}, "raw POSTs")
    rows = [tuple(row) for row in targets({"apart": found})]
    assert rows == [("1 x 256, server apart: pods per second, relative to the limit", ">= 0.9", "0.9", "yes")]
    text = markdown({"machine": MACHINE, "creation": found, "apart": found})
    assert text.count("| allranks |") == 4  # time and CPU time, with shared and with reserved cores
    assert "alone | 1 x 256 |" in text
