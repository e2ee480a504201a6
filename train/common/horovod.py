"""A check against a silent failure of Horovod: N jobs of one rank each instead of one job of N ranks."""

from __future__ import annotations

import os

# The variables of the launchers for the number of ranks.
SIZE_VARIABLES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def require_expected_size(size: int) -> None:
    """Raises SystemExit if Horovod has another size than the launcher. A Horovod without MPI under mpirun finds no
    other rank: every process trains alone and succeeds."""
    for variable in SIZE_VARIABLES:
        expected = os.environ.get(variable)
        if expected and int(expected) != size:
            raise SystemExit(
                f"Horovod runs with {size} rank(s), {variable} says {expected}: was Horovod built without the "
                "controller that this launcher needs? `horovodrun --check-build` shows which ones it has"
            )
