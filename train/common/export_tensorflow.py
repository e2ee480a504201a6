"""The end of a training of the penguins: the model in a file, loaded as another program would, and a prediction."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from common.journal import Journal, say
from common.penguins import FEATURES, NEW_PENGUIN, Penguins, features, prediction
from common.tensorflow import tf


def export_and_predict(journal: Journal, net: tf.keras.Model, penguins: Penguins) -> None:
    """Rank 0 saves the network with the scale of the features before it and the probabilities behind it, loads this
    model, and predicts the species of a new penguin."""
    if journal.rank:
        return
    layers = tf.keras.layers
    scale = layers.Normalization(mean=penguins.mean.tolist(), variance=(penguins.deviation**2).tolist())
    model = tf.keras.Sequential([tf.keras.Input((FEATURES,)), scale, net, layers.Softmax()])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.keras"
        model.save(file)
        path = journal.export("model.keras", file.read_bytes())
    if path:
        loaded = tf.keras.models.load_model(path)
        probabilities = loaded(np.array([features(NEW_PENGUIN)], np.float32)).numpy()[0]
        say(f"model saved as {path} and loaded again: {prediction(probabilities)}")
