"""Runs every example with one worker on a GPU of this machine, and compares the speed with that of torchrun."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from machine import ROOT, machine
from train_runs import end

EPILOG = """examples:
  python bench/gpu.py                          # every example whose framework is installed, then the speed
  python bench/gpu.py --only penguins-pytorch lm-pytorch
  python bench/gpu.py --gpus 0 --part examples # the same without a GPU, to try this command

The ranks use the programs in PATH: activate the environment that has PyTorch, JAX and so on. The command never changes
a setting of a GPU, and fails if one changed while it ran.

exit status: 0, 1 if an example failed, did not use the GPU, or a setting of a GPU changed
"""
PARTS = ("examples", "speed")
SECONDS = 240
"""Timeout of a run."""
NEEDS = {
    "lm-transformers": "transformers",
    "lora-trl": "trl",
    "penguins-accelerate": "accelerate",
    "penguins-lightning": "lightning",
}
"""The package that an example needs beside its framework's."""
PACKAGES = {
    "pytorch": "torch",
    "spmd": "torch",
    "jax": "jax",
    "tensorflow": "tensorflow",
    "horovod": "horovod",
    "ray": "ray",
}
"""The package of each framework."""
ON_CPU = {"penguins-mpi", "rpc-parameter-server", "rpc-model-parallel", "penguins-tensorflow-model"}
"""Examples whose programs compute on CPUs wherever they run, or with a single GPU."""
SETTINGS = "uuid,mig.mode.current,compute_mode,persistence_mode,power.limit,clocks.applications.graphics"
SPEED = ["train/lm_pytorch.py", "--parallel=ddp", "--epochs=4", "--steps-per-epoch=20", "--batch-size=32"]
SPEED += ["--context=512", "--width=768", "--layers=12", "--heads=12", "--lr=0.0003", "--sample=1"]
Manifest = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """One run: `result` is the phase of the job or why it was not run; `devices` what the ranks said they use."""

    name: str
    result: str
    devices: str = ""
    seconds: float = 0.0
    log: str = ""

    def failed(self, gpus: int) -> bool:
        used = re.search(r"cuda|gpu|GPU", self.devices) or not gpus
        return bool(self.seconds) and not (self.result == "Succeeded" and used)


def main() -> int:
    options = arguments()
    before = gpu_settings()
    if options.gpus and not before:
        print("gpu: nvidia-smi finds no GPU; --gpus 0 runs the examples without one", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, which ends all ranks
    failed = False
    print(describe(before), flush=True)
    if "examples" in options.part:
        print("\n| example | result | ranks run on | seconds |\n| --- | --- | --- | --- |", flush=True)
        for manifest in examples():
            if options.only and manifest["metadata"]["name"] not in options.only:
                continue
            outcome = run_example(manifest, options.gpus)
            duration = f"{outcome.seconds:.1f}" if outcome.seconds else ""
            print(f"| {outcome.name} | {outcome.result} | {outcome.devices} | {duration} |", flush=True)
            if outcome.failed(options.gpus):
                failed = True
                print(outcome.log, file=sys.stderr, flush=True)
    if "speed" in options.part:
        print(f"\n{compare_speed(options.rounds, options.gpus)}", flush=True)
    if (after := gpu_settings()) != before:
        print(f"gpu: settings of a GPU changed, from {before} to {after}", file=sys.stderr)
        failed = True
    elif before:
        print(f"\nUnchanged settings ({SETTINGS}): {'; '.join(before)}")
    return int(failed)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="EXAMPLE", help="names of examples (default: all)")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS, help="default: both")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of each pod (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the comparison (default %(default)s)")
    options = parser.parse_args()
    names = [manifest["metadata"]["name"] for manifest in examples()]
    if unknown := [name for name in options.only if name not in names]:
        parser.error(f"--only: there is no example {', '.join(unknown)}; the examples are {', '.join(names)}")
    return options


def gpu_settings() -> list[str]:
    """One line for each GPU; empty without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={SETTINGS}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return [re.sub(r"GPU-[0-9a-f-]+", f"GPU {number}", line) for number, line in enumerate(lines)]


def describe(gpus: list[str]) -> str:
    """Date, commit, GPU and versions, as one line."""
    about = machine()
    program = (
        "import torch; print('torch', torch.__version__, 'CUDA', torch.version.cuda, end=' ')\n"
        "if torch.cuda.is_available(): print('NCCL', '.'.join(map(str, torch.cuda.nccl.version())), "
        "torch.cuda.get_device_name())"
    )
    done = subprocess.run(["python3", "-c", program], capture_output=True, text=True, timeout=120, check=False)
    cores = f"{about['cores']} cores ({about['processor']})"
    software = done.stdout.strip() or "no PyTorch"
    return f"{about['date']}, commit {about['commit']}: {len(gpus)} GPU(s), {cores}; {software}."


def examples() -> Iterator[Manifest]:
    """The DistributedTraining of each example in `examples/`, without those for a pool."""
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document and document["kind"] == "DistributedTraining" and "pool" not in document["spec"]:
                yield document


def run_example(manifest: Manifest, gpus: int) -> Outcome:
    name = manifest["metadata"]["name"]
    if name in ON_CPU:
        return Outcome(name, "not run: the program does not use a single GPU")
    package = NEEDS.get(name) or PACKAGES[manifest["spec"]["framework"]]
    if not installed(package):
        return Outcome(name, f"not run: {package} is not installed")
    return run_job(on_gpus(manifest, gpus))


def installed(package: str) -> bool:
    """Whether the Python in PATH, which runs the ranks, has this package."""
    program = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run(["python3", "-c", program], timeout=60, check=False).returncode == 0


def on_gpus(manifest: Manifest, gpus: int) -> Manifest:
    """The job with one worker and no master, since this machine may have one GPU. Only the worker requests GPUs."""
    spec = {name: value for name, value in manifest["spec"].items() if name != "elastic"}
    limits = spec["resources"]["limits"] | ({"nvidia.com/gpu": gpus} if gpus else {})
    worker = spec["roles"]["worker"] | {"replicas": 1, "resources": spec["resources"] | {"limits": limits}}
    spec["roles"] = {role: value for role, value in spec["roles"].items() if role != "master"} | {"worker": worker}
    return manifest | {"spec": spec}


def run_job(manifest: Manifest) -> Outcome:
    """Runs the job with `allranks run`."""
    name = manifest["metadata"]["name"]
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        job = Path(folder, "job.yaml")
        job.write_text(json.dumps(manifest))  # JSON is YAML
        volume = manifest["spec"].get("checkpoint", {}).get("claim")
        volumes = ["--volume", f"{volume}={folder}/volume"] if volume else []
        Path(folder, "volume").mkdir()
        began = time.monotonic()
        code, text = call([sys.executable, "-m", "allranks", "run", str(job), "--run-dir", f"{folder}/run", *volumes])
        seconds = time.monotonic() - began
    devices = sorted(set(re.findall(r"started on ([^,\n]+)", text)))
    return Outcome(name, "Succeeded" if code == 0 else f"exit {code}", ", ".join(devices), seconds, text)


def call(command: list[str]) -> tuple[int, str]:
    """Exit code and output. A command that does not end in time is ended, with its ranks."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        end(process)
        output = f"{process.communicate()[0]}\ngpu: ended, because it ran for {SECONDS} s\n"
    finally:
        end(process)
    return process.returncode, output


def compare_speed(rounds: int, gpus: int) -> str:
    """Tokens per second of the same program, started by torchrun and by `allranks run`, in turns."""
    spec: Manifest = {
        "framework": "pytorch",
        "image": "none",
        "command": ["torchrun", *SPEED],
        "roles": {"worker": {"replicas": 1}},
        "resources": {"limits": {"nvidia.com/gpu": gpus} if gpus else {}},
        "restart": {"maxRestarts": 0},
    }
    job = {"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining", "metadata": {"name": "speed"}}
    reporting = spec | {"progress": {}}
    ways = {"torchrun": None, "allranks run": spec, "allranks run, with reports": reporting}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in list(ways)[:: 1 - 2 * (number % 2)]:
            chosen = ways[way]
            text = run_job(job | {"spec": chosen}).log if chosen else call(["torchrun", "--standalone", *SPEED])[1]
            rates = re.findall(r"(\d+) tokens/s", text)
            if len(rates) < 3:
                sys.exit(f"gpu: {SPEED[0]} failed with {way}:\n{text}")
            found[way].append(statistics.median(map(float, rates[1:])))  # the first epoch warms up
    lines = [f"`{' '.join(SPEED)}`", "", "| started by | tokens/s | ratio |", "| --- | --- | --- |"]
    base = statistics.median(found["torchrun"])
    for way, rates in found.items():
        median = statistics.median(rates)
        lines.append(f"| {way} | {median:,.0f} ({min(rates):,.0f} to {max(rates):,.0f}) | {median / base:.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
