"""The output of a run: lines, metrics, checkpoints and the loss curve, most of them from rank 0."""

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
from common.report import checkpoint_requested, finish, report


@dataclass
class Progress:
    """The progress of a training: part of each checkpoint, identical on all ranks."""

    epoch: int = 0  # completed epochs
    step: int = 0  # optimizer steps in all epochs
    losses: list[float] = field(default_factory=list)  # of each completed epoch, the mean over all ranks
    validation_losses: list[float] = field(default_factory=list)  # after each completed epoch

    def as_dict(self) -> dict[str, object]:
        """For the checkpoint; `Progress(**values)` restores it."""
        return asdict(self)


class Journal:
    """The output of one rank. If another training has claimed the directory of rank 0, the methods end the process with
    a line and `claims.EXIT_CODE` instead of writing."""

    def __init__(
        self, options: argparse.Namespace, rank: int, size: int, suffix: str | None, device: str, name: str = ""
    ) -> None:
        """`suffix` of the checkpoint files; None if the program saves its checkpoints itself, with `claim`. `device` is
        a description of the device of this rank."""
        self.rank, self.size = rank, size
        self.name = name or f"rank {rank} of {size}"
        self._options = options
        self.claim: Claim | None = None
        self._store: CheckpointStore | None = None
        self._output: Claim | None = None
        self._metrics: MetricsLog | None = None
        self._total_steps: int | None = None
        self._unsaved_step = 0
        say(f"{self.name}: started on {device}")
        if rank == 0:
            with self.until_replaced():
                self._claim_directories(suffix)

    def _claim_directories(self, suffix: str | None) -> None:
        if self._options.checkpoint_dir is None:
            say("no --checkpoint-dir: no checkpoints, a restart begins at epoch 1")
        else:
            self.claim = Claim(self._options.checkpoint_dir)
            self._store = CheckpointStore(self.claim, suffix, say) if suffix else None
        output = self._options.output_dir
        if output is not None:  # a second claim of the same directory would replace the first
            same = self.claim and is_same(self.claim.directory, output)
            self._output = self.claim if same else Claim(output)

    def regroup(self, rank: int, size: int) -> None:
        """Sets rank and size after a rendezvous of elastic ranks. Rank 0 stays the same: it holds the claim."""
        self.rank, self.size, self.name = rank, size, f"rank {rank} of {size}"
        os.environ["HOROVOD_RANK"] = str(rank)  # Horovod has it only in C; reports read the variable

    def newest_checkpoint(self) -> bytes | None:
        """The content of the checkpoint to resume from; None on ranks other than 0."""
        newest = self._store.newest() if self._store else None
        return newest[1] if newest else None

    def begin(self, progress: Progress) -> None:
        """Call once after all ranks have the progress to start from."""
        if progress.step and self.rank == 0:
            loss = f" (loss {progress.losses[-1]:.4f})" if progress.losses else ""
            say(f"resumed from epoch {progress.epoch} of {self._options.checkpoint_dir}{loss}")
        elif progress.step:
            say(f"{self.name}: resumed from epoch {progress.epoch}")
        if self._output:
            with self.until_replaced():
                self._metrics = MetricsLog(self._output, progress.epoch)

    def begin_epoch(self, progress: Progress, steps: int, left: int | None = None) -> None:
        """Call at the start of an epoch of `steps` steps; `left`: the remaining steps of this epoch, if fewer."""
        later = steps * (self._options.epochs - progress.epoch - 1)
        self._total_steps = progress.step + (steps if left is None else left) + later

    def begin_step(self, progress: Progress) -> None:
        """Hangs or sleeps if the options request it for this rank."""
        options, attempt = self._options, os.environ.get("ALLRANKS_ATTEMPT") or "0"
        if (options.hang_rank, options.hang_at_step) == (self.rank, progress.step + 1):
            while attempt == str(options.hang_attempt):
                time.sleep(1)
        if options.work:
            time.sleep(options.work * (options.slow_factor if options.slow_rank == self.rank else 1))

    def end_step(self, progress: Progress, samples: int, loss: object) -> None:
        """Report progress to allranks with the samples and the mean loss of this rank's last batch. The loss may be a
        tensor: this does not wait for a GPU."""
        report(step=progress.step, total_steps=self._total_steps, epoch=progress.epoch, samples=samples, loss=loss)

    def end_epoch(
        self,
        progress: Progress,
        accuracy: float,
        seconds: float,
        samples: int,
        checkpoint: Callable[[], bytes] = bytes,
        saved: bool = False,
    ) -> None:
        """Print and report the completed epoch, and save a checkpoint if it is due. `accuracy`: on the validation data.
        `saved`: the program has saved it."""
        if self.rank != 0:
            report(epoch=progress.epoch)
            return
        epoch, loss, validation_loss = progress.epoch, progress.losses[-1], progress.validation_losses[-1]
        with self.until_replaced():
            if self._metrics:
                self._metrics.append(
                    epoch=epoch,
                    step=progress.step,
                    loss=loss,
                    validation_loss=validation_loss,
                    accuracy=accuracy,
                    seconds=seconds,
                    samples=samples,
                    world_size=self.size,
                )
            if self._store:
                due = epoch % self._options.checkpoint_every == 0 or epoch == self._options.epochs
                (self._store.save if due else self._store.hold)(epoch, checkpoint())
                self._unsaved_step = 0 if due else progress.step
        saved = saved or (self._store is not None and not self._unsaved_step)
        report(epoch=epoch, validation_loss=validation_loss, accuracy=accuracy, checkpoint=saved)
        # Last: when this line is printed, the checkpoint is saved.
        validated = f"validation loss {validation_loss:.4f} accuracy {accuracy:.4f}"
        say(f"epoch {epoch}/{self._options.epochs} loss {loss:.4f}, {validated} ({seconds:.2f} s)")

    def save_on_request(self, progress: Progress, checkpoint: Callable[[], bytes]) -> None:
        """Save if allranks asks for it before it ends the ranks. Only rank 0 saves, so the ranks need not agree."""
        if self._store and checkpoint_requested():
            with self.until_replaced():
                self._store.save(progress.epoch, checkpoint())
            report(step=progress.step, checkpoint=True)
            say(f"{self.name}: saved on request after epoch {progress.epoch}, step {progress.step}")

    def stop(self, progress: Progress, checkpoint: Callable[[], bytes] = bytes) -> None:
        """Save and stop; all ranks call it at the same step. After a resume the interrupted epoch starts again with the
        current weights."""
        if self._store:
            with self.until_replaced():
                self._store.save(progress.epoch, checkpoint())
        if self.claim:
            report(step=progress.step, checkpoint=True)
        saved = f", saved in {self.claim.directory}" if self.claim else ""
        where = f"after epoch {progress.epoch}, step {progress.step}"
        say(f"{self.name}: SIGTERM: stopped {where}{saved}")

    def save_alone(self) -> None:
        """Save the last completed epoch without the other ranks, if it is not on the disk yet."""
        with self.until_replaced():
            epoch = self._store.flush() if self._store else None
        if epoch is not None:
            report(step=self._unsaved_step, checkpoint=True)  # later steps are lost
        saved = "" if epoch is None else f", saved epoch {epoch}"
        say(f"{self.name}: SIGTERM: the other ranks did not stop with this one{saved}")

    def best(self, early: EarlyStopping) -> None:
        """Print why the training ended and which weights are tested."""
        if self.rank == 0:
            why = f"no progress for {early.stale} epochs, " if early.exhausted else ""
            say(f"{why}best epoch {early.best_epoch} (validation loss {early.best:.4f})")

    def finish(self, progress: Progress, accuracy: float, title: str) -> None:
        """Print the accuracy on the test data, identical on all ranks, and save the curves of both losses."""
        if self._output:
            with self.until_replaced():
                self._output.check()  # also without matplotlib: a replaced training must not print a result
        if self.rank == 0:
            say(draw_curve(progress.losses))
            self._save_picture(progress, title)
        say(f"{self.name}: test accuracy {accuracy:.4f}")

    def _save_picture(self, progress: Progress, title: str) -> None:
        if self._output is None:
            return
        path = self._options.output_dir / "loss.png"
        curves = {"training": progress.losses, "validation": progress.validation_losses}
        with self.until_replaced():
            saved = save_picture(curves, path, title, self._output.write)
        say(f"loss curves saved as {path}" if saved else "matplotlib is not installed: no loss.png")

    def export(self, name: str, content: bytes) -> Path | None:
        """Write the trained model into the output directory. None without one, and on other ranks than 0."""
        if self._output is None:
            return None
        path = self._options.output_dir / name
        with self.until_replaced():
            self._output.write(path, content)
        return path

    @contextlib.contextmanager
    def until_replaced(self) -> Iterator[None]:
        """Ends the process if another training has claimed a directory of rank 0."""
        try:
            yield
        except Replaced as replaced:
            say(f"{self.name}: {replaced}: stopping, nothing more is written")
            sys.stderr.flush()
            finish()
            # Exit at once: the shutdown of a framework would wait for the other ranks, and SystemExit has no effect in
            # a thread.
            os._exit(EXIT_CODE)


def is_same(one: Path, other: Path) -> bool:
    """Whether both names refer to the same directory. Creates `other` if it does not exist."""
    other.mkdir(parents=True, exist_ok=True)
    return one.samefile(other)


def say(line: str) -> None:
    """Print a line with one write, so that ranks that share a pipe do not mix their lines."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
