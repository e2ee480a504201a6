"""Trains the same steps with every kind of parallelism in one group of ranks, and prints what they computed as JSON.

Each kind continues from the checkpoint of the previous one: `torchrun --nproc-per-node 4 same_steps.py DIRECTORY`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "train"))

import torch
import torch.distributed as dist
from common.ddp import join_group, leave
from common.distributed_checkpoints import DistributedCheckpoints
from common.journal import Progress, say
from common.models_lm import LanguageModel
from common.parallel import KINDS, spread
from common.text import batch_starts, load_text, windows

BATCH, CONTEXT, STEPS = 10, 32, 3  # 10 samples for 4 ranks: shares of different sizes


def main() -> None:
    device = join_group(threads=1)
    directory = Path(sys.argv[1])
    text, _ = load_text([])
    before = Progress()
    claim = None
    for kind in KINDS:
        if dist.get_rank() == 0:
            from common.claims import Claim

            claim = Claim(directory)
        torch.manual_seed(0)
        parallel = spread(kind, LanguageModel(32, 4, 4), device, BATCH, tensor_size=2)
        optimizer = torch.optim.AdamW(parallel.module.parameters(), lr=0.01)

        def step(number: int, parallel=parallel, optimizer=optimizer) -> list[float]:
            starts = batch_starts(text, BATCH, CONTEXT, 0, number)[parallel.data_rank :: parallel.data_size]
            x, y = map(torch.from_numpy, windows(text, starts, CONTEXT))
            optimizer.zero_grad()
            total = parallel.backward(x, y, BATCH * CONTEXT)
            norm = parallel.clip_gradients(0.5)
            optimizer.step()
            scored = parallel.evaluate(x, y)
            sums = torch.stack([total, scored[0]])
            dist.all_reduce(sums)
            return [norm.item(), *(sums / parallel.sharers / (BATCH * CONTEXT)).tolist()]

        fresh = [step(number) for number in range(STEPS)]
        checkpoints = DistributedCheckpoints(directory, claim, device, say)
        after = checkpoints.load(parallel.module, optimizer)
        resumed = step(100) if after.step else None
        if kind == KINDS[0]:
            before = Progress(epoch=1, step=7, losses=[0.5])
            checkpoints.save(parallel.module, optimizer, before)
            resumed = step(100)
        else:
            again = checkpoints.load(parallel.module, optimizer)
            assert again == before, (again, before)
            before = Progress(epoch=1, step=before.step + 1, losses=[0.5])
            checkpoints.save(parallel.module, optimizer, before)
        weights = parallel.whole_weights()
        if dist.get_rank() == 0:
            LanguageModel(32, 4, 4).load_state_dict(weights)
            say("RESULT " + json.dumps({"kind": kind, "fresh": fresh, "resumed": resumed}))
    leave()


if __name__ == "__main__":
    main()
