"""What a run says and writes: lines, metrics, checkpoints and the loss curve, most of it by rank 0 alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from common.checkpoints import CheckpointStore
from common.curves import draw_curve, save_picture
from common.early_stopping import EarlyStopping
from common.metrics import MetricsLog


@dataclass
class Progress:
    """How far a training has come: part of each checkpoint, and the same on all ranks."""

    epoch: int = 0  # epochs that are complete
    step: int = 0  # optimizer steps, all epochs together
    losses: list[float] = field(default_factory=list)  # one for each complete epoch, the mean over all ranks

    def as_dict(self) -> dict[str, object]:
        """For the checkpoint; `Progress(**it)` is the way back."""
        return asdict(self)


class Journal:
    """The record of one run, as seen from one rank."""

    def __init__(
        self, options: argparse.Namespace, rank: int, size: int, suffix: str, device: str, name: str = ""
    ) -> None:
        """`suffix` is that of the checkpoints, `device` what this rank computes on, in words."""
        self.rank, self.size = rank, size
        self.name = name or f"rank {rank} of {size}"
        self._options = options
        self._store: CheckpointStore | None = None
        self._metrics: MetricsLog | None = None
        say(f"{self.name}: started on {device}")
        if rank != 0:
            return
        if options.checkpoint_dir is None:
            say("no --checkpoint-dir: no checkpoints, a restart begins at epoch 1")
        else:
            self._store = CheckpointStore(options.checkpoint_dir, suffix, say)

    def newest_checkpoint(self) -> bytes | None:
        """What rank 0 resumes from, and the other ranks after it; None on the other ranks."""
        newest = self._store.newest() if self._store else None
        return newest[1] if newest else None

    def begin(self, progress: Progress) -> None:
        """Called once, when the ranks have agreed on where to start."""
        if progress.step and self.rank == 0:
            loss = f" (loss {progress.losses[-1]:.4f})" if progress.losses else ""
            say(f"resumed from epoch {progress.epoch} of {self._options.checkpoint_dir}{loss}")
        elif progress.step:
            say(f"{self.name}: resumed from epoch {progress.epoch}")
        if self.rank == 0 and self._options.output_dir is not None:
            self._metrics = MetricsLog(self._options.output_dir / "metrics.jsonl", progress.epoch)

    def end_epoch(
        self, progress: Progress, accuracy: float, seconds: float, samples: int, checkpoint: Callable[[], bytes]
    ) -> None:
        """Tell about the epoch that is now complete, and save it when it is due."""
        if self.rank != 0:
            return
        epoch, loss = progress.epoch, progress.losses[-1]
        if self._metrics:
            self._metrics.append(
                epoch=epoch,
                step=progress.step,
                loss=loss,
                accuracy=accuracy,
                seconds=seconds,
                samples=samples,
                world_size=self.size,
            )
        if self._store:
            due = epoch % self._options.checkpoint_every == 0 or epoch == self._options.epochs
            (self._store.save if due else self._store.hold)(epoch, checkpoint())
        # Last: who reads this line and kills the rank finds the checkpoint.
        say(f"epoch {epoch}/{self._options.epochs} loss {loss:.4f} accuracy {accuracy:.4f} ({seconds:.2f} s)")

    def stop(self, progress: Progress, checkpoint: Callable[[], bytes]) -> None:
        """All ranks stop together, within an epoch or between two. The epoch that was interrupted begins again on
        resume, with the weights as they are now."""
        if self._store:
            self._store.save(progress.epoch, checkpoint())
        saved = f", saved in {self._store.directory}" if self._store else ""
        where = f"after epoch {progress.epoch}, step {progress.step}"
        say(f"{self.name}: SIGTERM: stopped {where}{saved}")

    def last_words(self) -> None:
        """Alone, without the other ranks: save the last complete epoch if it is not on the disk yet."""
        epoch = self._store.flush() if self._store else None
        saved = "" if epoch is None else f", saved epoch {epoch}"
        say(f"{self.name}: SIGTERM: the other ranks did not stop with this one{saved}")

    def best(self, early: EarlyStopping) -> None:
        """Why the training is over, and whose weights are tested."""
        if self.rank == 0:
            why = f"no progress for {early.stale} epochs, " if early.exhausted else ""
            say(f"{why}best epoch {early.best_epoch} (validation loss {early.best:.4f})")

    def finish(self, progress: Progress, accuracy: float, title: str) -> None:
        """The end of a complete training, with the accuracy on held-out data, which is the same on all ranks."""
        if self.rank == 0:
            say(draw_curve(progress.losses))
            self._save_picture(progress, title)
        say(f"{self.name}: test accuracy {accuracy:.4f}")

    def _save_picture(self, progress: Progress, title: str) -> None:
        if self._options.output_dir is None:
            return
        path = self._options.output_dir / "loss.png"
        if save_picture(progress.losses, path, title):
            say(f"loss curve saved as {path}")
        else:
            say("matplotlib is not installed: no loss.png")


def say(line: str) -> None:
    """One line in one write: ranks that share a pipe do not cut one another's lines."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
