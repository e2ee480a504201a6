"""`allranks` and `python -m allranks`."""

from __future__ import annotations


def main() -> None:
    """Runs the command line."""
    from allranks.cli.main import cli

    cli(prog_name="allranks")


if __name__ == "__main__":
    main()
