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
HELD_OUT_FRACTION = 0.25
NEW_PENGUIN = {
    "bill_length_mm": "48.2",
    "bill_depth_mm": "14.9",
    "flipper_length_mm": "218",
    "body_mass_g": "5250",
    "sex": "male",
}
"""A penguin that is not in the data."""


@dataclass(frozen=True)
class Penguins:
    """Features (rows, 5) float32, standardized with `mean` and `deviation`; labels (rows,) int64, indices into
    SPECIES."""

    train_x: np.ndarray
    train_y: np.ndarray
    validation_x: np.ndarray
    validation_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray


def load_penguins(path: Path = CSV) -> Penguins:
    """The penguins in three disjoint parts: for training, for the validation after each epoch, by which a sweep
    chooses, and for the test at the end. Mean and deviation come from the training part only."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if all(row[name] != "NA" for name in MEASUREMENTS)]
    x = np.array([features(row) for row in rows])
    y = np.array([SPECIES.index(row["species"]) for row in rows], dtype=np.int64)

    train, held_out = stratified_split(y, HELD_OUT_FRACTION)
    validation, test = (held_out[part] for part in stratified_split(y[held_out], 0.5))
    mean, deviation = x[train].mean(axis=0), x[train].std(axis=0)
    x = ((x - mean) / deviation).astype(np.float32)
    return Penguins(x[train], y[train], x[validation], y[validation], x[test], y[test], mean, deviation)


def features(row: dict[str, str]) -> list[float]:
    """The features of one row of the file, in their units."""
    return [float(row[name]) for name in MEASUREMENTS] + [SEX[row["sex"]]]


def prediction(probabilities: np.ndarray) -> str:
    """A line about NEW_PENGUIN with the probability of each species."""
    measured = ", ".join(f"{name} {value}" for name, value in NEW_PENGUIN.items())
    named = ", ".join(f"{name} {value:.4f}" for name, value in zip(SPECIES, probabilities, strict=True))
    return f"a new penguin ({measured}) is predicted to be {SPECIES[int(np.argmax(probabilities))]}: {named}"
