"""What the callback for Keras reports of a batch under a distribution strategy, without Keras."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from allranks.report.keras_fit import callback
from allranks.report.values import metric


def reported(module: str, logs: dict[str, Any], **model: Any) -> dict[str, float]:
    """The metrics of a batch with these logs, as they are sent."""
    base = type("Callback", (), {"__module__": module})
    sent: dict[str, Any] = {}
    ours = callback(base)()
    ours.model = SimpleNamespace(**model)
    ours._report = lambda **values: sent.update(values)
    ours.on_train_batch_end(0, logs)
    metrics = {name: metric(sent[name]) for name in logs}
    return {name: value() if callable(value) else value for name, value in metrics.items()}


KERAS_2, KERAS_3 = "tf_keras.src.callbacks", "keras.src.callbacks.callback"
TWO = SimpleNamespace(num_replicas_in_sync=2)


@pytest.mark.parametrize(
    ("module", "strategy", "method", "accuracy"),
    [
        (KERAS_2, TWO, "auto", 0.75),
        (KERAS_2, TWO, "first", 1.5),
        (KERAS_2, SimpleNamespace(num_replicas_in_sync=1), "auto", 1.5),
        (KERAS_2, type("TPUStrategyV2", (), {"num_replicas_in_sync": 2})(), "auto", 1.5),
        (KERAS_3, TWO, "auto", 1.5),
    ],
    ids=["Keras 2 adds up", "it takes the first", "one replica", "TPUs", "Keras 3 averages"],
)
def test_the_metrics_of_a_batch_are_the_mean_of_its_replicas(
    module: str, strategy: Any, method: str, accuracy: float
) -> None:
    model = {"distribute_strategy": strategy, "distribute_reduction_method": method}
    assert reported(module, {"accuracy": 1.5, "loss": 2.0}, **model)["accuracy"] == accuracy


def test_a_model_without_a_strategy_reports_its_logs_as_they_are() -> None:
    assert reported(KERAS_2, {"loss": 2.0}) == {"loss": 2.0}
