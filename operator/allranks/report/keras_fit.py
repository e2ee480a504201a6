"""The callback for `model.fit`, for Keras 3 with each backend and legacy Keras. It imports no Keras itself."""

from __future__ import annotations

from typing import Any

from allranks import report
from allranks.report.warn import guarded


def callback(base: Any) -> Any:
    """Return the callback class of this Keras, whose `Callback` is `base`."""
    is_keras_3 = base.__module__.endswith("callbacks.callback")  # a package since Keras 3

    class ReportCallback(base):  # type: ignore[misc]
        """`model.fit(..., callbacks=[ReportCallback()])` reports steps, epochs and the metrics that Keras shows.

        `samples`: samples of this rank in a step, for the rate. `checkpoints`: whether callbacks before this one in
        the list save the model at the end of each epoch."""

        # Keras passes tensors and does not wait for the GPU to convert them to numbers.
        _supports_tf_logs = True
        _report = staticmethod(report.report)

        def __init__(self, samples: int | None = None, checkpoints: bool = False) -> None:
            super().__init__()
            self._samples, self._checkpoints = samples, checkpoints
            self._step = self._first = 0
            self._total: int | None = None

        @guarded
        def on_train_begin(self, logs: Any = None) -> None:
            iterations = getattr(getattr(self.model, "optimizer", None), "iterations", 0)
            read = getattr(iterations, "numpy", None)  # a variable of a distribution strategy has no int()
            self._step = int(iterations if read is None else read())  # more than 0 if weights were loaded

        @guarded
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._first = self._step
            steps, epochs = self.params.get("steps"), self.params.get("epochs")
            if steps and epochs:
                self._total = self._step + steps * (epochs - epoch)

        @guarded
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            done = self._first + batch + 1 - self._step  # several, with steps_per_execution
            if done <= 0:
                return  # Keras called the hooks of two batches in two threads
            self._step += done
            samples = self._samples * done if self._samples else None
            metrics = named(logs)
            if not is_keras_3 and (replicas := summed_replicas(self.model)) > 1:
                metrics = {name: Mean(value, replicas) for name, value in metrics.items()}
            self._report(step=self._step, total_steps=self._total, samples=samples, **metrics)

        @guarded
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._report(step=self._step, epoch=epoch + 1, checkpoint=self._checkpoints, **named(logs))

        @guarded
        def on_train_end(self, logs: Any = None) -> None:
            self._report(step=self._step)

    return ReportCallback


def automatic_callback(base: Any) -> Any:
    """Return the class of the callback that is added to programs. It is silent if the program itself reports its
    steps."""

    class AutomaticCallback(callback(base)):  # type: ignore[misc]
        async_safe = True  # Keras 3 runs hooks in a thread if all callbacks allow it
        _report = staticmethod(report.report_automatically)

    return AutomaticCallback


def summed_replicas(model: Any) -> int:
    """Return over how many replicas Keras 2 adds up the losses and accuracies of a batch, which Keras 3 averages.

    Those of an epoch are means in both. Versions without the method take the values of the first replica."""
    strategy, method = getattr(model, "distribute_strategy", None), getattr(model, "distribute_reduction_method", "")
    if method not in ("auto", "sum") or "TPU" in type(strategy).__name__:
        return 1
    return int(getattr(strategy, "num_replicas_in_sync", 1))


class Mean:
    """A sum over replicas as their mean, which is computed when it is sent: the sum may still be on its way."""

    def __init__(self, value: Any, replicas: int) -> None:
        self._value, self._replicas = value, replicas

    def numpy(self) -> float:
        return float(self._value) / self._replicas


def named(logs: Any) -> dict[str, Any]:
    return {name: value for name, value in (logs or {}).items() if name not in ("step", "epoch", "samples", "busy")}
