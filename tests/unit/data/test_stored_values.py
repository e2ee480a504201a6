"""Values of functions that were too large to be sent back, in an object store."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import pytest

from allranks.errors import ResultError
from allranks.sdk import outcome
from allranks.sdk.outcome import Stored

NAME = "results/demo-01234567/attempt-0/rank-0.pickle"
ADDRESS = f"s3://data/birds/{NAME}"
JOB: dict[str, Any] = {"spec": {"outputs": [{"name": "model", "path": "/outputs/model", "to": "s3://data/birds/"}]}}
VALUE = list(range(300_000))
PICKLE = pickle.dumps(VALUE)


def described(**more: Any) -> Stored:
    sha256 = hashlib.sha256(PICKLE).hexdigest()
    place = {"file": f"/outputs/model/{NAME}", "inOutput": NAME, "sha256": sha256}
    return Stored({"type": "list", "bytes": len(PICKLE), "most": 2**20, **place, **more})


def test_the_address_of_a_value_is_below_that_of_the_output() -> None:
    assert outcome.address_of(JOB, described()) == ADDRESS
    assert outcome.address_of(JOB, described(inOutput=None)) == ""
    assert outcome.address_of({"spec": {}}, described()) == ""
    results = {"name": "results", "path": "/outputs/results", "to": "gs://other"}
    both = {"spec": {"outputs": [*JOB["spec"]["outputs"], results]}}
    assert outcome.address_of(both, described()) == f"gs://other/{NAME}"


def test_a_value_in_an_object_store_is_read(s3: Any) -> None:
    s3.put_object(Bucket="data", Key=ADDRESS.removeprefix("s3://data/"), Body=PICKLE)
    assert outcome.value_of(outcome.fetched(described(), ADDRESS), address=ADDRESS) == VALUE


def test_a_pickle_that_the_rank_did_not_write_is_not_loaded(s3: Any) -> None:
    s3.put_object(Bucket="data", Key=ADDRESS.removeprefix("s3://data/"), Body=pickle.dumps("another"))
    with pytest.raises(ResultError, match=f"it is the pickle {ADDRESS}, which cannot be read here: it is not what the"):
        outcome.value_of(outcome.fetched(described(), ADDRESS), address=ADDRESS)


def test_a_value_that_cannot_be_read_here_is_named_with_the_reason(s3: Any) -> None:
    with pytest.raises(ResultError, match=f"it is the pickle {ADDRESS}, which cannot be read here: "):
        outcome.value_of(outcome.fetched(described(), ADDRESS), address=ADDRESS)


def test_a_value_in_a_claim_is_only_named() -> None:
    assert outcome.fetched(described(), "claim://models/a/x.pickle") == described()
    with pytest.raises(ResultError, match=r"it is the pickle claim://models/a/x\.pickle$"):
        outcome.value_of(described(), address="claim://models/a/x.pickle")
