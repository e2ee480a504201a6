"""Faults between operator and API server, and the operator killed after its Nth write: in the end all is the same.

Every step of the scenario comes to what it expects, the final status and objects are those of a run without harm, and
so is how often each object was created and deleted.
"""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from .runs import Run, Verdict


@pytest.mark.timeout(3600)
def test_harm_between_operator_and_api_server_changes_nothing_in_the_end(
    run: Run, verdicts: dict[Run, Future[Verdict]]
) -> None:
    verdict = verdicts[run].result()
    assert not verdict.differences, "\n".join([*verdict.differences, "it met:", *verdict.met])
