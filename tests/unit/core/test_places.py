"""Sets of replica indices in the status."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.api.status import RoleStatus, Status
from allranks.core.diagnosis import elasticity
from allranks.core.facts import naming
from support.builders import NOW, job


@pytest.mark.parametrize(
    ("indices", "text"),
    [([], ""), ([0], "0"), ([3, 1, 2, 0, 5], "0-3,5"), ([1, 1], "1"), ([0, 2, 4, 5], "0,2,4-5")],
)
def test_indices_are_ranges(indices, text):
    assert naming.encode_indices(indices) == text


@given(st.sets(st.integers(0, 9_999)))
def test_what_is_written_is_read(indices):
    assert naming.decode_indices(naming.encode_indices(indices)) == indices


def test_a_worker_that_an_elastic_job_removes_and_adds_again_is_not_done():
    elastic = {"framework": "horovod", "elastic": {"minReplicas": 1, "maxReplicas": 3}}
    status = Status(roles={"worker": RoleStatus(desired=3)}, done={"worker": "1-2"})
    assert elasticity.set_desired_workers(job(**elastic, roles={"worker": 2}), status, NOW).done == {"worker": "1"}


def test_the_longest_text_fits_into_the_status():
    """Every second replica of ten thousand is done."""
    assert len(naming.encode_indices(range(0, 10_000, 2))) < 32_768
