"""`metrics.jsonl`: one JSON object for each epoch, also after interruptions and after late lines of a replaced
training."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from common.claims import ATTEMPT_VARIABLE, Claim

NAME = "metrics.jsonl"


class MetricsLog:
    """Appends to the file. First drops lines of epochs that this run trains again.

    Valid lines are those kept at the start and those appended since. Any other line in the file comes from a replaced
    run; the next `append` removes it.
    """

    def __init__(self, claim: Claim, epochs_done: int) -> None:
        """Raises Replaced, as `append` does, if another training has claimed the directory."""
        self._claim = claim
        self._path = claim.directory / NAME
        kept = [line for line in read_metrics(self._path) if line["epoch"] <= epochs_done]
        self._content = b"".join(map(encode, kept))
        claim.write(self._path, self._content)

    def append(
        self,
        *,
        epoch: int,
        step: int,
        loss: float,
        validation_loss: float,
        accuracy: float,
        seconds: float,
        samples: int,
        world_size: int,
    ) -> None:
        """`samples` of all ranks in this epoch; `step` counts from the first epoch; `accuracy` is that of the
        validation."""
        line: dict[str, object] = {
            "epoch": epoch,
            "step": step,
            "loss": round(loss, 6),
            "validation_loss": round(validation_loss, 6),
            "accuracy": round(accuracy, 6),
            "seconds": round(seconds, 4),
            "samples_per_second": round(samples / max(seconds, 1e-9), 1),
            "world_size": world_size,
            "claim": self._claim.number,
        }
        attempt = os.environ.get(ATTEMPT_VARIABLE, "")
        if attempt:
            line["attempt"] = int(attempt) if attempt.isdecimal() else attempt
        self._claim.check()
        if not self._path.exists() or self._path.read_bytes() != self._content:
            self._claim.write(self._path, self._content)
        with self._path.open("ab") as file:
            file.write(encode(line))
        self._content += encode(line)


def encode(line: dict[str, object]) -> bytes:
    """One line of the file."""
    return json.dumps(line).encode() + b"\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """One line for each epoch in order: the last line of the newest claim. Skips an incomplete line of a killed
    rank."""
    if not path.exists():
        return []
    lines: list[dict[str, Any]] = []
    for text in path.read_bytes().splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("epoch"), int):
            lines.append(line)
    lines.sort(key=lambda line: int(line.get("claim", 0)))  # stable: keeps the order within a claim
    by_epoch = {line["epoch"]: line for line in lines}
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]
