"""Every pod that the API server accepts is decoded."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from allranks.core.model import Pod
from allranks.kube.pod_codec import Raw, to_cached_pod

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
