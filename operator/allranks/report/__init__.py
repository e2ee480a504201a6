"""Tells the operator how far this rank is: `from allranks.report import report`.

It runs inside training programs, so it needs Python 3.9 and its standard library only, and never disturbs them: a call
takes microseconds, waits for nothing and raises nothing. A thread in the background sends the newest state. Outside of
a job (no ALLRANKS_REPORT_URL and ALLRANKS_REPORT_TOKEN_FILE) every call does nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from allranks.report.client import Client
    from allranks.report.meter import Meter

__all__ = ["finish", "report", "waiting"]

_client: Client | None = None
_meter: Meter | None = None
_looked = False  # whether we know if there is somebody to report to


def report(
    step: Any = None,
    total_steps: Any = None,
    epoch: Any = None,
    samples: Any = None,
    checkpoint: bool = False,
    busy: Any = None,
    **metrics: Any,
) -> None:
    """This rank has come so far; what is left out stays as it was.

    `step`: optimizer steps done, of all epochs; `total_steps`: of the whole training; `epoch`: epochs done; `samples`:
    of this rank since its last call; `checkpoint`: the state as of `step` is now safely stored; `busy`: seconds of this
    rank's own work in a step, without waiting for other ranks (the helpers measure it); `metrics`: up to 32 numbers.
    A number on a GPU is fetched later, by a thread of its own: give one that is not overwritten.
    """
    try:
        client = _client if _looked else _look()
        if client is not None:
            client.note(step, total_steps, epoch, samples, checkpoint, busy, metrics)
    except Exception as error:  # whatever it is: no training ends because of its reports
        _excuse(error)


def waiting() -> Any:
    """`with waiting(): dist.all_reduce(totals)`: this time is no work of this rank, and is left out of `busy`."""
    return _NOTHING if _meter is None else _meter.wait


def finish(timeout: float = 1.0) -> None:
    """The last report, sent now, in `timeout` seconds at most. Python does it at exit; programs that end by `os._exit`,
    or become another one by `os.exec...`, call it before."""
    try:
        if _client is not None:
            _client.finish(timeout)
    except Exception as error:
        _excuse(error)


def use_meter(meter: Meter) -> bool:
    """For the helpers: this measures `busy` from now on. False where there is nobody to report to."""
    global _meter
    client = _client if _looked else _look()
    if client is None:
        return False
    _meter = client.meter = meter
    return True


def answer_stacks(answer: Callable[[str], None]) -> None:
    """For `watch.py`: this is called when the operator asks for stacks, with its question."""
    client = _client if _looked else _look()
    if client is not None:
        client.answer_stacks = answer


def _look() -> Client | None:
    """Finds out, once, whether there is somebody to report to. What other threads report meanwhile is lost: they would
    have to wait."""
    global _client, _looked
    _looked = True
    url, token_file = os.environ.get("ALLRANKS_REPORT_URL"), os.environ.get("ALLRANKS_REPORT_TOKEN_FILE")
    if url and token_file:
        from allranks.report.client import Client

        _client = Client(url, token_file)
        os.register_at_fork(after_in_child=_forget)
    return _client


def _forget() -> None:
    """A forked process has none of our threads. It may be another rank: it begins anew if it reports."""
    global _client, _meter, _looked
    _client, _meter, _looked = None, None, False


def _excuse(error: Exception) -> None:
    from allranks.report.warn import tell_once

    tell_once("error", f"report() has failed: {type(error).__name__}: {error}")


class _Nothing:
    """A context that does nothing. (contextlib's is slower to import than all the rest here.)"""

    def __enter__(self) -> None: ...

    def __exit__(self, *ignored: object) -> None: ...


_NOTHING = _Nothing()
