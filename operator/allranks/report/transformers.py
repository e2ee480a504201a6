"""For the `Trainer` of Hugging Face and those that inherit from it (TRL, Unsloth): `Trainer(callbacks=[...])`."""

from __future__ import annotations

import time
from typing import Any

from transformers.trainer_callback import TrainerCallback  # type: ignore[import-not-found]

from allranks import report
from allranks.report.torch_agreement import checkpoint_due, checkpoint_requested
from allranks.report.warn import guarded


class ReportCallback(TrainerCallback):  # type: ignore[misc]
    """Reports steps, epochs, checkpoints, the numbers that the trainer logs, and the rate of samples of this rank. The
    trainer saves a checkpoint when the operator requests one, or one is due, unless its `save_strategy` is `no`."""

    _report = staticmethod(report.report)
    _loading_since: float | None = None

    @guarded
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._loading_since is not None:  # the batches of a step are fetched before it begins
            report.loaded(time.perf_counter() - self._loading_since)
        self._loading_since = None

    @guarded
    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._loading_since = time.perf_counter()

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._report(step=state.global_step, total_steps=state.max_steps if state.max_steps > 0 else None)

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._report(
            step=state.global_step,
            total_steps=state.max_steps if state.max_steps > 0 else None,
            epoch=None if state.epoch is None else int(state.epoch),
            samples=args.train_batch_size * args.gradient_accumulation_steps,
        )
        if args.save_strategy != "no" and (checkpoint_requested() or checkpoint_due()):
            control.should_save = True
        self._loading_since = time.perf_counter()

    @guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self._report(**named(logs or {}))
        self._loading_since = time.perf_counter()

    @guarded
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._report(step=state.global_step, epoch=None if state.epoch is None else round(state.epoch))

    @guarded
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The other ranks continue before the rank that writes it, except with shards, whose ranks wait for each other.
        self._report(step=state.global_step, checkpoint=bool(args.should_save))
        self._loading_since = time.perf_counter()

    @guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._report(step=state.global_step)


class AutomaticCallback(ReportCallback):
    """Added to programs by allranks. It is silent if the program itself reports its steps."""

    _report = staticmethod(report.report_automatically)


def named(logs: Any) -> dict[str, Any]:
    taken = ("step", "total_steps", "epoch", "samples", "checkpoint", "busy")
    return {name: value for name, value in logs.items() if name not in taken and isinstance(value, (int, float))}
