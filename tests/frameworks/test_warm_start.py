"""Real frameworks whose imports were done in advance: the results are the same as without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.pod_bundle import copy
from support.fake_operator import operator_in
from support.warm_pod import DONE, Pod, quick_helpers

TORCH = """
import library, hashlib, os, sys, time
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
from allranks.report import report
WORLD = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
def digest(tensors):
    return hashlib.sha256(b"".join(np.ascontiguousarray(t.detach().numpy()).tobytes() for t in tensors)).hexdigest()
def main():
    if WORLD > 1:
        torch.distributed.init_process_group("gloo")
    before = [torch.get_num_threads(), torch.get_num_interop_threads(), torch.cuda.is_initialized()]
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(256, 64), torch.randn(256, 1))
    layers = torch.nn.Linear(64, 512), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(512, 1)
    model = torch.nn.Sequential(*layers)
    if WORLD > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters())
    for step, (x, y) in enumerate(DataLoader(data, 16, shuffle=True, num_workers=2)):
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
        report(step=step)
    print(os.getpid(), *before, digest(model.parameters()), flush=True)
    while os.environ["ALLRANKS_ATTEMPT"] == "2":
        time.sleep(0.05)
if __name__ == "__main__":
    main()
"""
JAX = """
import library, hashlib, os, time
import jax, jax.numpy as jnp, numpy as np
from allranks.report import report
x = jax.random.normal(jax.random.PRNGKey(1), (64, 64))
step = jax.jit(lambda x: jnp.tanh(x @ x.T / 8))
for number in range(20):
    x = step(x)
    report(step=number)
print(os.getpid(), jax.process_count(), hashlib.sha256(np.asarray(x).tobytes()).hexdigest(), flush=True)
while os.environ["ALLRANKS_ATTEMPT"] == "2":
    time.sleep(0.05)
"""
PROGRAMS = {
    "PyTorch": (("python3", "train.py"), TORCH, {}),
    "torchrun": (("torchrun", "--nproc-per-node=2", "--standalone", "train.py"), TORCH, {}),
    "python -m torch.distributed.run": (
        ("python3", "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "train.py"),
        TORCH,
        {"OMP_NUM_THREADS": "2"},
    ),
    "JAX": (("python3", "jax_process.py", "--", "python3", "train.py"), JAX, {"JAX_PROCESS_ID": "0"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_bit_equal_with_imports_that_were_done_in_advance(frameworks: Path, tmp_path: Path, name: str):
    program, text, env = PROGRAMS[name]
    copy(tmp_path / "copied")
    helpers = quick_helpers(tmp_path / "copied", tmp_path / "allranks")
    program = tuple(str(helpers / word) if word == "jax_process.py" else word for word in program)
    program = (str(frameworks / "bin" / program[0]), *program[1:])
    ranks = 1 + ("--nproc-per-node=2" in program)
    with operator_in(tmp_path) as operator:
        pod = Pod(tmp_path, helpers, operator, str(frameworks / "bin" / "python3"), ranks)
        (tmp_path / "train.py").write_text(text)
        out, err = pod.run(*program, PATH=f"{frameworks / 'bin'}:/usr/bin:/bin", MASTER_ADDR="127.0.0.1", **env)
    assert DONE in err
    results = [line.split()[1:] for line in out.splitlines()]
    assert len(results) == 2 * ranks
    assert all(result == results[0] for result in results), results
