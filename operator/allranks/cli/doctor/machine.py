"""Checks of this machine: what `allranks run` needs."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allranks.cli.doctor.findings import Check, Finding, note, ok, problem
from allranks.control_sequences import clean
from allranks.frameworks import FRAMEWORKS
from allranks.frameworks.hints import DoctorProbe
from allranks.local import gpus
from allranks.local.environment import machine_environment
from allranks.version import __version__

SECTION = "machine"
IMPORT_SECONDS = 60.0
"""Time limit of an import: the first one of a framework from a network file system may take a minute."""
SECONDS = IMPORT_SECONDS + 10
"""Time limit of all checks, which run at the same time."""
MIB = 1 << 20
MIN_SHARED_MEMORY = 512 * MIB
"""NCCL and the workers of a DataLoader need this much; Docker's default of 64 MiB is too small."""
MIN_DISK = 1024 * MIB


@dataclass(frozen=True)
class Machine:
    """The machine that is checked. Tests replace parts of it."""

    environ: Mapping[str, str] = field(default_factory=lambda: machine_environment(os.environ))
    directory: Path = field(default_factory=Path.cwd)
    shared_memory: Path = Path("/dev/shm")
    devices: Path = Path("/dev")
    usage: Callable[[Path], Any] = shutil.disk_usage
    host_address: Callable[[], str] = lambda: socket.gethostbyname(socket.gethostname())

    def checks(self) -> dict[str, Check]:
        return {
            "allranks": self._allranks,
            "frameworks": self._frameworks,
            "gpus": self._gpus,
            "shared memory": self._shared_memory,
            "disk": self._disk,
            "network": self._network,
        }

    def _which(self, program: str) -> str | None:
        return shutil.which(program, path=self.environ.get("PATH"))

    def _run(self, *command: str, seconds: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=dict(self.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )

    def _allranks(self) -> Iterator[Finding]:
        yield ok("allranks", f"version {__version__}, Python {platform.python_version()} ({sys.executable})")

    # --- frameworks ----------------------------------------------------------------------------------------------

    def _frameworks(self) -> Iterator[Finding]:
        python = self._which("python") or self._which("python3")
        if python is None:
            yield problem("python", "there is no python on PATH", "activate the environment of your training program")
            return
        probes = {name: self._started_probe(python, probe) for name, probe in _PROBES.items()}
        deadline = time.monotonic() + IMPORT_SECONDS
        answers = {name: _answer(process, deadline) for name, process in probes.items()}
        installed = {name: answer for name, answer in answers.items() if answer is not None}
        if not installed:
            yield note(
                "frameworks",
                f"{python} has none of {', '.join(_PROBES)}",
                "for allranks run, activate the environment that has your framework, or pip install torch",
            )
        for name, answer in installed.items():
            yield from self._framework(name, python, answer)

    def _started_probe(self, python: str, probe: DoctorProbe) -> subprocess.Popen[str]:
        """Start a process that imports the framework: metadata alone does not show a missing library."""
        return subprocess.Popen(
            [python, "-c", _PROGRAM, probe.package, probe.details, probe.gpu],
            env=dict(self.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _framework(self, name: str, python: str, answer: Mapping[str, Any]) -> Iterator[Finding]:
        version = answer.get("version")
        if error := answer.get("error"):
            message = (
                f"{name} {version} is installed, but {python} cannot import it: {clean(error.encode(), colour=False)}"
            )
            yield problem(name, message, f"reinstall it: {python} -m pip install --force-reinstall {name}")
            return
        yield ok(name, f"version {version}{answer.get('details') or ''} ({python})")
        if name in _LAUNCHERS:
            yield self._launcher(name, python)
        if answer.get("gpu") is False and gpus.list_gpus(self.environ):
            text = f"this build of {name} cannot use the GPUs of this machine ({python})"
            yield problem(name, text, _PROBES[name].gpu_cure)

    def _launcher(self, package: str, python: str) -> Finding:
        [program, *_], module = _LAUNCHERS[package].command, _LAUNCHERS[package].module
        launcher = self._which(program)
        if launcher is None:
            cure = f"activate the environment of {package}, or use `python -m {module}` as command"
            return problem(program, f"{package} is installed, but {program} is not on PATH", cure)
        if Path(launcher).parent != Path(python).parent:
            text = f"{launcher} is not in the environment of {python}: ranks may use another {package}"
            return note(program, text, "activate one environment that has both")
        return ok(program, launcher)

    # --- hardware ------------------------------------------------------------------------------------------------

    def _gpus(self) -> Iterator[Finding]:
        program = self._which("nvidia-smi")
        if program is None:
            if (self.devices / "nvidia0").exists() or (self.devices / "nvidiactl").exists():
                cure = "add nvidia-smi to PATH; in a container, install the NVIDIA Container Toolkit"
                yield problem("gpus", "there are NVIDIA devices, but nvidia-smi is not on PATH", cure)
            elif (self.devices / "kfd").exists():
                text = "there are AMD GPUs, which allranks run does not assign: every rank can use all of them"
                yield note("gpus", text, "select one in the program, by LOCAL_RANK")
            else:
                yield note("gpus", "none: ranks run on the CPU")
            return
        done = self._run(program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader", seconds=30)
        lines = [clean(line.encode(), colour=False).split(",") for line in done.stdout.splitlines()]
        rows = [[part.strip() for part in line] for line in lines if len(line) == 3]
        if done.returncode or not rows:
            output = clean(" ".join((done.stdout + done.stderr).split()).encode(), colour=False)
            yield problem("gpus", f"nvidia-smi fails: {output}", "reload or reinstall the NVIDIA driver; see dmesg")
            return
        kinds = Counter((name, memory) for name, _, memory in rows)
        listed = ", ".join(f"{count} x {name} ({memory})" for (name, memory), count in kinds.items())
        usable = len(gpus.list_gpus(self.environ))
        limited = f"; {gpus.VISIBLE} selects {usable}" if gpus.VISIBLE in self.environ else ""
        yield ok("gpus", f"{listed}, driver {rows[0][1]}{limited}")

    def _shared_memory(self) -> Iterator[Finding]:
        if not self.shared_memory.is_dir():
            yield note("shared memory", f"there is no {self.shared_memory}: this system does not use it")
            return
        size = self.usage(self.shared_memory)
        text = f"{self.shared_memory} has {_bytes(size.total)}, {_bytes(size.free)} free"
        if size.total < MIN_SHARED_MEMORY:
            cure = f"make it larger: docker run --shm-size=8g, or mount -o remount,size=8G {self.shared_memory}"
            yield problem("shared memory", f"{text}: too small for NCCL and for DataLoader workers", cure)
        else:
            yield ok("shared memory", text)

    def _disk(self) -> Iterator[Finding]:
        """Check the directory where `allranks run` stores runs."""
        place = self.directory / "runs"
        existing = place if place.is_dir() else self.directory
        if not os.access(existing, os.W_OK | os.X_OK):
            yield problem(
                "disk", f"{existing} is not writable", "change the directory, or use allranks run --run-dir DIR"
            )
            return
        size = self.usage(existing)
        if size.free < MIN_DISK:
            cure = "remove old runs: allranks runs prune --older-than 7d; or use allranks run --run-dir DIR"
            yield problem("disk", f"{place} has only {_bytes(size.free)} left for logs and checkpoints", cure)
        else:
            yield ok("disk", f"{place} has {_bytes(size.free)} free")

    def _network(self) -> Iterator[Finding]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                yield ok("network", f"programs can connect on 127.0.0.1 (port {port})")
        try:
            self.host_address()
        except OSError:
            name = socket.gethostname()
            cure = f"add `127.0.0.1 {name}` to /etc/hosts"
            yield note("network", f"the host name {name} has no address: Gloo and MPI may fail to connect", cure)


_PROBES = {framework.probe.package: framework.probe for framework in FRAMEWORKS.values() if framework.probe}
_LAUNCHERS = {
    framework.probe.package: framework.script
    for framework in FRAMEWORKS.values()
    if framework.probe and framework.script.module
}
"""Package -> how its launcher, a program on PATH, is started."""

_PROGRAM = """\
import importlib, importlib.metadata, importlib.util, json, os, sys
name, details, gpu = sys.argv[1:]
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
if importlib.util.find_spec(name) is None:
    print(json.dumps(None))
    raise SystemExit
answer = {}
try:
    answer["version"] = importlib.metadata.version(name)
except Exception:
    answer["version"] = "of unrecorded version"
try:
    m = importlib.import_module(name)
    answer["version"] = getattr(m, "__version__", answer["version"])
    answer["details"], answer["gpu"] = eval(details), eval(gpu)
except BaseException as error:
    answer["error"] = "%s: %s" % (type(error).__name__, str(error).strip().split("\\n")[0])
print("\\n" + json.dumps(answer))
"""
"""Prints null if the framework is not installed, else its version, details, and the error of its import."""


def _answer(process: subprocess.Popen[str], deadline: float) -> dict[str, Any] | None:
    """Return the last line that the probe printed: a framework may print something before it. None if the framework is
    not installed."""
    try:
        output, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"version": "", "error": f"the import did not end within {IMPORT_SECONDS:g} s"}
    try:
        answer: dict[str, Any] | None = json.loads(output.strip().splitlines()[-1])
        return answer
    except (ValueError, IndexError):
        return {"version": "", "error": f"the import ended Python with exit status {process.returncode}"}


def _bytes(number: float) -> str:
    return f"{number / (1 << 30):.1f} GiB" if number >= 1 << 30 else f"{number / MIB:.0f} MiB"
