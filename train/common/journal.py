"""What a run says and writes: lines, metrics, checkpoints and the loss curve, most of it by rank 0 alone."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from common.checkpoints import CheckpointStore
from common.claims import EXIT_CODE, Claim, Replaced
from common.curves import draw_curve, save_picture
from common.early_stopping import EarlyStopping
from common.metrics import MetricsLog
from common.report import finish, report


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
    """The record of one run, as seen from one rank. A rank 0 whose directory was claimed by another one ends in here,
    with a line and `claims.EXIT_CODE`, instead of writing."""

    def __init__(
        self, options: argparse.Namespace, rank: int, size: int, suffix: str, device: str, name: str = ""
    ) -> None:
        """`suffix` is that of the checkpoints, `device` what this rank computes on, in words."""
        self.rank, self.size = rank, size
        self.name = name or f"rank {rank} of {size}"
        self._options = options
        self._store: CheckpointStore | None = None
        self._output: Claim | None = None
        self._metrics: MetricsLog | None = None
        self._total_steps: int | None = None
        self._unsaved_step = 0
        say(f"{self.name}: started on {device}")
        if rank == 0:
            with self._until_replaced():
                self._claim_directories(suffix)

    def _claim_directories(self, suffix: str) -> None:
        claim: Claim | None = None
        if self._options.checkpoint_dir is None:
            say("no --checkpoint-dir: no checkpoints, a restart begins at epoch 1")
        else:
            claim = Claim(self._options.checkpoint_dir)
            self._store = CheckpointStore(claim, suffix, say)
        output = self._options.output_dir
        if output is not None:  # one directory has one claim: a second one would replace the first
            self._output = claim if claim and is_same(claim.directory, output) else Claim(output)

    def regroup(self, rank: int, size: int) -> None:
        """Elastic ranks have met anew. Rank 0 is the one that it was: it holds the directory."""
        self.rank, self.size, self.name = rank, size, f"rank {rank} of {size}"
        os.environ["HOROVOD_RANK"] = str(rank)  # as Horovod has it already, in C: the reports are this rank's

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
        if self._output:
            with self._until_replaced():
                self._metrics = MetricsLog(self._output, progress.epoch)

    def begin_epoch(self, progress: Progress, steps: int, left: int | None = None) -> None:
        """An epoch has so many steps; so many are left of this one, if that is less."""
        later = steps * (self._options.epochs - progress.epoch - 1)
        self._total_steps = progress.step + (steps if left is None else left) + later

    def begin_step(self, progress: Progress) -> None:
        """Trouble, where the options ask for it."""
        options, attempt = self._options, os.environ.get("ALLRANKS_ATTEMPT") or "0"
        if (options.hang_rank, options.hang_at_step) == (self.rank, progress.step + 1):
            while attempt == str(options.hang_attempt):
                time.sleep(1)
        if options.work:
            time.sleep(options.work * (options.slow_factor if options.slow_rank == self.rank else 1))

    def end_step(self, progress: Progress, samples: int, loss: object) -> None:
        """Tell allranks how far this rank is, with the samples and the mean loss of its own last batch. The loss may be
        a tensor: nobody waits for a GPU here."""
        report(step=progress.step, total_steps=self._total_steps, epoch=progress.epoch, samples=samples, loss=loss)

    def end_epoch(
        self, progress: Progress, accuracy: float, seconds: float, samples: int, checkpoint: Callable[[], bytes]
    ) -> None:
        """Tell about the epoch that is now complete, and save it when it is due."""
        if self.rank != 0:
            report(epoch=progress.epoch)
            return
        epoch, loss = progress.epoch, progress.losses[-1]
        with self._until_replaced():
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
                self._unsaved_step = 0 if due else progress.step
        saved = self._store is not None and not self._unsaved_step
        report(epoch=epoch, accuracy=accuracy, checkpoint=saved)
        # Last: who reads this line and kills the rank finds the checkpoint.
        say(f"epoch {epoch}/{self._options.epochs} loss {loss:.4f} accuracy {accuracy:.4f} ({seconds:.2f} s)")

    def stop(self, progress: Progress, checkpoint: Callable[[], bytes]) -> None:
        """All ranks stop together, within an epoch or between two. The epoch that was interrupted begins again on
        resume, with the weights as they are now."""
        if self._store:
            with self._until_replaced():
                self._store.save(progress.epoch, checkpoint())
            report(step=progress.step, checkpoint=True)
        saved = f", saved in {self._store.directory}" if self._store else ""
        where = f"after epoch {progress.epoch}, step {progress.step}"
        say(f"{self.name}: SIGTERM: stopped {where}{saved}")

    def last_words(self) -> None:
        """Alone, without the other ranks: save the last complete epoch if it is not on the disk yet."""
        with self._until_replaced():
            epoch = self._store.flush() if self._store else None
        if epoch is not None:
            report(step=self._unsaved_step, checkpoint=True)  # the steps since are lost
        saved = "" if epoch is None else f", saved epoch {epoch}"
        say(f"{self.name}: SIGTERM: the other ranks did not stop with this one{saved}")

    def best(self, early: EarlyStopping) -> None:
        """Why the training is over, and whose weights are tested."""
        if self.rank == 0:
            why = f"no progress for {early.stale} epochs, " if early.exhausted else ""
            say(f"{why}best epoch {early.best_epoch} (validation loss {early.best:.4f})")

    def finish(self, progress: Progress, accuracy: float, title: str) -> None:
        """The end of a complete training, with the accuracy on held-out data, which is the same on all ranks."""
        if self._output:
            with self._until_replaced():
                self._output.check()  # also where no picture can be made: the result is the successor's to tell
        if self.rank == 0:
            say(draw_curve(progress.losses))
            self._save_picture(progress, title)
        say(f"{self.name}: test accuracy {accuracy:.4f}")

    def _save_picture(self, progress: Progress, title: str) -> None:
        if self._output is None:
            return
        path = self._options.output_dir / "loss.png"
        with self._until_replaced():
            saved = save_picture(progress.losses, path, title, self._output.write)
        say(f"loss curve saved as {path}" if saved else "matplotlib is not installed: no loss.png")

    @contextlib.contextmanager
    def _until_replaced(self) -> Iterator[None]:
        try:
            yield
        except Replaced as replaced:
            say(f"{self.name}: {replaced}: stopping, nothing more is written")
            sys.stderr.flush()
            finish()
            # At once: an orderly shutdown of a framework waits for the other ranks, which know nothing of this, and may
            # be in a thread where SystemExit ends nothing.
            os._exit(EXIT_CODE)


def is_same(one: Path, other: Path) -> bool:
    """Whether these are one directory, by whatever names. `other` is made if it is not there."""
    other.mkdir(parents=True, exist_ok=True)
    return one.samefile(other)


def say(line: str) -> None:
    """One line in one write: ranks that share a pipe do not cut one another's lines."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
