"""The network for images in JAX: parameters are a dictionary of arrays, the network is a function."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp

Parameters = dict[str, jax.Array]
WIDTHS = (16, 32)
HIDDEN = 64


def digit_net(key: jax.Array, side: int, channels: int, classes: int) -> Parameters:
    """Parameters of a small VGG: two convolutions with pooling for each of `WIDTHS`, and two dense layers."""
    parameters: Parameters = {}
    for block, width in enumerate(WIDTHS):
        for layer in range(2):
            key, draw = jax.random.split(key)
            fan_in = 9 * channels
            parameters[f"conv{block}{layer}"] = jax.random.normal(draw, (3, 3, channels, width)) * (2 / fan_in) ** 0.5
            parameters[f"conv{block}{layer}_bias"] = jnp.zeros(width)
            channels = width
        side //= 2
    sizes = (side * side * channels, HIDDEN, classes)
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        key, draw = jax.random.split(key)
        parameters[f"dense{layer}"] = jax.random.normal(draw, (inputs, outputs)) * (2 / inputs) ** 0.5
        parameters[f"dense{layer}_bias"] = jnp.zeros(outputs)
    return parameters


def logits(parameters: Parameters, pixels: jax.Array, peak: int) -> jax.Array:
    """(images, classes) from pixels (images, rows, columns, channels) between 0 and `peak`."""
    x = pixels.astype(jnp.float32) / peak - 0.5
    for block in range(len(WIDTHS)):
        for layer in range(2):
            x = jax.lax.conv_general_dilated(
                x, parameters[f"conv{block}{layer}"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x + parameters[f"conv{block}{layer}_bias"])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(len(x), -1)
    x = jax.nn.relu(x @ parameters["dense0"] + parameters["dense0_bias"])
    return x @ parameters["dense1"] + parameters["dense1_bias"]
