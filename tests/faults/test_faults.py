"""Faults between operator and API server, and kills of the operator after its Nth write, do not change the outcome.

Every step of the scenario meets its expectations. The final status and objects, and the number of creates and deletes
of each object, equal those of a run without faults.
"""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from .runs import Run, Verdict


@pytest.mark.timeout(3600)
def test_faults_and_kills_do_not_change_the_outcome(run: Run, verdicts: dict[Run, Future[Verdict]]) -> None:
    verdict = verdicts[run].result()
    assert not verdict.differences, "\n".join([*verdict.differences, "faults:", *verdict.met])
