"""The held-out samples: the same for every program, number of ranks and training seed."""

from __future__ import annotations

import numpy as np

# A separate seed, so that --seed changes the training and never the test data.
HELD_OUT_SEED = 2014


def stratified_split(labels: np.ndarray, fraction: float, seed: int = HELD_OUT_SEED) -> tuple[np.ndarray, np.ndarray]:
    """Indices (kept, held out), both ascending, with `fraction` of each class held out, rounded and at least one."""
    generator = np.random.default_rng(seed)
    held_out = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = max(1, round(fraction * len(members)))
        held_out.append(generator.permutation(members)[:count])
    mask = np.zeros(len(labels), dtype=bool)
    mask[np.concatenate(held_out)] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)
