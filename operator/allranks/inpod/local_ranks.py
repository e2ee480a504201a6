"""Starts the ranks of a pod that has several: `python3 local_ranks.py -- PROGRAM [ARG...]`.

RANK is the rank of the first process and LOCAL_WORLD_SIZE their number; each process gets its own RANK and LOCAL_RANK.
Needs only the standard library.
"""

from __future__ import annotations

import os
import sys

from rank_processes import run  # type: ignore[import-not-found]  # in the same directory


def main(argv: list[str]) -> int:
    """Return the exit status of the first process that fails."""
    if len(argv) < 2 or argv[0] != "--":
        print("usage: local_ranks.py -- PROGRAM [ARG...]", file=sys.stderr)
        return 2
    first, count = int(os.environ["RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    ranks = {
        first + local: {**os.environ, "RANK": str(first + local), "LOCAL_RANK": str(local)} for local in range(count)
    }
    return run(argv[1:], ranks)  # type: ignore[no-any-return]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
