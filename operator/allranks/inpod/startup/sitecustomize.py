"""Lets every Python that `watch.py` starts show its stacks when asked by a signal: Python imports this file at start.

The handler is in C and needs no lock of the interpreter, so it answers from within a hung collective too. What the
environment itself has as `sitecustomize` runs as well.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    _show_stacks_on_signal(os.environ.get("ALLRANKS_STACKS_SIGNAL", ""))
    _run_the_environments_own()


def _show_stacks_on_signal(number: str) -> None:
    if not number.isdecimal():
        return
    import faulthandler

    try:  # noqa: SIM105 (contextlib is not imported yet, and all Pythons would wait for it)
        faulthandler.register(int(number), file=2, all_threads=True)
    except (AttributeError, OSError, RuntimeError, ValueError):
        pass  # no such signal here, or no stderr


def _run_the_environments_own() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.realpath(os.path.dirname(__file__))  # noqa: PTH120 (as above)
    elsewhere = [path for path in sys.path if os.path.realpath(path or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


main()
