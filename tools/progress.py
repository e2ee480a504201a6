"""Makes docs/progress.md: real output about a job that was killed once, hung once and finished, on a real Kubernetes.

As root, with a cluster of its own that is ended afterwards:  .venv/bin/python tools/progress.py
On one that `tools/cluster.sh up --dir DIR` started, with the images of tests/e2e, in which allranks may be installed
anew:                                                         .venv/bin/python tools/progress.py --cluster DIR
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tour import ROOT, Tour, new_team, touring, write

from e2e.jobs import KILL_RANK, of_tests

PAGE, FIGURES = ROOT / "docs" / "progress.md", ROOT / "docs" / "progress"
TEAM = "tour"
JOB = "penguins-pytorch-watched"
EXAMPLE = f"examples/{JOB}.yaml"
ARGS = "--epochs=30, --work=0.05, --slow-rank=1, --hang-rank=1, --hang-attempt=1, --hang-at-step=150"

HEAD = """\
# What a job is doing with its GPUs

How far it is, whether it is stuck, who is slow, and how much of its time was wasted: here of a job that was killed
once, hung once and finished. Everything below was printed by the commands that are shown, on a Kubernetes that
`tools/cluster.sh` made of a machine with {cores} cores; where you see `...`, lines are cut or left out.
`.venv/bin/python tools/progress.py`, as root, makes this page anew.

[reporting.md](reporting.md) tells how programs report, [semantics.md](semantics.md#progress-and-time) has the rules,
[reports-protocol.md](reports-protocol.md) what goes over the wire and what nobody can do with it.
"""


def main() -> None:
    """Trains, disturbs, and writes the page."""
    with touring(__doc__, TEAM) as tour:
        (tour.folder / EXAMPLE).write_text(of_tests((ROOT / EXAMPLE).read_text()))
        trained(tour)
    write({PAGE: tour.page(HEAD)})


def trained(tour: Tour) -> None:
    """One job, from its beginning to its account."""
    team = tour.team
    for command in new_team(TEAM):
        tour.run(command)
    tour.tell(
        "## A job that reports",
        f"`{EXAMPLE}`, whose rank 1 is made three times as slow in its own work, and, in the attempt after the first "
        "one, sleeps for ever in step 150. `hang` and `progress` are in the manifest; the program calls `report()`.",
    )
    tour.show(f"allranks submit {EXAMPLE} --set 'args=[{ARGS}]' --set hang.timeoutSeconds=15")
    team.reports(JOB, '"stragglers":[{"node":', seconds=180)
    team.says(f"{JOB}-worker-0-0", "epoch 6/30")
    tour.show("kubectl get dt")
    tour.tell(
        "All ranks of synchronous training take the same time for a step: the slowest one's. `BUSY` is a rank's own "
        "work, without waiting for the others; by that the slow one is found. `allranks top` alone lists all jobs."
    )
    tour.show(f"allranks top {JOB} --once")

    tour.tell("## It is killed", "Rank 0's process gets SIGKILL. What was done since the last checkpoint is lost:")
    team.run(f"{JOB}-worker-0-0", "python3", "-c", KILL_RANK)
    team.attempt(JOB, 1)
    team.says(f"{JOB}-worker-0-1", "epoch 9/30")
    tour.show(f"kubectl get dt {JOB} -o jsonpath='{{.status.times}}'")

    tour.tell(
        "## It hangs",
        "Rank 1 sleeps, rank 0 waits for it in a collective, and both processes are alive. After 15 s without a step "
        "each rank is asked for its stacks, which land in its log:",
    )
    log = team.says(f"{JOB}-worker-1-1", "stacks, asked for because", seconds=240)
    log = team.says(f"{JOB}-worker-1-1", "penguins_pytorch.py", seconds=20)
    tour.consoles((f"kubectl logs {JOB}-worker-1-1", log), only=r"stacks, asked|^Thread|train/")
    tour.tell("Ten seconds later all ranks restart, and the one that held up the others is named:")
    team.attempt(JOB, 2)
    tour.show(f"allranks describe {JOB}", only=r"^(Phase|Attempt|Restarts|Last|Progress|Time|Goodput)|Hang|^  pod ")

    team.completes(JOB)
    tour.tell("## The account")
    tour.show("kubectl get dt -o wide", f"allranks report {JOB}")
    tour.tell(f"As a page, `allranks report {JOB} --output report.html`, which needs nothing else to be looked at:")
    FIGURES.mkdir(exist_ok=True)
    tour.run(f"allranks report {JOB} --output report.html")
    shutil.copyfile(tour.folder / "report.html", FIGURES / "report.html")
    pictured(FIGURES / "report.html", FIGURES / "report.png")
    tour.text.append("![The page: verdict, timeline of attempts, loss, throughput, lost time](progress/report.png)\n")
    tour.text.append("The file itself: [progress/report.html](progress/report.html).\n")


def pictured(page: Path, picture: Path) -> None:
    """As a browser shows it."""
    browser = next((found for name in ("chromium", "google-chrome", "chrome") if (found := shutil.which(name))), None)
    if browser is None:
        raise SystemExit("no chromium to look at the page with (Debian: apt-get install chromium fonts-dejavu-core)")
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        shot = [f"--screenshot={picture}", "--window-size=1000,1900", page.as_uri()]
        subprocess.run([browser, *options, *shot], check=True, timeout=120, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
