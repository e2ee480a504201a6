"""Small labeled images: scikit-learn's digits, or CIFAR-10 in either of its two formats."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.splits import stratified_split

VALIDATION_FRACTION = 0.1
DIGITS_TEST_FRACTION = 0.2
CIFAR_SHAPE = (3, 32, 32)  # channels, rows, columns: 3072 bytes an image
CIFAR_FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin")


@dataclass(frozen=True)
class Images:
    """Pixels (images, rows, columns, channels) uint8 from 0 to `peak`; labels (images,) int64 from 0 to classes - 1."""

    train_x: np.ndarray
    train_y: np.ndarray
    validation_x: np.ndarray
    validation_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    peak: int
    classes: int


def load_images(path: Path | None) -> Images:
    """CIFAR-10 from the folder `path`, or the 1797 digits of scikit-learn. Three disjoint parts: for training, for
    early stopping, and for the test."""
    if path is None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        x, y, peak = digits.images.astype(np.uint8)[..., None], digits.target.astype(np.int64), 16
        kept, test = stratified_split(y, DIGITS_TEST_FRACTION)
        x, y, test_x, test_y = x[kept], y[kept], x[test], y[test]
    else:
        (x, y), (test_x, test_y), peak = *read_cifar10(path), 255
    train, validation = stratified_split(y, VALIDATION_FRACTION)
    classes = int(max(y.max(), test_y.max())) + 1
    return Images(x[train], y[train], x[validation], y[validation], test_x, test_y, peak, classes)


def read_cifar10(folder: Path) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """(pixels, labels) for training, from all `data_batch_*` files, and for testing, from `test_batch`.

    Raises SystemExit if the folder does not contain CIFAR-10, or it is damaged."""
    for name in CIFAR_FOLDERS:
        folder = folder / name if (folder / name).is_dir() else folder
    batches = sorted(path for path in folder.glob("data_batch_*") if path.suffix in ("", ".bin"))
    tests = [path for path in (folder / "test_batch", folder / "test_batch.bin") if path.is_file()]
    if not batches or not tests:
        raise SystemExit(
            f"{folder}: no CIFAR-10 here. Expected data_batch_1 ... data_batch_5 and test_batch (Python version), or "
            "the same names with .bin (binary version), unpacked"
        )
    parts = [read_cifar10_batch(path) for path in batches]
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return (pixels, labels), read_cifar10_batch(tests[0])


def read_cifar10_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (images, 32, 32, 3) and labels of one file. Raises SystemExit if the format is wrong."""
    content = path.read_bytes()
    try:
        planes, labels = parse_binary(content) if path.suffix == ".bin" else parse_pickle(content)
        if planes.dtype != np.uint8 or len(planes) != len(labels) or not len(labels):
            raise ValueError(f"{len(planes)} images of {planes.dtype} and {len(labels)} labels")
        images = planes.reshape(-1, *CIFAR_SHAPE).transpose(0, 2, 3, 1)
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, IndexError, pickle.UnpicklingError) as error:
        raise SystemExit(f"{path} is not a batch of CIFAR-10: {error}") from error
    return np.ascontiguousarray(images), labels.astype(np.int64)


def parse_binary(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Records of one byte for the label and 3072 bytes of pixels: the red plane, then green, then blue, row by row."""
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + int(np.prod(CIFAR_SHAPE)))
    return records[:, 1:], records[:, 0]


def parse_pickle(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """A dictionary pickled by Python 2, so its keys are bytes. The pixels are in the same order."""
    batch = ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    return batch[b"data"], np.asarray(batch[b"labels"])


class ArraysOnly(pickle.Unpickler):
    """Unpickles only the types in CIFAR-10: a pickle can call any function, and this one was downloaded."""

    ALLOWED = {
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),  # how Python 3 writes bytes in the old protocols
    }

    def find_class(self, module: str, name: str) -> Any:
        """Raises UnpicklingError for other types than arrays."""
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it wants to call {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)
