"""Time from a killed rank to the first step of the next attempt in its pod, with and without imports in advance.

A real supervisor on this machine, with a fake operator whose orders cost nothing: the rest is the start of the program.
The rank is killed when the imports of the next one are done.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from allranks.pod_bundle import copy  # noqa: E402
from support.fake_operator import operator_in  # noqa: E402
from support.warm_pod import DONE, Pod, quick_helpers  # noqa: E402

EPILOG = """examples:
  python bench/warm_start.py --bin "$(tools/frameworks.sh pytorch)/bin"            # PyTorch, with and without torchrun
  python bench/warm_start.py --bin "$(tools/frameworks.sh jax)/bin" --rounds 3 jax
"""
TORCH = """
import os, time
import torch, library
from allranks.report import report
if "LOCAL_WORLD_SIZE" in os.environ:
    torch.distributed.init_process_group("gloo")
    torch.distributed.all_reduce(torch.ones(1))
report(step=1)
os.write(1, f"{os.getpid()} {time.time()}\\n".encode())
while os.environ["ALLRANKS_ATTEMPT"] == "2":
    time.sleep(0.05)
"""
JAX = """
import os, time
import jax, library
from allranks.report import report
jax.numpy.ones(8).sum().block_until_ready()
report(step=1)
os.write(1, f"{os.getpid()} {time.time()}\\n".encode())
while os.environ["ALLRANKS_ATTEMPT"] == "2":
    time.sleep(0.05)
"""
PROGRAMS = {
    "pytorch": (["python3", "train.py"], TORCH, 1),
    "torchrun": (["torchrun", "--standalone", "--nproc-per-node=2", "train.py"], TORCH, 2),
    "jax": (["python3", "train.py"], JAX, 1),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", default=["pytorch", "torchrun"], help=f"of {', '.join(PROGRAMS)}")
    parser.add_argument("--bin", type=Path, required=True, help="the folder of python3 and torchrun")
    parser.add_argument("--rounds", type=int, default=5, help="kills of each way; default: %(default)s")
    options = parser.parse_args()
    if unknown := set(options.programs) - PROGRAMS.keys():
        parser.error(f"{', '.join(unknown)}: not one of {', '.join(PROGRAMS)}")
    for name in options.programs:
        times: dict[str, list[float]] = {"Never": [], "Auto": []}
        for number in range(options.rounds):
            for way in times if number % 2 else reversed(times):
                times[way].append(round(restart(name, way, options.bin), 2))
                print(f"{name}: warmStart {way}: {times[way][-1]} s", file=sys.stderr)
        medians = {way: statistics.median(seconds) for way, seconds in times.items()}
        print(json.dumps({"program": name, "seconds": times, "ratio": round(medians["Auto"] / medians["Never"], 2)}))
    return 0


def restart(name: str, way: str, programs: Path) -> float:
    """Kill a rank of the first attempt; return the seconds until the last rank of the next one has done a step."""
    command, text, ranks = PROGRAMS[name]
    with tempfile.TemporaryDirectory() as folder:
        copy(Path(folder, "copied"))
        helpers = quick_helpers(Path(folder, "copied"), Path(folder, "allranks"))
        place = Path(folder, "pod")
        place.mkdir()
        (place / "train.py").write_text(text)
        with operator_in(place) as operator:
            pod = Pod(place, helpers, operator, str(programs / "python3"), ranks)
            path = f"{programs}:/usr/bin:/bin"
            out, err = pod.run(str(programs / command[0]), *command[1:], PATH=path, ALLRANKS_WARM_START=way)
    if (DONE in err) != (way == "Auto"):
        raise SystemExit(f"warm_start: {err.strip()}")
    return max(float(seconds) for seconds in re.findall(r"\d+ (\d+\.\d+)", out)) - pod.killed_at


if __name__ == "__main__":
    sys.exit(main())
