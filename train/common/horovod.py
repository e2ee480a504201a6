"""A guard against the quietest failure of Horovod: N jobs of one rank each, where one job of N was meant."""

from __future__ import annotations

import os

# Each launcher's name for the number of ranks that it has started.
SIZE_VARIABLES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def require_expected_size(size: int) -> None:
    """Raises SystemExit where Horovod has another size than the launcher: a Horovod that was built without MPI and is
    started by mpirun finds no other rank, and every process trains alone and succeeds."""
    for variable in SIZE_VARIABLES:
        expected = os.environ.get(variable)
        if expected and int(expected) != size:
            raise SystemExit(
                f"Horovod runs with {size} rank(s), {variable} says {expected}: was Horovod built without the "
                "controller that this launcher needs? `horovodrun --check-build` shows which ones it has"
            )
