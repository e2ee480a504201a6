"""`allranks.run` with real ranks of PyTorch and Horovod, in the environment of the caller."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "operator"


@pytest.fixture(scope="module")
def python(frameworks, tmp_path_factory) -> Path:
    """The Python of an environment that has the frameworks and allranks, as a user installs them."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=300)
    [packages] = folder.glob("lib/python3*/site-packages")
    [of_frameworks] = frameworks.glob("lib/python3*/site-packages")
    (packages / "all.pth").write_text(f"{of_frameworks}\n{SOURCE}\n{sysconfig.get_path('purelib')}\n")
    return folder / "bin" / "python"


def result_of(program: str, python: Path, folder: Path) -> Any:
    """What the program prints last, as JSON."""
    (folder / "program.py").write_text(program)
    done = subprocess.run([python, "program.py"], cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout.splitlines()[-1])


PYTORCH = """
import json, allranks

def train(rate):
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.tensor([rate * (dist.get_rank() + 1)])
    dist.all_reduce(total)
    if rate < 0 and dist.get_rank() == 1:
        raise ValueError(f"a negative rate: {rate}")
    dist.barrier()
    dist.destroy_process_group()
    return total.item()

value = allranks.run(train, 0.5, ranks=-2)
try:
    allranks.run(train, -1, ranks=-2)
except allranks.RankFailed as error:
    print(json.dumps({"value": value, "rank": error.rank, "cause": repr(error.__cause__), "text": error.traceback}))
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_ranks_of_PyTorch_meet_and_the_first_failure_is_raised(python, tmp_path):
    found = result_of(PYTORCH, python, tmp_path)
    assert (found["value"], found["rank"], found["cause"]) == (1.5, 1, "ValueError('a negative rate: -1')")
    assert 'raise ValueError(f"a negative rate: {rate}")' in found["text"]


HOROVOD = """
import json, allranks

def train(learning_rate, epochs):
    import horovod.torch as hvd
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    hvd.init()
    torch.manual_seed(0)
    points = torch.randn(64, 2)
    data = TensorDataset(points, points.sum(1, keepdim=True))
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
    if hvd.rank() == 0:
        torch.save(model.state_dict(), "model.pt")
    return {"loss": loss.item(), "size": hvd.size(), "rank": hvd.rank()}

print(json.dumps(allranks.run(train, ranks=-2, framework="horovod", learning_rate=0.1, epochs=20)))
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_a_program_for_HorovodRunner_runs_as_written(python, tmp_path):
    found = result_of(HOROVOD, python, tmp_path)
    assert (found["size"], found["rank"]) == (2, 0)
    assert found["loss"] < 0.01
    assert (tmp_path / "model.pt").exists()


@pytest.mark.slow
@pytest.mark.nightly
def test_the_first_example_of_the_page_runs(python, tmp_path):
    page = SOURCE.parent / "docs" / "guides" / "python.md"
    assert result_of(first_example(page), python, tmp_path) == pytest.approx(0.1)


@pytest.mark.slow
@pytest.mark.nightly
def test_the_first_example_of_the_README_runs(python, tmp_path):
    assert result_of(first_example(SOURCE.parent / "README.md"), python, tmp_path) == pytest.approx(0.2)


def first_example(page: Path) -> str:
    return page.read_text().partition("```python\n")[2].partition("```")[0]
