"""Generates the table of docs/reference/recovery.md: the outcome of each fault, with real ranks on this machine."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from recovery import memory, page
from recovery.cases import FAULTS, FRAMEWORKS, Fault, Framework
from recovery.table import Cell, run

EPILOG = """examples:
  make recovery                                           # all of it, with the frameworks installed where they are not
  PATH=$(tools/frameworks.sh)/bin:$PATH .venv/bin/python tools/recovery.py
  .venv/bin/python tools/recovery.py --only pytorch,horovod
  .venv/bin/python tools/recovery.py --only tensorflow --fault 'kill -9 of rank 0' -o json

Runs the training programs of train/ unchanged, kills them and lets them fail, and compares what `allranks run` says of
it with the rules. Cells that were run are put into the page, the others stay as they are. The programs come from
PATH: torchrun, python3 and mpirun with the frameworks. `out of memory` needs root, for a memory cgroup.

exit status: 0, 1 if a cell is wrong, 2 if nothing was run
"""


def main() -> int:
    options = arguments()
    names = [name.lower() for name in options.only.split(",")] if options.only else []
    frameworks = [one for one in FRAMEWORKS if not names or one.name.lower() in names]
    faults = [one for one in FAULTS if not options.fault or one.name in options.fault]
    problems = [f"no framework {name!r}: {known(FRAMEWORKS)}" for name in names if name not in lowered(FRAMEWORKS)]
    problems += [
        f"no fault {name!r}: {known(FAULTS)}" for name in options.fault if name not in [f.name for f in FAULTS]
    ]
    problems += lacking(frameworks, faults)
    if problems:
        print(*(f"recovery: {problem}" for problem in problems), sep="\n", file=sys.stderr)
        return 2
    say = partial(print, file=sys.stderr, flush=True) if options.progress or sys.stderr.isatty() else nothing
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through every `with`: ranks and cgroup do not stay
    cells: list[Cell] = []
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        for framework in frameworks:
            column = list(run(framework, faults, Path(folder), say))
            cells += column
            if not options.no_page:
                page.write(column)
    if options.output == "json":
        print(json.dumps([cell.as_dict() for cell in cells], indent=2))
    wrong = [cell for cell in cells if cell.wrong]
    for cell in wrong:
        print(f"recovery: WRONG: {cell.framework}, {cell.fault}: {'; '.join(cell.wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="FRAMEWORK[,..]", help=f"of {', '.join(lowered(FRAMEWORKS))}")
    parser.add_argument("--fault", metavar="NAME", action="append", default=[], help="may be given more than once")
    parser.add_argument("-o", dest="output", choices=["json"], help="the cells on stdout too")
    parser.add_argument("--no-page", action="store_true", help="leave docs/reference/recovery.md alone")
    parser.add_argument("--progress", action="store_true", help="told on stderr, also where that is no terminal")
    return parser.parse_args()


def lacking(frameworks: Sequence[Framework], faults: Sequence[Fault]) -> list[str]:
    """What this machine does not have."""
    missing = [name for name in ("torchrun", "python3") if not shutil.which(name)]
    if any(one.name == "Horovod-MPI" for one in frameworks) and not shutil.which("mpirun"):
        missing.append("mpirun")
    problems = [f"{name} is not in PATH (tools/frameworks.sh, tools/system-packages.sh)" for name in missing]
    if any(fault.needs_memory for fault in faults) and (why := memory.missing()):
        problems.append(f"{why}: leave 'out of memory' out, by --fault for each of the others")
    return problems


def lowered(things: Sequence[Framework]) -> list[str]:
    return [one.name.lower() for one in things]


def known(things: Sequence[Framework] | Sequence[Fault]) -> str:
    return "there are " + ", ".join(one.name for one in things)


def nothing(line: str) -> None:
    """Who does not watch need not read."""


if __name__ == "__main__":
    sys.exit(main())
