"""A small elastic training, for `test_horovod_elastic.py`: `elastic_program.py STEPS SECONDS_PER_STEP`.

Each step prints a line, `time rank= size= step= loss= pid=`, after its commit.
"""

from __future__ import annotations

import os
import sys
import time

import horovod.torch as hvd
import torch

steps, seconds = int(sys.argv[1]), float(sys.argv[2])

hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
# The step that creates the optimizer state must not use an all-reduce: a rank that joins runs it alone.
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)
optimizer.step()
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    while state.step < steps:
        features = torch.randn(32, 4, generator=torch.Generator().manual_seed(1000 * state.step + hvd.rank()))
        target = features.sum(dim=1, keepdim=True)
        state.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(state.model(features), target)
        loss.backward()
        state.optimizer.step()
        time.sleep(seconds)
        state.step += 1
        line = f"rank={hvd.rank()} size={hvd.size()} step={state.step} loss={loss.item():.4f} pid={os.getpid()}"
        print(f"{time.time():.2f} {line}", flush=True)
        state.commit()


train(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0))
print(f"{time.time():.2f} rank {hvd.rank()} is done", flush=True)
