"""`status.restartSummary`, the column RESTARTS of `kubectl get dt`."""

from __future__ import annotations

import pytest

from allranks.api.status import RestartCounts, Status
from allranks.kube import job_codec


@pytest.mark.parametrize(
    ("counted", "disruptions", "shown"),
    [(0, 0, "0"), (2, 0, "2"), (0, 1, "1 (1 disrupted)"), (2, 3, "5 (3 disrupted)")],
)
def test_the_summary_counts_all_restarts_and_names_disruptions(counted, disruptions, shown):
    status = Status(restarts=RestartCounts(counted=counted, disruptions=disruptions))
    written = job_codec.encode(status)
    assert written["restartSummary"] == shown
    assert job_codec.status({"status": written}) == status, "it is derived, so nothing reads it"
