"""For TensorFlow: a callback that reports from `model.fit`, and `mark_gradients_ready`, which measures this rank's own
work in each step of a custom training loop."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped]

from allranks import report
from allranks.report.meter import Meter

_meter: Meter | None = None


class ReportCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """`model.fit(..., callbacks=[ReportCallback()])` reports steps, epochs and the metrics that Keras shows.

    `samples`: samples of this rank in a step, for the rate. `checkpoints`: whether callbacks before this one in the
    list save the model at the end of each epoch."""

    # Keras passes tensors and does not wait for the GPU to convert them to numbers.
    _supports_tf_logs = True

    def __init__(self, samples: int | None = None, checkpoints: bool = False) -> None:
        super().__init__()
        self._samples, self._checkpoints = samples, checkpoints
        self._step = self._first = 0
        self._total: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        optimizer = getattr(self.model, "optimizer", None)
        self._step = int(getattr(optimizer, "iterations", 0))  # more than 0 if weights were loaded

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._first = self._step
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        if steps and epochs:
            self._total = self._step + steps * (epochs - epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        done = self._first + batch + 1 - self._step  # several, with steps_per_execution
        self._step += done
        samples = self._samples * done if self._samples else None
        report.report(step=self._step, total_steps=self._total, samples=samples, **named(logs))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        report.report(step=self._step, epoch=epoch + 1, checkpoint=self._checkpoints, **named(logs))

    def on_train_end(self, logs: Any = None) -> None:
        report.report(step=self._step)


def named(logs: Any) -> dict[str, Any]:
    return {name: value for name, value in (logs or {}).items() if name not in ("step", "epoch", "samples", "busy")}


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def mark_gradients_ready(gradients: Any) -> Any:
    """`gradients = mark_gradients_ready(gradients)`, between the tape and `apply_gradients`, records when this rank's
    own work in the step is done; the rest of the step is waiting for other ranks. Returns `gradients`.

    Each step must end with its own `report(step=...)`, and collectives between two steps must be inside `with
    waiting():`. It calls Python in each step (about 0.1 ms) and does not work in XLA (`jit_compile`). Outside a job it
    does nothing and adds nothing to the graph."""
    global _meter
    if _meter is None:
        meter = Meter()
        if not report.use_meter(meter):
            return gradients
        _meter = meter
    ready = [gradient for gradient in tf.nest.flatten(gradients) if gradient is not None]
    probes = [probe(gradient) for gradient in ready] if tf.config.list_logical_devices("GPU") else []
    with tf.control_dependencies([] if probes else ready):
        noted = tf.numpy_function(_note, probes, tf.int64, stateful=True)
    with tf.control_dependencies([noted]):
        return tf.nest.map_structure(lambda each: each if each is None else tf.identity(each), gradients)


mark = mark_gradients_ready
"""The former name of `mark_gradients_ready`."""


def probe(gradient: Any) -> Any:
    """One value of the gradient, copied to the CPU: only then is it certain that the GPU has computed the gradient."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.reduce_sum(tf.reshape(values, [-1])[:1])


def _note(*ignored: Any) -> Any:
    if _meter is not None:
        _meter.work_done()
    return time.monotonic_ns()
