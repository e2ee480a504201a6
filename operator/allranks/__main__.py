"""Entry point of `allranks`, `python -m allranks` and, as a plugin of kubectl, `kubectl allranks`."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Runs the command line."""
    from allranks.cli.main import cli

    called = Path(sys.argv[0]).name if sys.argv else ""
    cli(prog_name="kubectl allranks" if called.startswith("kubectl-") else "allranks")


if __name__ == "__main__":
    main()
