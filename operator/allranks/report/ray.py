"""For Ray Train: `RunConfig(callbacks=[ReportCallback()])` reports what each rank passes to `ray.train.report`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

try:
    from ray.train.v2._internal.execution.callback import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        WorkerCallback,
    )
    from ray.train.v2._internal.execution.context import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        get_train_context,
    )
except ImportError as error:  # another version of Ray: a callback that RunConfig accepts, and that reports nothing
    _missing = str(error)
    try:
        from ray.train import UserCallback as WorkerCallback  # type: ignore[import-not-found,no-redef,unused-ignore]
    except ImportError:
        WorkerCallback = object  # type: ignore[misc,assignment,unused-ignore]
else:
    _missing = ""

from allranks import report
from allranks.report.meter import Meter
from allranks.report.values import LARGEST
from allranks.report.warn import guarded, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable

_TAKEN = ("step", "total_steps", "epoch", "samples", "checkpoint", "busy")


class ReportCallback(WorkerCallback):  # type: ignore[misc,unused-ignore]
    """Reports metrics and checkpoints of each rank, and its own work between two calls of `ray.train.report`. It runs
    in the processes of the ranks, and is silent there once the program itself calls `report(step=...)`.

    The metrics `step` and `epoch` are the progress. Without `step`, each `ray.train.report` counts as a step.
    `total_steps`: steps of the whole training, unless the metrics say it."""

    _rank: Rank | None = None

    def __init__(self, total_steps: int | None = None) -> None:
        self._total_steps = total_steps
        _is_supported()

    @guarded
    def after_init_train_context(self) -> None:
        context = get_train_context()
        # Only the backend of PyTorch sets RANK and LOCAL_RANK.
        os.environ["ALLRANKS_RANK"] = str(context.get_world_rank())
        os.environ["ALLRANKS_LOCAL_RANK"] = str(context.get_local_rank())
        self._rank = Rank(context, self._total_steps)
        context.report = self._rank.report

    @guarded
    def before_worker_shutdown(self) -> None:
        """Send the last report: Ray ends the process without its exit handlers."""
        if self._rank is not None:
            self._rank.note_upload()
        report.finish()


def with_reports(callbacks: list[Any]) -> list[Any]:
    """Return the callbacks that a rank received, and one that reports unless the program itself added it. In an
    unsupported version the base class has not all methods that Ray calls in ranks, so nothing is added there."""
    if any(isinstance(callback, ReportCallback) for callback in callbacks) or not _is_supported():
        return callbacks
    return [*callbacks, ReportCallback()]


def _is_supported() -> bool:
    if _missing:
        line = f"this version of Ray Train is not supported ({_missing}): its ranks report nothing by themselves"
        warn_once("unsupported version", line)
    return not _missing


class Rank:
    """One rank: `report` replaces the method of Ray Train's context that `ray.train.report` calls."""

    def __init__(self, context: Any, total_steps: int | None) -> None:
        self._context, self._total_steps = context, total_steps
        self._original = context.report
        self._uploading: int | None = None
        """The number of the report whose checkpoint Ray still uploads."""
        self._step: int | None = None
        """The last step that this object reported."""
        self._meter = BetweenReports(self.counts)
        report.use_meter(self._meter)

    def counts(self) -> bool:
        """Return whether nothing else in this process reports steps, such as the program, or the callback of Keras."""
        return report.last_step() == self._step and not report.program_reports()

    def report(self, metrics: dict[str, Any], checkpoint: Any = None, *args: Any, **kwargs: Any) -> None:
        if self.counts():
            self._meter.work_done()
        self._original(metrics, checkpoint, *args, **kwargs)
        self._note(metrics, checkpoint)

    @guarded
    def _note(self, metrics: dict[str, Any], checkpoint: Any) -> None:
        self.note_upload()
        number = self._context.report_call_index  # continues after a restart of the ranks
        stored = checkpoint is not None and self._context.current_report_index >= number
        if checkpoint is not None and not stored:
            self._uploading = number
        step, epoch = metrics.get("step"), metrics.get("epoch")
        if step is None and self.counts():
            step = number
        report.report_automatically(
            step=step,
            total_steps=metrics.get("total_steps", self._total_steps),
            epoch=int(epoch) if isinstance(epoch, float) and 0 <= epoch < LARGEST else epoch,  # Hugging Face: 1.5
            checkpoint=stored,
            **{name: value for name, value in metrics.items() if name not in _TAKEN and _is_number(value)},
        )
        if step is not None:
            self._step = report.last_step()

    def note_upload(self) -> None:
        """Report a checkpoint that was uploaded since the last step."""
        if self._uploading is not None and self._context.current_report_index >= self._uploading:
            self._uploading = None
            report.report_automatically(checkpoint=True)


class BetweenReports(Meter):
    """Measures what the rank does between two calls of `ray.train.report`, in which it waits for the other ranks. The
    measure is exact if ranks do not also wait for each other between these calls, as they do in DDP."""

    def __init__(self, counts: Callable[[], bool]) -> None:
        super().__init__()
        self._counts = counts

    def step_over(self, steps: int = 1) -> None:
        if self._busy is not None:
            total, count = self.totals
            self.totals = (total + max(self._busy, 0.0), count + steps)
        super().restart()

    def restart(self) -> None:
        """Do nothing at a checkpoint: it is stored inside `ray.train.report`."""

    def waits(self) -> bool | None:
        return super().waits() if self._counts() else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
