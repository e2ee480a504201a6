"""Shows a run or a job as rich output of a notebook, for `allranks.run` and `job.show`.

An interrupt of a run asks before it stops the run.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from allranks.sdk.run_view import NotebookView, RunView

RUN_SECONDS = 1.0
"""Interval between reads of a run directory."""
JOB_SECONDS = 5.0
"""Interval between reads of a job on a cluster. The ranks report as often."""


def in_notebook() -> bool:
    """Return whether the caller runs in the kernel of a notebook. IPython is not imported for this."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


class Shown(Protocol):
    """A view that is displayed as it was read last."""

    def read(self) -> NotebookView: ...


def shown(directory: Path, job: str) -> contextlib.AbstractContextManager[None]:
    """Display the run, and its changes until the end of the block. Outside of a notebook this does nothing."""
    return displayed(RunView(directory, job), RUN_SECONDS)


@contextlib.contextmanager
def displayed(view: Shown, seconds: float) -> Iterator[None]:
    """Display the view, and read it again every `seconds`. Outside of a notebook this does nothing."""
    if not in_notebook():
        yield
        return
    from IPython import display as ipython

    display: Any = ipython.display  # untyped
    handle = display(view, display_id=True)
    over = threading.Event()
    thread = threading.Thread(target=_refresh, args=(view, handle, over, seconds), name="allranks-view", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with contextlib.suppress(Exception):
            view.read()
        handle.update(view)


def _refresh(view: Shown, handle: Any, over: threading.Event, seconds: float) -> None:
    before = None
    while not over.wait(seconds):
        with contextlib.suppress(Exception):  # a display must not end the training
            now = view.read()
            if now != before:
                before = now
                handle.update(view)


def confirm_stop(job: str) -> Callable[[], bool]:
    """Return a function that says whether an interrupt stops the job: in a notebook it asks the user, elsewhere yes."""
    if not in_notebook():
        return lambda: True
    interrupts = 0

    def ask() -> bool:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            return True
        try:
            answer = input(f"Stop {job}? Its ranks get SIGTERM and may save. [y/N] ")
        except KeyboardInterrupt:  # a second interrupt is an answer
            return True
        except (NotImplementedError, EOFError):  # the notebook has no input
            print(f"{job} continues. Interrupt again to stop it.", flush=True)
            return False
        interrupts = 0
        return answer.strip().lower() in ("y", "yes")

    return ask
