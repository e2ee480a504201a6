"""The reports of each rank of the programs, with real frameworks, to a fake report server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fake_report_server import SOURCE, FakeReportServer, hub_in, ok

from .launch import ROOT, Launcher, Rank, free_ports, tf_config

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1000)]

SOON = 300.0


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeReportServer]:
    (tmp_path / "hub").mkdir()
    with hub_in(tmp_path / "hub") as hub:
        hub.answers = [ok(interval=0.5)]
        yield hub


@pytest.fixture
def start(launcher: Launcher, hub: FakeReportServer) -> Callable[..., list[Rank]]:
    """Starts two ranks of a program with the address of the report server."""

    def both(program: str, *options: str) -> list[Rank]:
        ours = {**hub.environment, "PYTHONPATH": str(SOURCE)}
        path = ROOT / "train" / program
        if "horovod" in program:
            return [launcher.start(["horovodrun", "-np", "2", "--gloo", "python", path, *options], ours)]
        if "pytorch" in program:
            command = ["torchrun", "--standalone", "--nproc-per-node", "2", path, *options]
            return [launcher.start(command, ours)]
        ports = free_ports(2)
        if "jax" in program:
            group = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{ports[0]}", "JAX_NUM_PROCESSES": "2"}
            own = [{"JAX_PROCESS_ID": str(rank), "RANK": str(rank)} for rank in range(2)]
            return [launcher.start(["python", path, *options], {**ours, **group, **each}) for each in own]
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        return [
            launcher.start(
                ["python", path, *options], {**ours, **tf_config(cluster, "worker", rank), "RANK": str(rank)}
            )
            for rank in range(2)
        ]

    return both


def of(hub: FakeReportServer, rank: int) -> list[dict[str, Any]]:
    return [message for message in hub.messages if message["rank"] == rank]


@pytest.mark.parametrize(
    "program",
    ["penguins_pytorch.py", "penguins_tensorflow.py", "penguins_horovod.py", "digits_pytorch.py", "digits_jax.py"],
)
def test_busy_time_identifies_the_slow_rank_and_step_time_does_not(hub, start, program):
    steps, busy = undisturbed(hub, lambda: start(program, "--epochs", "4", "--work", "0.05", "--slow-rank", "1"))
    assert min(steps) > 0.14, (steps, busy)
    assert max(steps) < 1.3 * min(steps), (steps, busy)
    assert busy[1] > 0.14, (steps, busy)
    assert 0.048 < busy[0] < 0.65 * busy[1], (steps, busy)


def undisturbed(hub: FakeReportServer, train: Callable[[], list[Rank]]) -> tuple[list[float], list[float]]:
    """Step seconds and busy seconds of each rank. Other load on the machine makes the last steps of a rank longer,
    never shorter: of three trainings, uses the one whose ranks agree best."""
    measured = []
    for _ in range(3):
        hub.messages.clear()
        ranks = train()
        assert [rank.exit_code() for rank in ranks] == [0] * len(ranks)
        assert [of(hub, rank)[-1]["done"] for rank in range(2)] == [True, True]
        last = [[m for m in of(hub, rank) if m["busySeconds"]][-1] for rank in range(2)]
        steps, busy = ([message[name] for message in last] for name in ("stepSeconds", "busySeconds"))
        measured.append((max(steps) + busy[0], steps, busy))
        if max(steps) < 1.2 * min(steps) and busy[0] < 0.5 * busy[1]:
            break
    return min(measured)[1:]


def test_the_numbers_of_a_whole_training(hub, start, launcher):
    checkpoints = launcher.folder / "checkpoints"
    [run] = start(
        "penguins_pytorch.py", "--epochs", "6", "--checkpoint-dir", str(checkpoints), "--checkpoint-every", "2"
    )
    assert run.exit_code() == 0
    last = [of(hub, rank)[-1] for rank in range(2)]
    steps = last[0]["step"]
    assert [(each["step"], each["totalSteps"], each["epoch"], each["done"]) for each in last] == [
        (steps, steps, 6, True)
    ] * 2
    assert [each["checkpoint"] and each["checkpoint"]["step"] for each in last] == [steps, None]
    assert set(last[0]["metrics"]) == {"loss", "validation_loss", "accuracy"}
    assert 0 < last[1]["metrics"]["loss"] < 3
    assert [each["localRank"] for each in last] == [0, 1]


def test_a_checkpoint_of_sigterm_is_reported(hub, start, launcher):
    ranks = start("penguins_tensorflow.py", "--work", "0.05", "--checkpoint-dir", str(launcher.folder / "saved"))
    hub.wait(lambda messages: any(m["rank"] == 0 and (m["step"] or 0) > 12 for m in messages), SOON)
    for rank in ranks:
        rank.process.terminate()
    assert [rank.exit_code(30) for rank in ranks] == [143, 143]
    last = of(hub, 0)[-1]
    assert (last["checkpoint"]["step"], last["done"]) == (last["step"], True)
    assert re.search(rf"stopped after epoch \d+, step {last['step']}, saved in", ranks[0].text)


@pytest.mark.parametrize(
    ("program", "waits_in"),
    [
        ("penguins_pytorch.py", "train_step"),
        ("penguins_tensorflow.py", "quick_execute"),
        ("digits_jax.py", "__call__"),
    ],
)
def test_the_hung_rank_is_the_one_that_does_not_wait_and_its_stack_shows_where(hub, start, program, waits_in):
    ranks = start(program, "--hang-rank", "1", "--hang-at-step", "7")
    hub.wait(lambda messages: all([m for m in of(hub, rank) if (m["idle"] or 0) > 1] for rank in range(2)), SOON)
    assert [of(hub, rank)[-1]["step"] for rank in range(2)] == [6, 6]
    assert [of(hub, rank)[-1]["waiting"] for rank in range(2)] == [True, False]
    hub.answers = [ok(0.5, "hang-1")]
    for rank, where in ((0, waits_in), (1, "begin_step")):
        # ranks of a torchrun share its output and may write at the same time
        started = ranks[rank % len(ranks)]
        started.wait_for(rf"allranks: rank {rank} \(pod .*\): stacks, asked for because the job makes no progress")
        started.wait_for(rf"in {where}")
