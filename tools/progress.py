"""Generates docs/guides/progress.md: real output about a job that is killed once and hangs once, on a real Kubernetes.

As root, with a new cluster that is stopped afterwards:   .venv/bin/python tools/progress.py
With a cluster that `tools/cluster.sh up --dir DIR` started and that has the images of tests/e2e (allranks is installed
again):                                                   .venv/bin/python tools/progress.py --cluster DIR
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tour import ROOT, Tour, new_team, touring, write

from e2e.jobs import KILL_RANK, of_tests

PAGE, FIGURES = ROOT / "docs" / "guides" / "progress.md", ROOT / "docs" / "guides" / "progress"
TEAM = "tour"
JOB = "penguins-pytorch-watched"
EXAMPLE = f"examples/{JOB}.yaml"
ARGS = "--epochs=30, --work=0.05, --slow-rank=1, --hang-rank=1, --hang-attempt=1, --hang-at-step=150"

HEAD = """\
# Progress, hangs and goodput

This page shows the progress, the detection of hangs and stragglers, and the use of time of a job that is killed once,
hangs once and succeeds. The output is recorded from the commands shown, on a Kubernetes cluster that `tools/cluster.sh`
started on a machine with {cores} cores; `...` stands for omitted output.
`.venv/bin/python tools/progress.py`, run as root, records this page again.

[reporting.md](reporting.md) explains how programs report, and which ones do so [without a changed
line](reporting.md#programs-without-a-changed-line); [semantics.md](../reference/semantics.md#progress-and-time)
lists the rules, and [reports-protocol.md](../reference/reports-protocol.md) specifies the protocol and its limits.
"""


def main() -> None:
    """Runs the job with its faults, and writes the page."""
    with touring(__doc__, TEAM) as tour:
        (tour.folder / EXAMPLE).write_text(of_tests((ROOT / EXAMPLE).read_text()))
        trained(tour)
    write({PAGE: tour.page(HEAD)})


def trained(tour: Tour) -> None:
    """One job, from its start to its report."""
    team = tour.team
    for command in new_team(TEAM):
        tour.run(command)
    tour.tell(
        "## A job that reports",
        f"The job is `{EXAMPLE}`. Its rank 1 takes three times as long for its own work, and sleeps in step 150 of the "
        "second attempt. `hang` and `progress` are in the manifest; the program calls `report()`.",
    )
    changes = f"--set roles.worker.replicas=3 --set 'args=[{ARGS}]' --set hang.timeoutSeconds=15"
    tour.show(f"allranks submit {EXAMPLE} {changes}")
    team.reports(JOB, '"stragglers":[{"node":')
    team.says(f"{JOB}-worker-0-0", "epoch 6/30")
    tour.show("kubectl get dt")
    tour.tell(
        "All ranks of synchronous training have the step time of the slowest rank. `BUSY` is a rank's own "
        "work, without waiting for the others; it shows which rank is slow. `allranks top` without a name lists all "
        "jobs."
    )
    tour.show(f"allranks top {JOB} --once")

    tour.tell("## A rank is killed", "Rank 0's process receives SIGKILL. The work since the last checkpoint is lost:")
    team.run(f"{JOB}-worker-0-0", "python3", "-c", KILL_RANK)
    team.attempt(JOB, 1)
    team.says(f"{JOB}-worker-0-1", "epoch 9/30")
    tour.show(f"kubectl get dt {JOB} -o jsonpath='{{.status.times}}'")

    tour.tell(
        "## A rank hangs",
        "Rank 1 sleeps, the others wait for it in a collective, and all processes are alive. After 15 s without a step "
        "each rank prints its stacks to its log:",
    )
    log = team.says(f"{JOB}-worker-1-1", "stacks, asked for because")
    log = team.says(f"{JOB}-worker-1-1", "penguins_pytorch.py")
    tour.consoles((f"kubectl logs {JOB}-worker-1-1", log), only=r"stacks, asked|^Thread|train/")
    tour.tell("Ten seconds later all ranks restart, and the status names the rank that blocked the others:")
    team.attempt(JOB, 2)
    tour.show(f"allranks describe {JOB}", only=r"^(Phase|Attempt|Restarts|Last|Progress|Time|Goodput)|Hang|^  pod ")

    team.completes(JOB)
    tour.tell("## The report")
    tour.show("kubectl get dt -o wide", f"allranks report {JOB}")
    tour.tell(f"`allranks report {JOB} -o report.html` writes it as a self-contained page:")
    FIGURES.mkdir(exist_ok=True)
    tour.run(f"allranks report {JOB} -o report.html")
    shutil.copyfile(tour.folder / "report.html", FIGURES / "report.html")
    pictured(FIGURES / "report.html", FIGURES / "report.png")
    tour.text.append("![The page: result, timeline of attempts, loss, throughput, lost time](progress/report.png)\n")
    tour.text.append("The file itself: [progress/report.html](progress/report.html).\n")


def pictured(page: Path, picture: Path) -> None:
    """A screenshot of the page."""
    browser = next((found for name in ("chromium", "google-chrome", "chrome") if (found := shutil.which(name))), None)
    if browser is None:
        raise SystemExit("the screenshot needs chromium (Debian: apt-get install chromium fonts-dejavu-core)")
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        shot = [f"--screenshot={picture}", "--window-size=1000,1900", page.as_uri()]
        subprocess.run([browser, *options, *shot], check=True, timeout=120, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
