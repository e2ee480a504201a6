"""Runs the tests that failed in the last run of `tools/test.py` again, each alone, and prints a Markdown table.

    tools/flakes.py             of all parts that have run
    tools/flakes.py unit-all    of this part

A test that passes now is flaky: it depends on time, on other tests or on chance. Seeds are those of the last run if
TEST_SEED is set as it was there. Exits with 0: the run itself has failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests")]

from junit import Case, cases  # noqa: E402
from parts import BIN, PARTS, ROOT, SEED, Part  # noqa: E402

from support import environment  # noqa: E402

MOST = 20
"""Tests of a part that run again: when more fail, one cause breaks them all."""
SECONDS = 900
HEAD = f"| test (TEST_SEED={SEED}) | alone | first failure |\n|---|---|---|"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all that have run")
    parts = [PARTS[name] for name in parser.parse_args().parts or PARTS]
    failed = [(part, case) for part in parts for case in cases(part.name) if case.failure]
    if not failed:
        print("No test has failed: look at the output of the run.")
        return
    print(HEAD)
    for part, case in failed[:MOST]:
        print(f"| `{case.file}::{case.name}` | {again(part, case)} | {cell(case.failure)} |", flush=True)
    if len(failed) > MOST:
        print(f"\n{len(failed) - MOST} more have failed, and did not run again.")


def again(part: Part, case: Case) -> str:
    """Run a test alone, and return the result."""
    command = [BIN / "python", "-m", "pytest", "-q", "-n0", "-m", "", f"{case.file}::{case.name}"]
    variables = environment.interpreter() | part.environment
    try:
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"not done after {SECONDS} s"
    return "**passes: flaky**" if done.returncode == 0 else "fails again"


def cell(text: str) -> str:
    """Return the first line as the cell of a table."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    return f"`{line[:160].replace('|', '/').replace('`', '')}`"


if __name__ == "__main__":
    main()
