"""`make compare`: the time until all pods exist, under allranks and its peers, into docs/platform/compare.md."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tools")]

from transcripts import replaced  # noqa: E402

from bench.common import programs  # noqa: E402
from bench.creation import rounds, summary  # noqa: E402
from bench.machine import machine, versions  # noqa: E402
from bench.systems import PEERS, SYSTEMS, Raw, Shape  # noqa: E402
from bench.table import markdown  # noqa: E402

PAGE = ROOT / "docs" / "platform" / "compare.md"
KEPT = ROOT / "build" / "bench" / "compare.json"
SHAPES = (Shape(1, 256), Shape(100, 4))


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/compare.py", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the systems without a throttle (default 3)")
    asked = parser.parse_args()
    if asked.rounds < 1:
        parser.error("--rounds: at least 1")
    logging.disable(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds every `with`, which ends all processes
    built = programs()
    now = machine() | {"versions": versions(built)}
    samples = rounds(built, [*SYSTEMS, *PEERS], SHAPES, asked.rounds)
    measured = {"machine": now, "rounds": asked.rounds, "creation": summary(samples, Raw.name)}
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    KEPT.write_text(json.dumps(measured, indent=1))
    PAGE.write_text(replaced(PAGE.read_text(), "compare", markdown(measured, judged=False)))


if __name__ == "__main__":
    main()
