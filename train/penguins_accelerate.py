"""PenguinNet on the Palmer penguins with Hugging Face's Accelerate, started by `accelerate launch`."""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader, TensorDataset

from common.ddp import any_rank_terminated, join_group, leave
from common.journal import Progress, say
from common.models_pytorch import PenguinNet
from common.options import make_parser, parse_options
from common.penguins import load_penguins
from common.pytorch import seed_epoch
from common.report import instrument, report, waiting
from common.runs import claim_run
from common.termination import Termination

EXAMPLE = """accelerate launch --num_processes 2 --cpu penguins_accelerate.py --checkpoint-dir /tmp/penguins
(on one machine without allranks; the command of a manifest is [accelerate, launch, train/penguins_accelerate.py])"""


class Position(Progress):
    """The progress, as an object that Accelerate saves and restores."""

    def state_dict(self) -> dict[str, object]:
        return self.as_dict()

    def load_state_dict(self, state: dict[str, object]) -> None:
        vars(self).update(state)


@record
def main() -> None:
    options = parse_options(make_parser(__doc__, EXAMPLE, epochs=20, batch_size=16, lr=0.01))
    device = join_group(options.threads)
    accelerator = Accelerator(cpu=device.type == "cpu")
    rank, size = accelerator.process_index, accelerator.num_processes
    say(f"rank {rank} of {size}: started on {device} ({dist.get_backend()})")
    directory = options.checkpoint_dir
    folder, saved = claim_run(directory, "epoch-*", device) if directory else (None, None)
    termination = Termination(lambda: say("SIGTERM: the other ranks did not stop with this one"))

    penguins = load_penguins()
    torch.manual_seed(options.seed)
    net = PenguinNet()
    train = TensorDataset(torch.from_numpy(penguins.train_x), torch.from_numpy(penguins.train_y))
    loader = DataLoader(train, options.batch_size, shuffle=True)
    optimizer = torch.optim.Adam(net.parameters(), lr=options.lr)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    instrument(model)
    progress = Position()
    accelerator.register_for_checkpointing(progress)
    if saved:
        accelerator.load_state(str(saved))

    while progress.epoch < options.epochs:
        started = time.monotonic()
        seed_epoch(options.seed, progress.epoch, 0)  # the same on all ranks: Accelerate shares the order
        losses = []
        for x, y in loader:
            if any_rank_terminated(termination, device):
                termination.agreed()
                say(f"rank {rank} of {size}: SIGTERM: stopped after epoch {progress.epoch}")
                dist.barrier()
                termination.exit()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            progress.step += 1
            losses.append(loss.detach())
            report(step=progress.step, total_steps=len(loader) * options.epochs, samples=len(y), loss=losses[-1])
        with waiting():
            mean = accelerator.reduce(torch.stack(losses).mean(), "mean").item()
        progress.epoch += 1
        progress.losses.append(mean)
        if folder:
            save(accelerator, folder / f"epoch-{progress.epoch:05d}")
        report(epoch=progress.epoch, checkpoint=folder is not None)
        if rank == 0:
            seconds = time.monotonic() - started
            say(f"epoch {progress.epoch}/{options.epochs} loss {mean:.4f} ({seconds:.2f} s)")
        termination.pause(options.pause)

    test_x, test_y = torch.from_numpy(penguins.test_x).to(device), torch.from_numpy(penguins.test_y).to(device)
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    say(f"rank {rank} of {size}: test accuracy {accuracy:.4f}")
    leave()


def save(accelerator: Accelerator, path: Path) -> None:
    """All ranks save; the folder has its final name when it is complete."""
    unfinished = path.with_name(f".{path.name}")
    accelerator.save_state(str(unfinished))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        unfinished.rename(path)
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
