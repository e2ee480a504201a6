"""The status of the largest sweep fits into etcd, and sweeps whose status would not are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from allranks.api.sweep import MAX_TRIALS
from allranks.api.sweep_status import SweepStatus, Trial
from allranks.api.sweep_validation import parse_sweep
from allranks.core.sweeps import trials as of_trials
from allranks.core.sweeps.model import SweepObserved
from allranks.core.sweeps.plan import plan
from allranks.errors import InvalidManifest
from allranks.fields import decode
from allranks.kube import sweep_codec
from allranks.text import beginning, stored_bytes
from support.sweep_world import NOW
from unit.api.test_sweep import sweep

MEGABYTE = 2**20
ESCAPED = "<"
"""The API server stores six bytes for this character."""
NUMBER = -1.7976931348623157e308
STEP = 2**31 - 1


def stored_size(status: SweepStatus) -> int:
    return len(json.dumps(sweep_codec.encode(status), separators=(",", ":")).replace(ESCAPED, "\\u003c"))


def largest(characters: int) -> dict[str, Any]:
    """A sweep with as many trials as possible, whose parameter has a value of so many escaped characters."""
    document = sweep(
        parameters={"p00": {"values": [ESCAPED * characters, "x"]}},
        trials=MAX_TRIALS,
        parallel=100,
        stop={"rule": "Median", "minSteps": 1, "factor": 2},
    )
    return {**document, "metadata": {"name": "s" * 34, "namespace": "team"}}


def test_the_status_of_the_largest_sweep_is_smaller_than_a_megabyte():
    one = parse_sweep(largest(85))
    with pytest.raises(InvalidManifest, match="of which 498 trials fit into the status"):
        parse_sweep(largest(86))
    observed = SweepObserved(one, SweepStatus(), {}, NOW)
    long = ESCAPED * 1024
    checks = [{"step": STEP - index, "value": NUMBER} for index in range(of_trials.MAX_CHECKS)]
    parameters = dict.fromkeys(one.spec.parameters, ESCAPED * 85)
    ended = [
        of_trials.ended(
            observed,
            decode(
                Trial,
                {
                    "number": number,
                    "job": f"{'s' * 34}-{number}-r3",
                    "parameters": parameters,
                    "observed": True,
                    "runs": 3,
                    "step": STEP,
                    "value": NUMBER,
                    "checks": checks,
                    "startTime": NOW,
                },
            ),
            "Failed",
            long,
            long,
        )
        for number in range(MAX_TRIALS)
    ]
    wanted = plan(SweepObserved(one, SweepStatus(trials=ended), {}, NOW)).status
    assert wanted is not None
    assert wanted.finished
    assert len(wanted.trials) == MAX_TRIALS
    assert 0.6 * MEGABYTE < stored_size(wanted) < MEGABYTE
    assert sweep_codec.status({"status": sweep_codec.encode(wanted)}) == wanted


def test_a_sweep_with_long_values_is_refused_with_the_number_of_trials_that_fit():
    document = sweep(parameters={"prompt": {"values": ["x" * 8000, "y"]}}, trials=100, parallel=100)
    with pytest.raises(InvalidManifest) as caught:
        parse_sweep(document)
    assert caught.value.problems == [
        ("spec.parameters", "take up to 8012 bytes per trial, of which 31 trials fit into the status")
    ]
    document["spec"]["trials"] = 31
    parse_sweep(document)


def test_a_grid_is_bounded_by_its_combinations():
    long = [f"{index}" + "x" * 1999 for index in range(9)]
    document = sweep(algorithm="Grid", parameters={"a": {"values": long}, "b": {"values": long}}, trials=None)
    with pytest.raises(InvalidManifest, match="of which 64 trials fit into the status"):
        parse_sweep(document)


def test_the_beginning_of_a_text_has_the_size_it_has_in_etcd():
    assert stored_bytes("a<\n\x01\u00e9\u2028") == 1 + 6 + 2 + 6 + 2 + 6
    assert beginning("<" * 100, 30) == "<" * 5
    assert beginning("a\u00e9" * 10, 7) == "a\u00e9a\u00e9a"
    assert beginning("short", 30) == "short"
