"""Which samples are held out: the same ones for every program, every number of ranks and every training seed."""

from __future__ import annotations

import numpy as np

# Its own seed, so that --seed changes the training and never what the training is judged by.
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
