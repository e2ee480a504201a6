"""For TensorFlow: a callback that reports from `model.fit`, and `mark_gradients_ready`, which measures this rank's own
work in each step of a custom training loop."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped]

from allranks import report
from allranks.report.keras_fit import callback
from allranks.report.meter import Meter

_meter: Meter | None = None


ReportCallback = callback(tf.keras.callbacks.Callback)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def mark_gradients_ready(gradients: Any) -> Any:
    """Record when this rank's own work in the step is done; the rest of the step is waiting for other ranks.

    Call `gradients = mark_gradients_ready(gradients)` between the tape and `apply_gradients`. Return `gradients`.

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
        return tf.nest.map_structure(lambda tensor: tensor if tensor is None else tf.identity(tensor), gradients)


mark = mark_gradients_ready
"""The former name of `mark_gradients_ready`."""


def probe(gradient: Any) -> Any:
    """Return one value of the gradient, copied to the CPU: only then is it certain that the GPU has computed the
    gradient."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.reduce_sum(tf.reshape(values, [-1])[:1])


def _note(*ignored: Any) -> Any:
    if _meter is not None:
        _meter.work_done()
    return time.monotonic_ns()
