"""Entry point of `allranks`, `python -m allranks` and, as a plugin of kubectl, `kubectl allranks`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, also while modules are imported."""
    try:
        from allranks.cli.main import cli
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)

    called = Path(sys.argv[0]).name if sys.argv else ""
    cli(prog_name="kubectl allranks" if called.startswith("kubectl-") else "allranks")


if __name__ == "__main__":
    main()
