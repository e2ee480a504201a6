"""Runs the process that suggests parameters, and explains why it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import sys

from allranks.api.sweep import SweepSpec
from allranks.core.sweeps.model import Suggestion
from allranks.errors import AllranksError
from allranks.fields import encode
from allranks.text import last_lines

SECONDS = 120.0
"""Time for one suggestion. On an idle machine it takes less than a second."""
NOT_INSTALLED = (
    "algorithm TPE needs the Python package optuna, which the operator's image does not have: build an image "
    "with it (docs/guides/sweeps.md); algorithms Random and Grid need nothing"
)


class CannotSuggest(AllranksError):
    """The process ended without parameters."""


async def suggest(spec: SweepSpec, request: Suggestion, seconds: float = SECONDS) -> dict[str, str]:
    """Return the parameters of the trial. Raises CannotSuggest."""
    assert spec.objective is not None
    if importlib.util.find_spec("optuna") is None:
        raise CannotSuggest(NOT_INSTALLED)
    parameters = spec.model_dump(by_alias=True, exclude_unset=True, mode="json")["parameters"]
    question = {
        "seed": spec.seed,
        "number": request.number,
        "goal": spec.objective.goal,
        "parameters": parameters,
        "trials": [encode(trial) for trial in request.ended],
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "allranks.suggest.tpe"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # Threads of numpy would only take memory.
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    try:
        async with asyncio.timeout(seconds):
            answer, errors = await process.communicate(json.dumps(question).encode())
    except TimeoutError as error:
        raise CannotSuggest(f"algorithm TPE gave no parameters within {seconds:.0f} s") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        raise CannotSuggest(f"algorithm TPE failed: {last_lines(errors.decode(errors='replace'), 1, 500)}")
    values: dict[str, str] = json.loads(answer)
    return values
