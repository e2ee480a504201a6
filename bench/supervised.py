"""Compares a program under the supervisor of its pod with the same program alone, in turns. Prints JSON.

python bench/supervised.py                       # 6 rounds of 300 steps each way, and 1 GB of output each way

steps: ratio of the median times of a step, which is arithmetic and a line of output: alone / supervised.
output: ratio of the bytes per second that reach a reader: supervised / alone.
processor: seconds that the supervisor needs for a gigabyte of output, and its share of a processor during the steps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from allranks.pod_bundle import copy

STEPS = """
import statistics, sys, time
times = []
for step in range(int(sys.argv[1])):
    began = time.perf_counter()
    sum(number * number for number in range(200_000))
    print("step", step, flush=True)
    times.append(time.perf_counter() - began)
print(statistics.median(times))
"""
OUTPUT = "import os, sys\nfor _ in range(int(sys.argv[1])): os.write(1, (b'x' * 99 + b'\\n') * 1310)"
CHUNK = 131_000


class Waits(BaseHTTPRequestHandler):
    """An operator that has no orders."""

    def do_POST(self) -> None:
        time.sleep(25)
        with contextlib.suppress(OSError):  # the program has ended
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    def log_message(self, *ignored: object) -> None: ...


@contextlib.contextmanager
def supervised() -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield the command of the supervisor and its environment."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Waits)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        copy(Path(folder))
        token = Path(folder, "token")
        token.write_text("x")
        env = {
            "ALLRANKS_IN_PLACE": "1",
            "ALLRANKS_REPORT_URL": f"http://127.0.0.1:{server.server_address[1]}/v1/report",
            "ALLRANKS_REPORT_TOKEN_FILE": str(token),
        }
        yield [sys.executable, f"{folder}/watch.py", "--"], env
    server.shutdown()


def run(program: str, number: int, before: list[str], env: dict[str, str]) -> tuple[bytes, float, float]:
    """Return the last bytes of the output, the seconds, and the seconds of processor time of all processes."""
    used, began = processor(), time.perf_counter()
    command = [*before, sys.executable, "-c", program, str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **env}) as process:
        assert process.stdout
        last = b""
        while chunk := os.read(process.stdout.fileno(), 1 << 20):
            last = (last + chunk)[-200:]
    return last, time.perf_counter() - began, processor() - used


def processor() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6, help="of each way (default 6)")
    parser.add_argument("--steps", type=int, default=300, help="steps of a round (default 300)")
    parser.add_argument("--megabytes", type=int, default=1000, help="output of a run (default 1000)")
    options = parser.parse_args()
    steps: dict[str, list[float]] = {"alone": [], "supervised": []}
    used: dict[str, list[float]] = {"alone": [], "supervised": []}
    rates: dict[str, list[float]] = {"alone": [], "supervised": []}
    written: dict[str, list[float]] = {"alone": [], "supervised": []}
    chunks = options.megabytes * 1_000_000 // CHUNK
    with supervised() as (command, env):
        for number in range(options.rounds):
            ways = [("alone", [], {}), ("supervised", command, env)]
            for way, before, variables in ways if number % 2 else reversed(ways):
                last, _, cpu = run(STEPS, options.steps, before, variables)
                steps[way].append(float(last.split()[-1]))
                used[way].append(cpu)
                _, seconds, cpu = run(OUTPUT, chunks, before, variables)
                rates[way].append(options.megabytes / seconds)
                written[way].append(cpu)
    median = statistics.median
    print(json.dumps({
        "step_ratio": round(median(steps["alone"]) / median(steps["supervised"]), 4),
        "step_milliseconds": round(1000 * median(steps["alone"]), 2),
        "output_ratio": round(median(rates["supervised"]) / median(rates["alone"]), 3),
        "megabytes_per_second": round(median(rates["supervised"])),
        "processor_seconds_per_gigabyte": round(
            1000 * (median(written["supervised"]) - median(written["alone"])) / options.megabytes, 2
        ),
        "processor_milliseconds_per_step": round(
            1000 * (median(used["supervised"]) - median(used["alone"])) / options.steps, 3
        ),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
