"""The networks of the TensorFlow programs, in Keras 3 or legacy Keras (whichever `tf.keras` is)."""

from __future__ import annotations

from common.penguins import FEATURES, SPECIES
from common.tensorflow import tf


def penguin_net() -> tf.keras.Model:
    """(batch, 5) features to (batch, 3) logits."""
    return tf.keras.Sequential(
        [
            tf.keras.Input((FEATURES,)),
            tf.keras.layers.Dense(10, activation="relu"),
            tf.keras.layers.Dense(10, activation="relu"),
            tf.keras.layers.Dense(len(SPECIES)),
        ]
    )


def digit_net(side: int, channels: int, classes: int, peak: int) -> tf.keras.Model:
    """Maps (batch, rows, columns, channels) pixels from 0 to `peak` to (batch, classes) logits. A small VGG: pairs of
    3x3 convolutions, each twice as wide as the previous pair and followed by pooling, down to 2x2."""
    layers = [tf.keras.Input((side, side, channels)), tf.keras.layers.Rescaling(1 / peak, offset=-0.5)]
    width = 16
    while side > 2:
        for _ in range(2):
            # Not batch normalization: its running means would differ between replicas.
            layers.append(tf.keras.layers.Conv2D(width, 3, padding="same", use_bias=False))
            layers.append(tf.keras.layers.GroupNormalization(groups=4))
            layers.append(tf.keras.layers.ReLU())
        layers.append(tf.keras.layers.MaxPooling2D())
        width, side = 2 * width, side // 2
    head = [tf.keras.layers.Flatten(), tf.keras.layers.Dropout(0.25), tf.keras.layers.Dense(classes)]
    return tf.keras.Sequential([*layers, *head])
