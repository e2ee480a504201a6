"""Generates the table of docs/reference/recovery.md: the result of each fault, with real ranks on this machine."""

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
  make recovery                                           # everything; installs missing frameworks
  PATH=$(tools/frameworks.sh)/bin:$PATH .venv/bin/python tools/recovery.py
  .venv/bin/python tools/recovery.py --only pytorch,horovod
  .venv/bin/python tools/recovery.py --only tensorflow --fault 'kill -9 of rank 0' -o json

Runs the unchanged training programs of train/, kills them or makes them fail, and compares the status that `allranks
run` prints with the rules. Cells that were run are updated in the page, the others are kept. The programs come from
PATH: torchrun, python3 and mpirun with the frameworks. `out of memory` needs root, for a memory cgroup.

exit status: 0, 1 if a cell is wrong, 2 if nothing was run
"""


def main() -> int:
    options = arguments()
    names = [name.lower() for name in options.only.split(",")] if options.only else []
    frameworks = [one for one in FRAMEWORKS if not names or one.name.lower() in names]
    faults = [one for one in FAULTS if not options.fault or one.name in options.fault]
    problems = [f"no framework {name!r}: {available(FRAMEWORKS)}" for name in names if name not in lowered(FRAMEWORKS)]
    problems += [
        f"no fault {name!r}: {available(FAULTS)}" for name in options.fault if name not in [f.name for f in FAULTS]
    ]
    problems += missing_requirements(frameworks, faults)
    if problems:
        print(*(f"recovery: {problem}" for problem in problems), sep="\n", file=sys.stderr)
        return 2
    say = partial(print, file=sys.stderr, flush=True) if options.progress or sys.stderr.isatty() else nothing
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds every `with`, which removes ranks and cgroup
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
    parser.add_argument("--only", metavar="FRAMEWORK[,..]", help=f"one or more of {', '.join(lowered(FRAMEWORKS))}")
    parser.add_argument("--fault", metavar="NAME", action="append", default=[], help="one fault; can be repeated")
    parser.add_argument("-o", dest="output", choices=["json"], help="also print the cells to stdout")
    parser.add_argument("--no-page", action="store_true", help="do not change docs/reference/recovery.md")
    parser.add_argument("--progress", action="store_true", help="print progress to stderr, even if not a terminal")
    return parser.parse_args()


def missing_requirements(frameworks: Sequence[Framework], faults: Sequence[Fault]) -> list[str]:
    """Requirements that this machine does not meet."""
    programs = {one.layout.launcher[0] for one in frameworks}
    missing = [name for name in sorted(programs) if not shutil.which(name)]
    if any(one.name in ("Horovod-MPI", "MPI") for one in frameworks) and not shutil.which("mpirun"):
        missing.append("mpirun")
    problems = [f"{name} is not in PATH (tools/frameworks.sh, tools/system-packages.sh)" for name in missing]
    if any(fault.needs_memory for fault in faults) and (why := memory.missing()):
        problems.append(f"{why}: to skip 'out of memory', pass --fault for each of the others")
    return problems


def lowered(things: Sequence[Framework]) -> list[str]:
    return [one.name.lower() for one in things]


def available(things: Sequence[Framework] | Sequence[Fault]) -> str:
    return "available: " + ", ".join(one.name for one in things)


def nothing(line: str) -> None:
    """Discards progress lines."""


if __name__ == "__main__":
    sys.exit(main())
