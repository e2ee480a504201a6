"""Each program with real frameworks: terminated, killed and resumed on both ranks, up to the accuracy in its README."""

from __future__ import annotations

import json
import re
import signal

import pytest

from .launch import (
    ROOT,
    Horovod,
    Launcher,
    PlainPyTorch,
    Rank,
    TensorFlow,
    TensorFlowWithChief,
    TorchRun,
    World,
    free_ports,
    send,
    tf_config,
)

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

PROGRAMS = [
    pytest.param("penguins_pytorch.py", PlainPyTorch, id="penguins_pytorch"),
    pytest.param("penguins_tensorflow.py", TensorFlowWithChief, id="penguins_tensorflow"),
    pytest.param("penguins_horovod.py", Horovod, id="penguins_horovod"),
    pytest.param("penguins_horovod_keras.py", Horovod, id="penguins_horovod_keras"),
]


@pytest.mark.parametrize(("program", "kind"), PROGRAMS)
def test_a_training_resumes_after_sigterm_and_after_kill(launcher: Launcher, program: str, kind: type[World]) -> None:
    world = kind(launcher, program)

    ranks = world.start("--pause", "2")
    ranks[0].wait_for("epoch 2/20")
    for rank in ranks:
        rank.process.terminate()
    assert [rank.exit_code() for rank in ranks] == [143, 143]
    assert "rank 0 of 2: SIGTERM: stopped after epoch 2" in ranks[0].text
    assert "rank 1 of 2: SIGTERM: stopped after epoch 2" in ranks[1].text
    losses = losses_by_epoch(ranks[0])

    ranks = world.start("--pause", "2")
    ranks[0].wait_for("epoch 4/20")
    assert f"resumed from epoch 2 of {world.checkpoints()} (loss {losses[2]})" in ranks[0].text
    assert "rank 1 of 2: resumed from epoch 2" in ranks[1].text  # its own directory is empty
    ranks[1].process.kill()
    assert ranks[0].exit_code() not in (0, 143)
    losses |= losses_by_epoch(ranks[0])

    ranks = world.start()
    assert [rank.exit_code() for rank in ranks] == [0, 0]
    assert f"resumed from epoch 4 of {world.checkpoints()} (loss {losses[4]})" in ranks[0].text
    assert_trained(ranks)
    assert_records(world, 20, losses | losses_by_epoch(ranks[0]))
    assert sorted(world.checkpoints().glob("epoch-*"))[-1].stem == "epoch-00020.claim-00003"
    assert not list(world.checkpoints(1).glob("*"))  # only rank 0 writes


def losses_by_epoch(rank: Rank) -> dict[int, str]:
    """The losses that a rank has printed."""
    return {
        int(epoch): loss
        for epoch, loss in re.findall(r"(?m)^epoch (\d+)/\d+ loss ([\d.]+), validation loss", rank.text)
    }


def assert_trained(ranks: list[Rank], size: int = 2) -> None:
    """All ranks have the same good accuracy in their last line."""
    accuracies = {rank.wait_for(rf"rank {index} of {size}: test accuracy (\S+)")[1] for index, rank in enumerate(ranks)}
    assert len(accuracies) == 1, accuracies
    assert float(accuracies.pop()) >= 0.97


def assert_records(world: World, epochs: int, losses: dict[int, str]) -> None:
    """Each epoch is in metrics.jsonl once, with the printed loss, and the picture is a PNG."""
    lines = [json.loads(line) for line in (world.checkpoints() / "metrics.jsonl").read_text().splitlines()]
    printed = {epoch: pytest.approx(float(loss), abs=0.000051) for epoch, loss in losses.items()}  # in four decimals
    assert {line["epoch"]: line["loss"] for line in lines} == printed
    assert [line["epoch"] for line in lines] == list(range(1, epochs + 1))
    assert {line["world_size"] for line in lines} == {2}
    assert (world.checkpoints() / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_torchrun_agents_of_two_nodes_resume_from_the_last_whole_checkpoint(launcher: Launcher) -> None:
    world = TorchRun(launcher, "penguins_pytorch.py")

    agents = world.start("--pause", "2", "--seed", "7")
    agents[0].wait_for("epoch 3/20")
    workers = launcher.alive(RANK="1")
    for worker in workers:
        send(worker, signal.SIGKILL)
    assert workers
    assert all(agent.exit_code() == 1 for agent in agents)  # torchrun turns every exit code into 1
    newest = world.checkpoints() / "epoch-00003.claim-00001.pt"
    newest.write_bytes(newest.read_bytes()[:-100])

    agents = world.start("--seed", "7")
    assert [agent.exit_code() for agent in agents] == [0, 0]
    damaged, resumed = rf"checkpoint {newest} is damaged .*: trying the one before it", r"resumed from epoch 2 of \S+"
    assert re.search(f"{damaged}\n{resumed}", agents[0].text), agents[0].text
    assert_trained(agents)
    interrupted = (world.checkpoints() / "metrics.jsonl").read_text()

    # Another directory and one torchrun for both ranks: the interruptions changed no loss.
    straight = launcher.folder / "straight"
    command = ["torchrun", "--standalone", "--nproc-per-node", "2", ROOT / "train/penguins_pytorch.py", "--seed", "7"]
    run = launcher.start(command, {"ALLRANKS_CHECKPOINT_DIR": str(straight), "ALLRANKS_ATTEMPT": "3"})
    assert run.exit_code() == 0
    assert_trained([run, run])
    lines = [json.loads(line) for line in (straight / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == [json.loads(line)["loss"] for line in interrupted.splitlines()]
    assert {line["attempt"] for line in lines} == {3}


@pytest.mark.parametrize("program", ["penguins_horovod.py", "penguins_horovod_keras.py", "digits_tensorflow.py"])
def test_an_interruption_changes_no_loss(launcher: Launcher, program: str) -> None:
    """As the test above for torchrun: restoring the weights is not enough, the optimizer's state is needed too."""

    def start(folder: str, *options: str) -> Rank:
        command = ["python", ROOT / "train" / program, "--epochs", "5", "--checkpoint-dir", launcher.folder / folder]
        return launcher.start([*command, *options])

    straight, interrupted = start("straight"), start("interrupted", "--pause", "2")
    interrupted.wait_for("epoch 2/5")
    interrupted.process.terminate()
    assert interrupted.exit_code() == 143
    resumed = start("interrupted")
    assert (straight.exit_code(), resumed.exit_code()) == (0, 0)
    assert losses_by_epoch(interrupted) | losses_by_epoch(resumed) == losses_by_epoch(straight)
    assert set(losses_by_epoch(resumed)) == {3, 4, 5}


@pytest.mark.parametrize("program", ["penguins_pytorch.py", "penguins_tensorflow.py", "penguins_horovod_keras.py"])
def test_a_stale_attempt_ends_and_does_not_disturb_the_next_one(launcher: Launcher, program: str) -> None:
    """As when a node is unreachable but not dead: both attempts write to the same volume."""
    directory = launcher.folder / "checkpoints"

    def start(attempt: str, *options: str) -> Rank:
        command = ["python", ROOT / "train" / program, "--checkpoint-dir", directory, *options]
        return launcher.start(command, {"ALLRANKS_ATTEMPT": attempt})

    left_behind = start("0", "--pause", "5")
    left_behind.wait_for("epoch 2/20")
    successor = start("1")
    assert left_behind.exit_code() == 75, left_behind.text
    assert left_behind.text.splitlines()[-1] == (
        f"rank 0 of 1: attempt 0 was replaced by attempt 1 ({directory}/.claim-00002): "
        "stopping, nothing more is written"
    )
    assert "Traceback" not in left_behind.text
    assert successor.exit_code() == 0, successor.text
    assert_trained([successor], size=1)

    resumed = int(successor.wait_for(rf"resumed from epoch (\d+) of {directory} \(loss")[1])
    assert 2 <= resumed < 20
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 21))
    assert [line["attempt"] for line in lines] == [0] * resumed + [1] * (20 - resumed)
    losses = losses_by_epoch(left_behind) | losses_by_epoch(successor)
    printed = {epoch: pytest.approx(float(loss), abs=0.000051) for epoch, loss in losses.items()}  # in four decimals
    assert {line["epoch"]: line["loss"] for line in lines} == printed
    assert lines[resumed]["loss"] < lines[0]["loss"]
    assert sorted(path.name.rpartition(".")[0] for path in directory.glob("epoch-*")) == [
        "epoch-00019.claim-00002",
        "epoch-00020.claim-00002",
    ]


def test_horovodrun_trains_two_ranks(launcher: Launcher) -> None:
    program = ROOT / "train/penguins_horovod.py"
    run = launcher.start(["horovodrun", "-np", "2", "--gloo", "python", program])
    assert run.exit_code() == 0, run.text
    assert_trained([run, run])
    assert "no --checkpoint-dir: no checkpoints" in run.text


def test_one_process_without_rank_variables_trains_alone(launcher: Launcher) -> None:
    runs = [
        launcher.start(["python", ROOT / "train" / program, "--output-dir", launcher.folder / program])
        for program in ("penguins_pytorch.py", "penguins_tensorflow.py")
    ]
    for run, program in zip(runs, ("penguins_pytorch.py", "penguins_tensorflow.py"), strict=True):
        assert run.exit_code() == 0, run.text
        assert_trained([run], size=1)
        written = sorted(path.name for path in (launcher.folder / program).iterdir())
        assert written == [".claim-00001", "loss.png", "metrics.jsonl"]


def test_sigterm_to_one_rank_ends_all_ranks(launcher: Launcher) -> None:
    ranks = PlainPyTorch(launcher, "penguins_pytorch.py").start("--pause", "1")
    ranks[0].wait_for("epoch 1/20")
    ranks[1].process.terminate()
    assert [rank.exit_code() for rank in ranks] == [143, 143]
    assert "rank 0 of 2: SIGTERM: stopped after epoch" in ranks[0].text


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        pytest.param("penguins_pytorch.py", PlainPyTorch, id="pytorch"),
        pytest.param("penguins_tensorflow.py", TensorFlow, id="tensorflow"),
    ],
)
def test_sigterm_saves_and_ends_a_rank_whose_peer_is_stuck(launcher: Launcher, program: str, kind: type[World]) -> None:
    world = kind(launcher, program)
    ranks = world.start("--pause", "1", "--checkpoint-every", "100")
    ranks[0].wait_for("epoch 2/20")
    assert not list(world.checkpoints().glob("epoch-*"))
    ranks[1].process.send_signal(signal.SIGSTOP)
    ranks[0].process.terminate()
    assert ranks[0].exit_code() == 143
    saved = re.search(r"the other ranks did not stop with this one, saved epoch (\d+)", ranks[0].text)
    assert saved, ranks[0].text
    assert [path.stem for path in world.checkpoints().glob("epoch-*")] == [f"epoch-{int(saved[1]):05d}.claim-00001"]


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        pytest.param("digits_pytorch.py", TorchRun, id="digits_pytorch"),
        pytest.param("digits_tensorflow.py", TensorFlow, id="digits_tensorflow"),
    ],
)
def test_digits_stop_early_on_all_ranks_together(launcher: Launcher, program: str, kind: type[World]) -> None:
    world = kind(launcher, program)
    ranks = world.start("--pause", "2")
    ranks[0].wait_for("epoch 3/20")
    for rank in ranks:
        rank.process.terminate()
    # torchrun turns every exit code into 1
    assert {rank.exit_code() for rank in ranks} == {1 if kind is TorchRun else 143}
    assert "rank 1 of 2: SIGTERM: stopped after epoch 3" in ranks[1].text
    losses = losses_by_epoch(ranks[0])

    ranks = world.start()
    assert [rank.exit_code() for rank in ranks] == [0, 0], ranks[0].text
    assert f"resumed from epoch 3 of {world.checkpoints()} (loss {losses[3]})" in ranks[0].text
    assert_trained(ranks)
    losses |= losses_by_epoch(ranks[0])
    assert_records(world, max(losses), losses)
    best = re.search(r"best epoch (\d+) \(validation loss", ranks[0].text)
    assert best
    assert max(losses) == min(20, int(best[1]) + 5)


def test_parameter_servers_outlive_a_worker_and_the_chief(launcher: Launcher) -> None:
    ports = free_ports(4)
    chief, server, *workers = (f"127.0.0.1:{port}" for port in ports)
    cluster = {"chief": [chief], "ps": [server], "worker": workers}
    checkpoints = launcher.folder / "checkpoints"
    program = ["python", ROOT / "train/penguins_tensorflow_ps.py", "--checkpoint-dir", checkpoints]

    def start(kind: str, index: int, *options: str) -> Rank:
        return launcher.start([*program, *options], tf_config(cluster, kind, index))

    chief_rank = start("chief", 0, "--pause", "1")
    ps, worker, lost = start("ps", 0), start("worker", 0), start("worker", 1)
    chief_rank.wait_for("epoch 1/20")
    lost.process.kill()
    chief_rank.wait_for("epoch 3/20")
    chief_rank.process.terminate()
    assert chief_rank.exit_code() == 143
    last = re.search(r"chief: SIGTERM: stopped after epoch (\d+)", chief_rank.text)
    assert last, chief_rank.text

    # A new chief uses the same servers, with a new worker instead of the lost one.
    lost = start("worker", 1)
    chief_rank = start("chief", 0)
    assert chief_rank.exit_code() == 0, chief_rank.text
    assert f"resumed from epoch {last[1]} of {checkpoints}" in chief_rank.text
    assert float(chief_rank.wait_for(r"chief: test accuracy (\S+)")[1]) >= 0.97
    for rank in (ps, worker, lost):
        assert rank.process.poll() is None  # they never end by themselves
        rank.process.terminate()
        assert rank.exit_code() == 143
