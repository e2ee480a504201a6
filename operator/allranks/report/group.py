"""Finds ranks that train alone because their library has formed a smaller group than the job."""

from __future__ import annotations

import os

from allranks import report
from allranks.report.state import GROUP_RANK, WORLD_SIZE, number_in


def note_group(size: int, rank: int) -> None:
    """Report the rank in a group with fewer ranks than the job, for example because Lightning has no `num_nodes`:
    other pods have a rank of the same number."""
    if size < (number_in(WORLD_SIZE) or 1):
        os.environ[GROUP_RANK] = str(rank)
        report.report()
