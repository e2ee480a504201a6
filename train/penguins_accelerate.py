"""PenguinNet on the Palmer penguins with Hugging Face's Accelerate, started by `accelerate launch`."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
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
        validation_loss, accuracy = evaluate(model, penguins.validation_x, penguins.validation_y, device)
        progress.epoch += 1
        progress.losses.append(mean)
        progress.validation_losses.append(validation_loss)
        if folder:
            save(accelerator, folder / f"epoch-{progress.epoch:05d}")
        validated = {"validation_loss": validation_loss, "accuracy": accuracy}
        report(epoch=progress.epoch, checkpoint=folder is not None, **validated)
        if rank == 0:
            line = f"loss {mean:.4f}, validation loss {validation_loss:.4f} accuracy {accuracy:.4f}"
            say(f"epoch {progress.epoch}/{options.epochs} {line} ({time.monotonic() - started:.2f} s)")
        termination.pause(options.pause)

    _, accuracy = evaluate(model, penguins.test_x, penguins.test_y, device)
    say(f"rank {rank} of {size}: test accuracy {accuracy:.4f}")
    leave()


@torch.no_grad()
def evaluate(model: nn.Module, x: np.ndarray, y: np.ndarray, device: torch.device) -> tuple[float, float]:
    """Mean loss and accuracy on held-out rows: there are few, and each rank evaluates all of them."""
    logits, answers = model(torch.from_numpy(x).to(device)), torch.from_numpy(y).to(device)
    return nn.functional.cross_entropy(logits, answers).item(), (logits.argmax(1) == answers).float().mean().item()


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
