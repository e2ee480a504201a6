"""The pages of `allranks ui` with jobs that train on real nodes; SCREENSHOTS=docs/guides/images takes the pictures of
docs/guides/ui.md.

No other test runs at the same time (tools/e2e.sh): the jobs use the GPUs of all nodes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from browser.helpers import WAIT_MS, expect, see
from support.chromium import DESK, chromium, findings, opened_pages, take_picture
from support.ui_server import UiServer

from .cluster import KEPT_FREE, Cluster
from .command_line import output
from .jobs import KILL_RANK, Manifest, Team, namespace, training
from .nodes import until

pytestmark = pytest.mark.nightly
TEAM, POOL, GPU = "team", "h200", "nvidia.com/gpu"
A_POOL = {
    "apiVersion": "allranks.dev/v1alpha1",
    "kind": "TrainingPool",
    "metadata": {"name": POOL},
    "spec": {
        "gpu": {"count": 1},
        "price": {"gpuHour": "2.40", "currency": "EUR"},
        "tolerations": [{"key": KEPT_FREE, "operator": "Exists"}],
    },
}
PROGRAM = '''\
"""A linear model, and a row of the data of rank 2 that it cannot use."""

import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from allranks.report import report

STEPS, ROWS = 400, 16


@record
def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    x = torch.randn(STEPS * ROWS, 8, generator=torch.Generator().manual_seed(rank))
    y = x.sum(1, keepdim=True)
    if rank == 2:
        x[2403, 5] = float("nan")
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        rows = range(step * ROWS, (step + 1) * ROWS)
        loss = train_step(model, optimizer, x[rows], y[rows], rows)
        print(f"rank {rank} step {step + 1} loss {loss:.4f}", flush=True)
        report(step=step + 1, total_steps=STEPS, loss=loss)
        time.sleep(0.05)


def train_step(model, optimizer, x, y, rows):
    if len(bad := x.isnan().any(1).nonzero()):
        raise ValueError(f"row {rows[int(bad[0])]} of the data of rank {dist.get_rank()} is not a number")
    optimizer.zero_grad()
    loss = mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


main()
'''


@pytest.fixture
def team(cluster: Cluster) -> Iterator[Team]:
    """A namespace whose name may be in a picture, and a pool with a price."""
    cluster.apply(A_POOL)
    try:
        with namespace(cluster, TEAM) as team:
            yield team
    finally:
        cluster.kubectl("delete", "trainingpool", POOL)


@pytest.fixture
def open_page(team: Team, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    with (
        chromium() as browser,
        UiServer(team.cluster.kubeconfig, tmp_path / "runs", namespace=TEAM) as server,
        opened_pages(browser, server.site) as opened,
    ):
        yield lambda path, scheme="light": opened(path, viewport=DESK, color_scheme=scheme)


def test_the_pages_show_the_jobs_of_real_nodes(team: Team, open_page: Callable[..., Any], tmp_path: Path) -> None:
    succeeded(team)
    failed(team, tmp_path)
    waiting(team)
    restarted(team)

    page = show(open_page, "jobs", "/", "1 Running, 1 Pending, 1 Failed, 1 Succeeded")
    expect(page.locator("tr:has-text('penguins-small')")).to_contain_text("100%")
    show(open_page, "failed-job", f"/jobs/{TEAM}/regression", "First failure: worker-2 (rank 2) in attempt 0")
    see(page := open_page(f"/jobs/{TEAM}/regression"), "ValueError: row 2403 of the data of rank 2 is not a number")
    page.click("text=Log of this rank")
    see(page, "rank 2 step 150 loss", "#log")
    show(open_page, "job", f"/jobs/{TEAM}/penguins", "signal 9 (SIGKILL)", scheme="dark")
    show(open_page, "logs", f"/jobs/{TEAM}/penguins/logs", "resumed from epoch")
    show(open_page, "suspend", f"/jobs/{TEAM}/penguins/actions/suspend", "The operator deletes its 3 pods")
    show(open_page, "new", f"/new?namespace={TEAM}&from=penguins", "penguins-2")
    job = (f"job=jobs/{TEAM}/{name}" for name in ("penguins", "penguins-small", "regression"))
    show(open_page, "compare", f"/compare?{'&'.join(job)}", "penguins-small")
    show(open_page, "history", "/history?by=week", "EUR")

    page = open_page("/nodes")
    for node, used in gpus_in_use(team).items():
        expect(page.locator(f"tr:has(th:text-is('{node}'))")).to_contain_text(f"{used} of 4", timeout=WAIT_MS)
    lost_on = team.status("regression")["lastFailure"]["node"]
    expect(page.locator(f"tr:has(th:text-is('{lost_on}'))")).to_contain_text("Error")
    finish(page, "nodes")

    page = open_page(f"/jobs/{TEAM}/penguins/stacks")
    page.click("text=Ask the ranks for their stacks")
    expect(page.locator("section.stacks")).to_have_count(3, timeout=WAIT_MS)
    see(page, "penguins_pytorch.py")
    finish(page, "stacks")


def show(open_page: Callable[..., Any], view: str, path: str, text: str, scheme: str = "light") -> Any:
    """Opens a page, waits for the text, and takes the picture; returns the page."""
    page = open_page(path, scheme)
    see(page, text)
    finish(page, view)
    return page


def finish(page: Any, view: str) -> None:
    page.wait_for_load_state("load")
    assert findings(page) == []
    take_picture(page, view)


def penguins(name: str, workers: int, *options: str, **spec: Any) -> list[Manifest]:
    command = ("torchrun", "train/penguins_pytorch.py", *options)
    return training(name, *command, claim=name, pool=POOL, roles={"worker": {"replicas": workers}}, **spec)


def succeeded(team: Team) -> None:
    team.completes(team.start(penguins("penguins-small", 2, "--epochs=25", "--work=0.05", "--lr=0.003")))


def failed(team: Team, folder: Path) -> None:
    """One rank of three reads a row that is not a number."""
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text(PROGRAM)
    fields = {"pool": POOL, "roles": {"worker": {"replicas": 3}}, "restart": {"maxRestarts": 0}}
    (folder / "job.yaml").write_text(yaml.safe_dump_all(training("regression", "torchrun", "train.py", **fields)))
    output(team, "submit", str(folder / "job.yaml"), "--code", str(code))
    team.wait("dt/regression", "--for=jsonpath={.status.completionTime}")
    status = team.status("regression")
    assert status["phase"] == "Failed", json.dumps(status, indent=1)
    assert status["lastFailure"]["rank"] == 2, json.dumps(status, indent=1)


def waiting(team: Team) -> None:
    """No node has so many GPUs."""
    team.start(training("vision", "true", pool=POOL, resources={"limits": {GPU: 8}}))
    team.reports("vision", f"Insufficient {GPU}")


def restarted(team: Team) -> None:
    """A rank was killed, and another one is slow."""
    job = team.start(penguins("penguins", 3, "--epochs=300", "--work=0.1", "--slow-rank=2", "--slow-factor=2"))
    team.says(f"{job}-worker-0-0", "epoch 6/300")
    team.run(f"{job}-worker-1-0", "python3", "-c", KILL_RANK)
    team.attempt(job, 1)
    team.says(f"{job}-worker-0-1", "resumed from epoch")
    team.reports(job, '"stragglers":[{"node":')
    until(lambda: team.status(job)["progress"].get("reporting") == 3, "reports of all ranks")


def gpus_in_use(team: Team) -> Counter[str]:
    """GPUs of the pods that run, by node."""
    pods = json.loads(team.kubectl("get", "pods", "--field-selector=status.phase=Running", "-o", "json"))["items"]
    return Counter(pod["spec"]["nodeName"] for pod in pods for _ in range(int(limit(pod))))


def limit(pod: Manifest) -> str:
    [trainer] = [each for each in pod["spec"]["containers"] if each["name"] == "trainer"]
    return str(trainer["resources"]["limits"][GPU])
