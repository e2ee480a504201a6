"""Records the output of commands in README.md, docs/start.md and docs/guides/sweeps.md, between `<!-- NAME -->` and
`<!-- /NAME -->`.

All frameworks:   PATH=$(tools/frameworks.sh)/bin:$PATH .venv/bin/python tools/transcripts.py
Single sections:  .venv/bin/python tools/transcripts.py failure
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUN = (sys.executable, "-m", "allranks", "run")

BROKEN = """\
import torch.distributed as dist

dist.init_process_group()
learning_rate = -0.1
if learning_rate <= 0:
    raise ValueError(f"the learning rate must be positive, not {learning_rate}")
"""
BROKEN_JOB = """\
apiVersion: allranks.dev/v1alpha1
kind: DistributedTraining
metadata: {name: broken}
spec:
  framework: pytorch
  image: ghcr.io/allranks/pytorch:0.2.0
  command: [torchrun, broken.py]
  roles: {worker: {replicas: 2}}
"""


PAGES = {"first": "README.md", "sweep": "docs/guides/sweeps.md"}
"""The page of each section that is not in docs/start.md."""


def main() -> None:
    """Runs the commands of all sections, or of the given ones, then writes the pages."""
    wanted = sys.argv[1:] or ["first", "demo", "failure", "frameworks", "sweep"]
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        (scratch / "broken.py").write_text(BROKEN)
        (scratch / "job.yaml").write_text(BROKEN_JOB)
        makers = {
            "first": lambda: console("allranks run hello.py --replicas 2", first(scratch)),
            "demo": lambda: console("make demo", demo(scratch)),
            "failure": lambda: killed(scratch) + "\n\n" + broken(scratch),
            "frameworks": lambda: "\n\n".join(each(name, text, scratch) for name, text in FRAMEWORKS.items()),
            "sweep": lambda: console("allranks sweep examples/penguins-sweep.yaml", sweep(scratch)),
        }
        sections = {name: makers[name]() for name in wanted}
    for section, content in sections.items():
        page = ROOT / PAGES.get(section, "docs/start.md")
        page.write_text(replaced(page.read_text(), section, content))


def replaced(text: str, section: str, content: str) -> str:
    begin, end = f"<!-- {section} -->", f"<!-- /{section} -->"
    head, _, tail = text.partition(begin)
    return f"{head}{begin}\n{content}\n{end}" + (tail.partition(end)[2] if end in tail else tail)


def first(scratch: Path) -> list[str]:
    """Runs hello.py of the README."""
    found = re.search(r"^```python\n(# hello\.py\n.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found
    (scratch / "hello.py").write_text(found[1])
    return run(["hello.py", "--replicas", "2"], scratch)


def demo(scratch: Path) -> list[str]:
    return keep(run(["--run-dir", str(scratch / "demo")], ROOT, program=["tools/demo.sh"]))


def killed(scratch: Path) -> str:
    """Kills the training process of rank 1 once four epochs are done."""
    options = ["--set", "args=[--epochs=12, --pause=0.5]", "--run-dir", str(scratch / "killed")]
    lines = run(["examples/penguins-pytorch.yaml", *options], ROOT, kill_at="epoch 5/12")
    shown = [line for line in keep(lines) if not TORCHRUN.search(line) and not FOLDED.search(line)]
    text = (
        "The training process of rank 1 is killed (`kill -9`). All ranks restart from the checkpoint, and the root "
        "cause is shown:"
    )
    return f"{text}\n\n" + console(
        "allranks run examples/penguins-pytorch.yaml --set 'args=[--epochs=12, --pause=0.5]'", shown
    )


def broken(scratch: Path) -> str:
    """A program with a bug: the job fails at the first failure, before it uses up `maxRestarts`."""
    lines = run(["job.yaml", "--run-dir", "runs/broken"], scratch)
    shown = [line for line in lines if re.match(r" *\d+\.\ds ", line)]
    end = next(number for number, line in enumerate(lines) if line.startswith("broken Failed"))
    text = (
        "On one machine, a job that fails before its first step is not restarted; on a cluster it is, unless it fails "
        "the same\nway twice before any progress. Its last lines are shown:"
    )
    return f"{text}\n\n" + console("allranks run job.yaml", [*shown, *lines[end:]])


FRAMEWORKS = {
    "penguins-tensorflow": "**TensorFlow**, `MultiWorkerMirroredStrategy` on two workers:",
    "penguins-tensorflow-ps": "**TensorFlow**, parameter servers:",
    "penguins-horovod": "**Horovod** with PyTorch and gloo, without ssh:",
}


def each(name: str, text: str, scratch: Path) -> str:
    lines = keep(run([f"examples/{name}.yaml", "--run-dir", str(scratch / name)], ROOT))
    wanted = re.compile(r"epoch (1|2|19|20)/20|test accuracy|^ *\d+\.\ds |Succeeded in")
    shown = [line for line in lines if wanted.search(line)]
    return f"{text}\n\n" + console(f"allranks run examples/{name}.yaml", shown)


def sweep(scratch: Path) -> list[str]:
    program = (sys.executable, "-m", "allranks", "sweep")
    return keep(run(["examples/penguins-sweep.yaml", "--run-dir", str(scratch / "sweep")], ROOT, program=program))


FOLDED = re.compile(r"\| \.\.\. \d+ more lines, see ")
"""What `allranks run` leaves out of a complaint of torchrun."""
TORCHRUN = re.compile(
    r"torch/distributed|Traceback|^\S+ +\|   |ChildFailed|\| [=-]{9}|Failures:|NO_OTHER|Root Cause|\| \[\d\]:|FAILED|"
    r"\| \*+$|^\S+ +\| *$|\[rank\d\]:|sys\.exit|SignalException|│|└|epoch 1  "
)


def run(arguments: list[str], directory: Path, kill_at: str = "", program: Sequence[str] = RUN) -> list[str]:
    """The lines that `allranks run` prints; a rank's process is killed when one holds `kill_at`."""
    process = subprocess.Popen(
        [*program, *arguments],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip().replace(f"{directory}/", "").replace(tempfile.gettempdir(), "/tmp"))
        if kill_at and kill_at in line:
            os.kill(rank_process("worker", "1", Path(arguments[-1])), signal.SIGKILL)
            kill_at = ""
    process.wait(timeout=900)
    return lines


def rank_process(role: str, index: str, run_dir: Path) -> int:
    """The pid of the training program of one pod (not of its torchrun)."""
    wanted = {f"ALLRANKS_ROLE={role}".encode(), f"ALLRANKS_INDEX={index}".encode()}
    ours = f"ALLRANKS_CHECKPOINT_DIR={run_dir}/".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            raw = (entry / "environ").read_bytes()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if wanted <= set(raw.split(b"\0")) and ours in raw and b"train/" in command and b"torchrun" not in command:
            return int(entry.name)
    raise SystemExit(f"no training process of {role}-{index}")


def keep(lines: list[str]) -> list[str]:
    return [re.sub(r"/tmp/tmp\w+/", "runs/", line) for line in lines]


def console(command: str, lines: list[str]) -> str:
    return "\n".join(["```console", f"$ {command}", *lines, "```"])


if __name__ == "__main__":
    main()
