"""PenguinNet on the Palmer penguins with Lightning: `Trainer(num_nodes=...)` trains on all pods of a job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader, TensorDataset

from common.ddp import any_rank_terminated, join_group, leave
from common.journal import say
from common.models_pytorch import PenguinNet
from common.options import make_parser, parse_options
from common.penguins import load_penguins
from common.runs import claim_run
from common.termination import Termination

EXAMPLE = """torchrun --standalone --nproc-per-node 2 penguins_lightning.py --checkpoint-dir /tmp/penguins
(on one machine without allranks; the command of a manifest is [torchrun, train/penguins_lightning.py])"""


class Penguins(lightning.LightningModule):
    """The network, its loss and its optimizer."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.net, self.lr = PenguinNet(), lr

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        self.log("epoch_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        x, y = batch
        logits = self.net(x)
        self.log("validation_loss", nn.functional.cross_entropy(logits, y), sync_dist=True)
        self.log("accuracy", (logits.argmax(1) == y).float().mean(), sync_dist=True)

    def test_step(self, batch: list[torch.Tensor], number: int) -> None:
        x, y = batch
        self.log("test_accuracy", (self.net(x).argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Watch(Callback):
    """Prints the epochs. After SIGTERM to any rank all ranks stop after the same step, and save."""

    def __init__(self, device: torch.device, pause: float, folder: Path | None) -> None:
        self._device, self._pause, self._folder = device, pause, folder
        self._termination = Termination(lambda: say("SIGTERM: the other ranks did not stop with this one"))
        self.stopped = False

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        if any_rank_terminated(self._termination, self._device):
            self._termination.agreed()
            self.stopped = trainer.should_stop = True
            if self._folder:
                trainer.save_checkpoint(self._folder / f"step-{trainer.global_step:07d}.ckpt")

    def on_train_epoch_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        # Not at the end of the epoch, where its checkpoint is not saved yet.
        self._print(trainer, trainer.current_epoch)
        self._termination.pause(self._pause)

    def on_train_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        if not self.stopped:
            self._print(trainer, trainer.current_epoch)

    def _print(self, trainer: lightning.Trainer, epoch: int) -> None:
        if trainer.is_global_zero and "epoch_loss" in trainer.callback_metrics:
            names = ("epoch_loss", "validation_loss", "accuracy")
            loss, validation_loss, accuracy = (float(trainer.callback_metrics[name]) for name in names)
            validated = f"validation loss {validation_loss:.4f} accuracy {accuracy:.4f}"
            say(f"epoch {epoch}/{trainer.max_epochs} loss {loss:.4f}, {validated}")

    def exit_if_stopped(self, step: int) -> None:
        """Call after the training."""
        if self.stopped:
            say(f"rank {dist.get_rank()} of {dist.get_world_size()}: SIGTERM: stopped after step {step}, saved")
            dist.barrier()
            self._termination.exit()


@record  # writes an exception to torchrun's error file: torchrun's own exit code does not show the cause
def main() -> None:
    options = parse_options(make_parser(__doc__, EXAMPLE, epochs=20, batch_size=16, lr=0.01))
    device = join_group(options.threads)
    rank, size = dist.get_rank(), dist.get_world_size()
    say(f"rank {rank} of {size}: started on {device} ({dist.get_backend()})")
    directory = options.checkpoint_dir
    folder, saved = claim_run(directory, "*.ckpt", device) if directory else (None, None)

    lightning.seed_everything(options.seed)
    penguins = load_penguins()
    train = TensorDataset(torch.from_numpy(penguins.train_x), torch.from_numpy(penguins.train_y))
    validation = TensorDataset(torch.from_numpy(penguins.validation_x), torch.from_numpy(penguins.validation_y))
    test = TensorDataset(torch.from_numpy(penguins.test_x), torch.from_numpy(penguins.test_y))
    watch = Watch(device, options.pause, folder)
    callbacks: list[Callback] = [watch, *reporting(options.batch_size)]
    if folder:
        callbacks.append(ModelCheckpoint(folder, filename="step-{step:07d}", auto_insert_metric_name=False))
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        num_nodes=int(os.environ.get("NNODES", "1")),  # of pods: without it each pod trains alone
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        accelerator="auto" if device.type == "cuda" else "cpu",
        strategy="ddp",
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=folder is not None,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        gradient_clip_val=1.0,
    )
    module = Penguins(options.lr)
    loaders = DataLoader(train, options.batch_size, shuffle=True), DataLoader(validation, len(validation))
    trainer.fit(module, *loaders, ckpt_path=saved)
    watch.exit_if_stopped(trainer.global_step)
    [results] = trainer.test(module, DataLoader(test, len(test)), verbose=False)
    say(f"rank {rank} of {size}: test accuracy {results['test_accuracy']:.4f}")
    leave()


def reporting(samples: int) -> list[Callback]:
    """allranks' callback; none without its library."""
    try:
        from allranks.report.lightning import ReportCallback
    except ImportError:
        return []
    return [ReportCallback(samples)]


if __name__ == "__main__":
    main()
