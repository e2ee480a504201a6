"""Text as bytes for the language model: files, or the reference of the Python language, which is part of Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

TEST_FRACTION = 0.1
VOCABULARY = 256  # every byte


def load_text(files: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """The bytes (uint8) for training, and the last tenth of them for the test.

    Raises SystemExit if a file cannot be read or the text is too short."""
    if files:
        try:
            content = b"\n".join(path.read_bytes() for path in files)
        except OSError as error:
            raise SystemExit(f"--text {error.filename}: {error.strerror}") from error
    else:
        try:
            from pydoc_data.topics import topics
        except ImportError as error:
            raise SystemExit("this Python comes without its reference (pydoc_data): pass files with --text") from error
        content = "\n".join(topics[name] for name in sorted(topics)).encode()
    everything = np.frombuffer(content, np.uint8)
    kept = len(everything) - int(len(everything) * TEST_FRACTION)
    return everything[:kept], everything[kept:]


def windows(text: np.ndarray, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets, both (len(starts), length) int64: a target is the byte after its input."""
    chunks = text[starts[:, None] + np.arange(length + 1)].astype(np.int64)
    return chunks[:, :-1], chunks[:, 1:]


def batch_starts(text: np.ndarray, count: int, length: int, seed: int, step: int) -> np.ndarray:
    """Where the `count` random windows of a step begin. They depend only on the seed and the step: they are the same
    for any number of ranks, and after a resume."""
    return np.random.default_rng((seed, step)).integers(0, len(text) - length, count)


def test_starts(text: np.ndarray, count: int, length: int) -> np.ndarray:
    """Where `count` windows begin that are spread evenly over the text."""
    return np.linspace(0, len(text) - length - 1, count).astype(np.int64)
