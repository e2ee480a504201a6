"""For Lightning, as `lightning` or `pytorch_lightning`: `Trainer(callbacks=[ReportCallback()])`."""

from __future__ import annotations

import sys
import time
from typing import Any

from allranks import report
from allranks.report.group import note_group
from allranks.report.pytorch import instrument
from allranks.report.torch_agreement import checkpoint_due, checkpoint_requested
from allranks.report.warn import guarded

if "lightning.pytorch" in sys.modules or "pytorch_lightning" not in sys.modules:
    try:
        from lightning.pytorch import Callback  # type: ignore[import-not-found]
    except ImportError:
        from pytorch_lightning import Callback  # type: ignore[import-not-found]
else:  # both may be installed: the one that the program uses
    from pytorch_lightning import Callback


class ReportCallback(Callback):  # type: ignore[misc]
    """Reports steps, epochs, checkpoints, the metrics that the module logs, and this rank's own work in each step (see
    `allranks.report.pytorch.instrument`).

    `samples`: samples of this rank in a batch, for the rate. A checkpoint counts as stored when the trainer continues
    after it: set `checkpoints=False` if an asynchronous plugin writes checkpoints. When the operator requests a
    checkpoint, or one is due, the trainer saves `last.ckpt` in the folder of its `ModelCheckpoint`, which
    `ckpt_path="last"` finds."""

    _report = staticmethod(report.report)

    def __init__(self, samples: int | None = None, checkpoints: bool = True) -> None:
        self._samples, self._checkpoints = samples, checkpoints
        self._saving = False
        self._loading_since: float | None = None

    def _measure(self, trainer: Any) -> None:
        instrument(trainer.model)

    @guarded
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        note_group(trainer.world_size, trainer.global_rank)
        self._measure(trainer)
        total = trainer.estimated_stepping_batches
        self._report(
            step=trainer.global_step,
            total_steps=int(total) if 0 < total < float("inf") else None,
            epoch=trainer.current_epoch,
        )

    @guarded
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._loading_since is not None:
            report.loaded(time.perf_counter() - self._loading_since)
        self._loading_since = None
        self._saved(trainer)

    @guarded
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._saved(trainer)
        self._report(step=trainer.global_step, samples=self._samples, **named(trainer.callback_metrics))
        path = last_checkpoint(trainer) if self._checkpoints else None
        if path is not None and (checkpoint_requested() or checkpoint_due()):
            trainer.save_checkpoint(path)
            self._saved(trainer)
        self._loading_since = time.perf_counter()  # the trainer asks for the next batch

    @guarded
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._loading_since = time.perf_counter()

    @guarded
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._saved(trainer)
        self._report(step=trainer.global_step, epoch=trainer.current_epoch + 1)

    @guarded
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        self._saving = self._checkpoints  # the trainer is about to write it
        self._loading_since = None

    @guarded
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._saved(trainer)
        self._report(step=trainer.global_step)

    def _saved(self, trainer: Any) -> None:
        """Report the checkpoint that the trainer has written: it continues only after that."""
        if self._saving:
            self._saving = False
            self._report(step=trainer.global_step, checkpoint=True)


class AutomaticCallback(ReportCallback):
    """Added to programs by allranks. It is silent if the program itself reports its steps, and adds no hooks to the
    gradients."""

    _report = staticmethod(report.report_automatically)

    def _measure(self, trainer: Any) -> None: ...


def last_checkpoint(trainer: Any) -> str | None:
    """Return the path of the last checkpoint of the first `ModelCheckpoint`; None without one."""
    for callback in trainer.checkpoint_callbacks:
        folder, name = getattr(callback, "dirpath", None), getattr(callback, "CHECKPOINT_NAME_LAST", None)
        if folder and name:
            return f"{folder}/{name}{getattr(callback, 'FILE_EXTENSION', '.ckpt')}"
    return None


def named(metrics: Any) -> dict[str, Any]:
    taken = ("step", "total_steps", "epoch", "samples", "checkpoint", "busy")
    return {name: value for name, value in metrics.items() if name not in taken}
