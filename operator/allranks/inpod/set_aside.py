"""Sets a checkpoint aside that the attempt before could not read, once, before the program starts.

All ranks share the directory: one of them moves the files, and the others wait for it. Runs in the image of the
program, with its Python. Needs `allranks.report`, which is in the same directory.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

_POLL_SECONDS = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("step", type=int)
    parser.add_argument("name", help="of the folder for it: the job and the attempt that could not read it")
    parser.add_argument("--mover", type=int, default=1, help="1: the pod with index 0 moves the files; 0: wait")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent / "python"))
    from allranks.report.checkpoints import SET_ASIDE, set_aside

    marker = options.directory / SET_ASIDE / f"{options.name}.done"
    if not options.mover or os.environ.get("ALLRANKS_INDEX", "0") != "0":
        while not marker.exists():
            time.sleep(_POLL_SECONDS)
        return
    try:
        if not marker.exists():
            print(set_aside(options.directory, options.step, options.name), flush=True)
            marker.parent.mkdir(exist_ok=True)
            marker.touch()
    except OSError as error:
        sys.exit(f"the checkpoint of step {options.step} cannot be set aside: {error}")


if __name__ == "__main__":
    main()
