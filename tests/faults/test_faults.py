"""Faults between operator and API server, and kills of the operator after its Nth write, do not change the outcome.

Every step of the scenario meets its expectations. The final status and objects, and the number of creates and deletes
of each object, equal those of a run without faults.
"""

from __future__ import annotations

import traceback
from concurrent.futures import Future

import pytest

from support.scenario_runner import Unsupported

from .runs import Run, Verdict


@pytest.mark.timeout(3600)
def test_faults_and_kills_do_not_change_the_outcome(run: Run, verdicts: dict[Run, Future[Verdict]]) -> None:
    # pytest would parse the source for a traceback, and `ast` of Python 3.11 fails while another thread parses as well.
    error = verdicts[run].exception()
    if isinstance(error, Unsupported):
        pytest.skip(f"this world cannot play it: {error}")
    if error:
        frames = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        pytest.fail("\n".join([*traceback.format_exception_only(error), *frames]), pytrace=False)
    verdict = verdicts[run].result()
    if verdict.differences:
        pytest.fail("\n".join([*verdict.differences, "faults:", *verdict.met]), pytrace=False)
