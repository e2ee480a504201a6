"""Reports the progress of this rank to the operator: `from allranks.report import report`.

The library runs inside training programs, so it needs only Python 3.9 and its standard library, and never disturbs
them: a call takes microseconds, does not block and does not raise. A background thread sends the newest state. Outside
a job (without ALLRANKS_REPORT_URL and ALLRANKS_REPORT_TOKEN_FILE) every call does nothing.
"""

from __future__ import annotations

import os
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from allranks.report.client import Client
    from allranks.report.meter import Meter

__all__ = ["checkpoint_due", "checkpoint_requested", "finish", "loading", "report", "resume_from", "waiting"]

_client: Client | None = None
_meter: Meter | None = None
_initialized = False  # whether the environment was read


def report(
    step: Any = None,
    total_steps: Any = None,
    epoch: Any = None,
    samples: Any = None,
    checkpoint: Any = False,
    busy: Any = None,
    **metrics: Any,
) -> None:
    """Report the progress of this rank. Omitted values keep their last value.

    `step`: optimizer steps done in all epochs. `total_steps`: steps of the whole training. `epoch`: epochs done.
    `samples`: samples of this rank since its last call. `checkpoint`: the state of `step` is stored safely, or
    the path where all ranks have stored it: rank 0 writes a manifest then, and `resume_from` skips what has none.
    `busy`: seconds of this rank's own work in a step, without waiting for other ranks (the helpers measure it).
    `metrics`: up to 32 numbers. A separate thread copies a number from a GPU later: pass a tensor that is not
    overwritten.
    """
    try:
        client = _client if _initialized else _initialize()
        if client is not None:
            if step is not None:
                client.program_reports = True
            if isinstance(checkpoint, (str, os.PathLike)):
                _record_checkpoint(checkpoint, client.last_step if step is None else step)
            client.note(step, total_steps, epoch, samples, bool(checkpoint), busy, metrics)
    except Exception as error:  # an error in reporting must not end the training
        _warn_of_error(error)


def report_automatically(
    step: Any = None,
    total_steps: Any = None,
    epoch: Any = None,
    samples: Any = None,
    checkpoint: bool = False,
    busy: Any = None,
    **metrics: Any,
) -> None:
    """Report like `report`, until the program itself reports a step. For callbacks that allranks adds to a program."""
    try:
        client = _client if _initialized else _initialize()
        if client is not None and not client.program_reports:
            client.note(step, total_steps, epoch, samples, checkpoint, busy, metrics)
    except Exception as error:
        _warn_of_error(error)


def _record_checkpoint(path: Any, step: Any) -> None:
    from allranks.report import checkpoints

    try:
        checkpoints.record(path, step)
    except (OSError, TypeError) as error:
        from allranks.report.warn import warn_once

        warn_once("manifest", f"report(): the checkpoint has no manifest: {type(error).__name__}: {error}")


def resume_from(directory: str | os.PathLike[str] | None = None) -> str | None:
    """Return the path of the newest complete checkpoint in a directory; None if there is none.

    `directory`: by default the one of ALLRANKS_CHECKPOINT_DIR. A checkpoint has its step in its name, or was reported
    with its path. After one that could not be read, the one before is returned. Raise OSError.
    """
    from allranks.report import checkpoints

    return checkpoints.resume_from(directory)


def checkpoint_requested() -> bool:
    """Return whether to store a checkpoint now, because the pods are about to be deleted: the job is suspended or
    resized.

    Call it after each step. `report(checkpoint=True)` after the checkpoint is stored makes it False again. The ranks of
    a job learn of the request at different times: if all of them store a checkpoint together, use the function of the
    same name in `allranks.report.pytorch`, or let one rank decide for all. False outside a job.
    """
    try:
        client = _client if _initialized else _initialize()
        return client is not None and client.checkpoint_requested()
    except Exception as error:
        _warn_of_error(error)
        return False


def checkpoint_due(step: Any = None) -> bool:
    """Return whether to store a checkpoint now, by `checkpoint.everySeconds` of the job: true once for each.

    Call it after each step. `step`: the completed steps; by default those that were reported last. The ranks receive
    the step of the next checkpoint in advance, so all of them get the same answer after the same step. Report the
    checkpoint before the next step: the time in between is what a save costs. False outside a job, and without
    `everySeconds`.
    """
    try:
        client = _client if _initialized else _initialize()
        return client is not None and client.checkpoint_due(step)
    except Exception as error:
        _warn_of_error(error)
        return False


def checkpoint_due_step() -> int:
    """Return the step of a checkpoint that is due since then; 0 if there is none. For the helpers."""
    client = _client if _initialized else _initialize()
    return 0 if client is None else client.due_step(client.last_step)


def checkpoint_begins() -> None:
    """Record that the program stores a checkpoint that is due. For the helpers."""
    if _client is not None:
        _client.begin_save(_client.last_step)


def checkpoint_request() -> int:
    """Return the number of the requested checkpoint; 0 if there is none, or if one was stored since. For the helpers.

    A later request has a larger number."""
    client = _client if _initialized else _initialize()
    return 0 if client is None else client.checkpoint_request()


def checkpoint_handled(number: int) -> None:
    """Record that this rank is done with the request of this number. For the helpers."""
    if _client is not None:
        _client.checkpoint_handled(number)


def is_enabled() -> bool:
    """Return whether this process reports, because it runs in a job. For the helpers."""
    return (_client if _initialized else _initialize()) is not None


def program_reports() -> bool:
    """Return whether the program itself has reported a step. For the helpers."""
    return _client is not None and _client.program_reports


def last_step() -> int | None:
    """Return the step that this process reported last, by any callback. For the helpers."""
    return None if _client is None else _client.last_step


def waiting() -> Any:
    """Say that this rank waits for others: `with waiting(): dist.all_reduce(totals)`.

    The time inside is no part of `busy`, and a rank that hangs there is not the cause of a hang.
    """
    try:
        if _meter is None and is_enabled():
            from allranks.report.meter import WaitMeter

            use_meter(WaitMeter())
    except Exception as error:
        _warn_of_error(error)
    return _NOTHING if _meter is None else _meter.wait


def loading(batches: Any) -> Any:
    """Measure how long the program waits for its data: `for batch in loading(loader):`.

    `batches` is any iterable; the items are passed on as they are."""
    iterator = iter(batches)
    while True:
        began = time.perf_counter()
        try:
            batch = next(iterator)
        except StopIteration:
            return
        loaded(time.perf_counter() - began)
        yield batch


def loaded(seconds: float) -> None:
    """Add the time for which the program has waited for data. For the helpers."""
    try:
        client = _client if _initialized else _initialize()
        if client is not None:
            client.loaded = (client.loaded or 0.0) + seconds
    except Exception as error:
        _warn_of_error(error)


def finish(timeout: float = 1.0) -> None:
    """Send the last report now; block for at most `timeout` seconds. This runs at exit.

    Programs that end with `os._exit` or `os.exec...` must call it first."""
    try:
        if _client is not None:
            _client.finish(timeout)
    except Exception as error:
        _warn_of_error(error)


def use_meter(meter: Meter) -> bool:
    """Let `meter` measure `busy` from now on. Return False outside a job. For the helpers."""
    global _meter
    client = _client if _initialized else _initialize()
    if client is None:
        return False
    _meter = client.meter = meter
    return True


def answer_stacks(answer: Callable[[str], None]) -> None:
    """Set the function that is called with the ID of a stack dump that the operator requests. For `watch.py`."""
    client = _client if _initialized else _initialize()
    if client is not None:
        client.answer_stacks = answer


def _initialize() -> Client | None:
    """Read the environment once. Reports from other threads during the call are lost, because they would have to
    wait."""
    global _client, _initialized
    _initialized = True
    url, token_file = os.environ.get("ALLRANKS_REPORT_URL"), os.environ.get("ALLRANKS_REPORT_TOKEN_FILE")
    if url and token_file:
        from allranks.report.client import Client

        _client = Client(url, token_file)
        os.register_at_fork(after_in_child=forget)
    return _client


def forget() -> None:
    """Forget the client; the next report makes a new one. A forked process has no background threads, and it may be
    another rank; `watch.py` may start another attempt."""
    global _client, _meter, _initialized
    _client, _meter, _initialized = None, None, False


def _warn_of_error(error: Exception) -> None:
    from allranks.report.warn import warn_once

    warn_once("error", f"report() failed: {type(error).__name__}: {error}")


class _Package(ModuleType):
    """This package, which `from allranks import report` gives. Users mean the function of the same name."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError(
            "allranks.report is a module: import the function with `from allranks.report import report`, and call "
            "report(step=...)"
        )

    def __reduce__(self) -> Any:  # cloudpickle and dill know modules by their exact type
        from importlib import import_module

        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package


class _Nothing:
    """A context that does nothing. (Importing contextlib takes longer than all other imports here.)"""

    def __enter__(self) -> None: ...

    def __exit__(self, *ignored: object) -> None: ...


_NOTHING = _Nothing()


def _watch_checkpoints() -> None:
    """List the checkpoints from the start of the program: it may fail while it reads the newest one."""
    try:
        from allranks.report import checkpoints

        checkpoints.start_watch()
    except Exception as error:
        _warn_of_error(error)


if "ALLRANKS_CHECKPOINT_DIR" in os.environ:
    _watch_checkpoints()
