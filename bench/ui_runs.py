"""The pages of `allranks ui` with many runs of this machine and no cluster, and the curves of one with many points.

python bench/ui_runs.py                 # 1,000 runs, 20,000 points of two metrics
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bench.common import Manifest, memory  # noqa: E402
from bench.ui import get, served, timed  # noqa: E402
from support.ui_samples import a_job, a_run, progress, times, write_run  # noqa: E402

RUN = "runs/long/20260304-101500"


def write_runs(root: Path, runs: int, points: int) -> None:
    for number in range(runs):
        status = {"progress": progress(1000), "times": times()}
        job = a_job(f"train-{number % 10}", "Succeeded", **status)
        job["spec"]["args"] = [f"--lr={number / runs}", f"--batch-size={2 ** (number % 8)}", "--epochs=3"]
        write_run(a_run(root, f"train-{number % 10}", f"20260304-{number:06}", "Succeeded"), job)
    folder = a_run(root, "long", "20260304-101500", "Succeeded", progress=progress(1000))
    began = datetime.now(UTC) - timedelta(hours=1)
    with (folder / "progress.jsonl").open("w") as file:
        for step in range(points):
            at = (began + timedelta(seconds=step / 10)).isoformat()
            metrics = {"loss": 2 / (step + 1), "val_loss": 2.2 / (step + 1)}
            file.write(json.dumps({"time": at, "attempt": 0, "step": step, "metrics": metrics}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    out: Manifest = vars(asked).copy()
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder) / "runs", asked.runs, asked.points)
        with served(Path(folder) / "none", Path(folder) / "runs") as (pid, host, token):
            for path in (
                "/",
                "/?sort=param:lr",
                "/?where=loss<1,lr<0.5",
                f"/{RUN}",
                f"/{RUN}/files",
                f"/api/v1/curves?job={RUN}",
                "/compare",
                "/history",
            ):

                def ask(path: str = path) -> int:
                    return get(lambda: http.client.HTTPConnection(host, timeout=60), path, token)

                out[path] = timed(asked.rounds, ask)
            out["memory_mb"] = round(memory(pid))
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
