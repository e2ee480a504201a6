"""`make bench`: measures the overhead of the operator on a real API server. See docs/platform/performance.md."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "bench" / "bench.json"
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tools")]

from transcripts import replaced  # noqa: E402

from bench import cores, recovery  # noqa: E402
from bench.common import connection, log_progress, programs  # noqa: E402
from bench.creation import SHAPES, plane, rounds, summary  # noqa: E402
from bench.latency import latencies  # noqa: E402
from bench.life import SHAPES as LIVES  # noqa: E402
from bench.life import kubelet, lives  # noqa: E402
from bench.machine import machine, versions  # noqa: E402
from bench.scale import day, scale  # noqa: E402
from bench.systems import PEERS, SYSTEMS, Allranks, Raw, System, UnthrottledJob  # noqa: E402
from bench.table import markdown  # noqa: E402

EXAMPLES = """\
examples:
  python -m bench                            # everything: about forty minutes
  python -m bench --only creation --rounds 5
  python -m bench --only life --peers        # include training-operator, built by Go on first use
  python -m bench -o json | jq .creation.allranks
  python -m bench --peers --write            # write the tables into docs/platform/performance.md
  python -m bench --only day --add --write   # repeat one part, keep the others of the last run

All numbers come from one run; with --add, the tables state the run of each part. The tables and the JSON are kept in
build/bench/.
"""


def parts(asked: argparse.Namespace) -> dict[str, Callable[[Path], Any]]:
    peers: list[type[System]] = list(PEERS) if asked.peers else []
    alive = [Allranks, UnthrottledJob, *(kind for kind in peers if not kind.throttled)]
    return {
        "creation": lambda built: summary(rounds(built, [*SYSTEMS, *peers], SHAPES, asked.rounds), Raw.name),
        "apart": lambda built: _apart(built, asked.rounds),
        "life": lambda built: lives(built, alive, LIVES),
        "latency": lambda built: latencies(built, 20, (1000, 50)),
        "recovery": _recovery,
        "scale": lambda built: {
            "500 jobs": scale(built, 500, 20, 30),
            "1,000 jobs": scale(built, 1000, 10, 10),
        },
        "day": lambda built: day(built, asked.days * 2880, 4),
    }


def _apart(built: Path, number: int) -> Any:
    """Creation with separate cores for the API server, without the throttled systems."""
    quick: list[type[System]] = [kind for kind in SYSTEMS if not kind.throttled]
    with cores.apart():
        return summary(rounds(built, quick, SHAPES, number), Raw.name)


def _recovery(built: Path) -> Any:
    asked = argparse.Namespace(pods=64, rounds=30, seconds=600, only=None)
    with plane(built) as fresh, kubelet(fresh):
        return asyncio.run(recovery.measure(connection(fresh), asked, None))


def keep(found: dict[str, Any]) -> None:
    """Called after each part, so that a failing part does not lose the others."""
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    KEPT.write_text(json.dumps(found, indent=1))
    KEPT.with_suffix(".md").write_text(markdown(found))


def write(page: Path, section: str, text: str) -> None:
    page.write_text(replaced(page.read_text(), section, text))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures the operator on a real API server, compared with the limit and with peers.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = list(parts(argparse.Namespace(peers=False, rounds=1, days=1)))
    parser.add_argument("--only", action="append", choices=names, help="run only this part; can be repeated")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the creation test (default 5)")
    parser.add_argument("--days", type=int, default=1, help="days of jobs in the part `day` (default 1)")
    parser.add_argument("--peers", action="store_true", help="include training-operator")
    parser.add_argument("--write", action="store_true", help="replace the tables in the documentation")
    parser.add_argument(
        "--add",
        action="store_true",
        help="keep the other parts of the last run; the tables list the parts measured later",
    )
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    asked = parser.parse_args()
    for name in ("rounds", "days"):
        if getattr(asked, name) < 1:
            parser.error(f"--{name}: at least 1")
    logging.disable(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds every `with`, which ends all processes
    built = programs()
    now = machine() | {"versions": versions(built)}
    adds = asked.add and KEPT.exists()
    found: dict[str, Any] = json.loads(KEPT.read_text()) if adds else {"machine": now}
    for name, measure in parts(asked).items():
        if asked.only is None or name in asked.only:
            log_progress(f"== {name}")
            found[name] = measure(built)
            if adds:
                found.setdefault("added", {})[name] = now
            keep(found)
    text = markdown(found)
    if asked.write:
        write(ROOT / "docs" / "platform" / "performance.md", "bench", text)
    print(json.dumps(found, indent=1) if asked.output == "json" else text)


if __name__ == "__main__":
    main()
