"""For Ray Train: `RunConfig(callbacks=[ReportCallback()])` reports what the ranks pass to `ray.train.report`."""

from __future__ import annotations

from typing import Any

from ray.train import UserCallback  # type: ignore[import-not-found,unused-ignore]

from allranks import report

_TAKEN = ("step", "total_steps", "epoch", "samples", "checkpoint", "busy")


class ReportCallback(UserCallback):  # type: ignore[misc,unused-ignore]
    """Reports the metrics of rank 0, and checkpoints. It runs in Ray Train's controller, once all ranks have reported.

    The metrics `step` and `epoch` are the progress. Without `step`, each `ray.train.report` counts as a step.
    `total_steps`: steps of the whole training, unless the metrics say it."""

    def __init__(self, total_steps: int | None = None) -> None:
        self._total_steps = total_steps
        self._reports = 0

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        self._reports += 1
        first = metrics[0] if metrics else {}
        named = {name: value for name, value in first.items() if name not in _TAKEN and _is_number(value)}
        report.report(
            step=first.get("step", self._reports),
            total_steps=first.get("total_steps", self._total_steps),
            epoch=first.get("epoch"),
            checkpoint=checkpoint is not None,
            **named,
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
