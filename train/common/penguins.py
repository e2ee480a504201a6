"""The Palmer penguins as arrays: five features, and the species as the class."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.splits import stratified_split

CSV = Path(__file__).resolve().parent.parent / "data" / "penguins.csv"
SPECIES = ("Adelie", "Chinstrap", "Gentoo")
MEASUREMENTS = ("bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g")
SEX = {"male": 1.0, "female": -1.0, "NA": 0.0}
FEATURES = len(MEASUREMENTS) + 1
TEST_FRACTION = 0.25


@dataclass(frozen=True)
class Penguins:
    """Features (rows, 5) float32, standardized; labels (rows,) int64, indices into SPECIES."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def load_penguins(path: Path = CSV) -> Penguins:
    """The penguins in two disjoint parts. Mean and deviation come from the training part only."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if all(row[name] != "NA" for name in MEASUREMENTS)]
    x = np.array([[float(row[name]) for name in MEASUREMENTS] + [SEX[row["sex"]]] for row in rows])
    y = np.array([SPECIES.index(row["species"]) for row in rows], dtype=np.int64)

    train, test = stratified_split(y, TEST_FRACTION)
    mean, deviation = x[train].mean(axis=0), x[train].std(axis=0)
    x = ((x - mean) / deviation).astype(np.float32)
    return Penguins(x[train], y[train], x[test], y[test])
