"""`metrics.jsonl`: one JSON object per epoch, each epoch once, however often the training was interrupted."""

from __future__ import annotations

import json
import os
from pathlib import Path

from common.checkpoints import write_atomically

ATTEMPT_VARIABLE = "ALLRANKS_ATTEMPT"


class MetricsLog:
    """Appends to the file; what it has of epochs that this run trains again is dropped first."""

    def __init__(self, path: Path, epochs_done: int) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in read_metrics(path) if int(str(line["epoch"])) <= epochs_done]
        write_atomically(path, b"".join(map(encode, kept)))

    def append(
        self, *, epoch: int, step: int, loss: float, accuracy: float, seconds: float, samples: int, world_size: int
    ) -> None:
        """`samples` are those of all ranks in this epoch, `step` counts from the first epoch on."""
        line: dict[str, object] = {
            "epoch": epoch,
            "step": step,
            "loss": round(loss, 6),
            "accuracy": round(accuracy, 6),
            "seconds": round(seconds, 4),
            "samples_per_second": round(samples / max(seconds, 1e-9), 1),
            "world_size": world_size,
        }
        attempt = os.environ.get(ATTEMPT_VARIABLE, "")
        if attempt:
            line["attempt"] = int(attempt) if attempt.isdecimal() else attempt
        with self._path.open("ab") as file:
            file.write(encode(line))


def encode(line: dict[str, object]) -> bytes:
    """One line of the file."""
    return json.dumps(line).encode() + b"\n"


def read_metrics(path: Path) -> list[dict[str, object]]:
    """The lines that are whole: the last one may be half written, by a rank that was killed."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_bytes().splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("epoch"), int):
            lines.append(line)
    return lines
