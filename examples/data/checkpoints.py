"""Fits a line by gradient descent, and stores a checkpoint every 20 steps. It continues from the newest one."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

from allranks.report import report, resume_from

STEPS, EVERY, KEEP = 100, 20, 2
POINTS = [(x / 10, 3 * x / 10 + 1) for x in range(-10, 11)]


def main() -> None:
    folder = Path(os.environ["ALLRANKS_CHECKPOINT_DIR"])
    newest = resume_from()
    state = json.loads(Path(newest, "model.json").read_text()) if newest else {"step": 0, "slope": 0.0, "offset": 0.0}
    if newest:  # says which checkpoint there is: a run that has nothing left to do has one too
        report(step=state["step"], total_steps=STEPS, checkpoint=True)
    for step in range(state["step"] + 1, STEPS + 1):
        errors = [(state["slope"] * x + state["offset"] - y, x) for x, y in POINTS]
        state["slope"] -= 0.1 * sum(error * x for error, x in errors) / len(errors)
        state["offset"] -= 0.1 * sum(error for error, _ in errors) / len(errors)
        state["step"] = step
        time.sleep(0.1)
        stored = save(folder, state) if step % EVERY == 0 else False
        loss = sum(error**2 for error, _ in errors) / len(errors)
        report(step=step, total_steps=STEPS, checkpoint=stored, loss=loss)
    print(f"slope {state['slope']:.2f}, offset {state['offset']:.2f}")


def save(folder: Path, state: dict[str, float]) -> Path:
    """Return the folder with the step in its name, which appears as a whole. Old ones are deleted."""
    unfinished, target = folder / "unfinished", folder / f"checkpoint-{state['step']}"
    unfinished.mkdir(exist_ok=True)
    (unfinished / "model.json").write_text(json.dumps(state))
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)
    shutil.rmtree(folder / f"checkpoint-{int(state['step']) - KEEP * EVERY}", ignore_errors=True)
    return target


if __name__ == "__main__":
    main()
