"""Makes every Python below `watch.py` dump its stacks on a signal, and at a crash: Python imports this file at start.

The handler is in C and does not need the GIL, so it also works inside a hung collective. In JAX jobs it also prepares
`jax.distributed.initialize()`, and in Ray jobs the Keras of `TensorflowTrainer`. An exception in a rank of mpi4py
ends all ranks. Programs of Hugging Face, Lightning, Keras and Ray Train get a callback that reports. In jobs with a
directory for checkpoints, the checkpoints in it are reported. A process in a group that is smaller than the job
reports its rank. A `sitecustomize` of the environment itself runs as well.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing would delay the start of every Python
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    prepared = "ALLRANKS_PREPARE" in os.environ
    if not prepared:
        _show_stacks()
    if "JAX_PROCESS_ID" in os.environ:
        import jax_cluster  # type: ignore[import-not-found]  # in the same directory

        jax_cluster.install()
    if "OMPI_COMM_WORLD_RANK" in os.environ or "PMI_RANK" in os.environ:
        import allranks_import_hooks  # type: ignore[import-not-found]

        allranks_import_hooks.after_import("mpi4py.MPI", _abort_after_exception)
    if "RAY_ADDRESS" in os.environ or "RAY_RAYLET_PID" in os.environ:  # a driver, or a process that Ray starts
        import allranks_import_hooks

        allranks_import_hooks.before_import("ray.train.tensorflow", _use_legacy_keras)
    reports = _reports_automatically()
    if reports and not prepared and "ALLRANKS_CHECKPOINT_DIR" in os.environ:
        _watch_checkpoints()
    if reports:
        import allranks_automatic_reports  # type: ignore[import-not-found]

        allranks_automatic_reports.install()
    if reports and not prepared and _is_copy():
        _report_rank()
    _run_original_sitecustomize()
    if prepared:
        _wait_for_begin(reports)


def _wait_for_begin(reports: bool) -> None:
    """Import in advance, wait, and do then what begins something: handlers of signals, threads and reports."""
    import allranks_import_hooks
    import allranks_prepared  # type: ignore[import-not-found]

    allranks_prepared.wait()
    _show_stacks()
    if reports and "ALLRANKS_CHECKPOINT_DIR" in os.environ:
        _watch_checkpoints()
    allranks_import_hooks.run_deferred()
    if reports and _is_copy():
        _report_rank()


def _watch_checkpoints() -> None:
    """Import the library, which lists the checkpoints: the program itself may report nothing.

    Below a process that lists them, such as torchrun, it is imported only if the program fails."""
    if "ALLRANKS_CHECKPOINTS_WATCHED_BY" in os.environ:
        import atexit

        atexit.register(_list_checkpoints_after_exception, os.getpid())
        return
    try:  # noqa: SIM105
        import allranks.report  # noqa: F401
    except ImportError:
        pass  # PYTHONPATH is the program's own


def _list_checkpoints_after_exception(process: int) -> None:
    if getattr(sys, "last_value", None) is not None:
        try:
            from allranks.report import checkpoints
        except ImportError:
            return
        checkpoints.list_after_exception(process)


def _abort_after_exception(mpi: Any) -> None:
    """Make an exception that ends this rank of MPI end all ranks, as `python3 -m mpi4py` does.

    At exit, mpi4py waits in MPI_Finalize for the other ranks, which wait in a collective for this one."""
    import atexit

    def abort() -> None:
        if hasattr(sys, "last_value") and mpi.Is_initialized() and not mpi.Is_finalized():
            for stream in (sys.stdout, sys.stderr):
                if stream is not None and not stream.closed:
                    stream.flush()
            mpi.COMM_WORLD.Abort(1)

    atexit.register(abort)


def _use_legacy_keras() -> None:
    """Choose legacy Keras for Ray's TensorflowTrainer, whose ranks cannot use `fit` of Keras 3.

    Ray chooses it as well, but only after its own import of TensorFlow has loaded Keras 3."""
    from importlib.util import find_spec

    if find_spec("tf_keras"):
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")


def _reports_automatically() -> bool:
    """Return whether reports are added to programs: a `logPattern` is the user's own choice of what is reported."""
    env = os.environ
    if env.get("DISABLE_ALLRANKS_INTEGRATION", "").upper() == "TRUE" or env.get("ALLRANKS_LOG_PATTERN"):
        return False
    return bool(env.get("ALLRANKS_REPORT_URL") and env.get("ALLRANKS_REPORT_TOKEN_FILE"))


def _report_rank() -> None:
    """Report the number of this rank: it shows that other pods have a rank of the same number."""
    try:
        from allranks.report import report
    except ImportError:
        return  # PYTHONPATH is the program's own
    report()


def _is_copy() -> bool:
    """Return whether a launcher of the program's own gave this process a group that is smaller than the job."""
    size, pods = os.environ.get("WORLD_SIZE", ""), os.environ.get("NNODES", "")
    return size.isdecimal() and pods.isdecimal() and int(size) < int(pods)


def _show_stacks() -> None:
    """Show the stacks on the signal of the supervisor, and when a signal such as SIGSEGV ends this process.

    For the latter, PYTHONFAULTHANDLER of the program comes first, also if it is empty."""
    import faulthandler

    if "PYTHONFAULTHANDLER" not in os.environ and not faulthandler.is_enabled():
        try:  # noqa: SIM105 (importing contextlib would delay the start of every Python)
            faulthandler.enable(file=2, all_threads=False)  # the reason is in the thread that crashes
        except (OSError, RuntimeError, ValueError):
            pass  # no stderr
    number = os.environ.get("ALLRANKS_STACKS_SIGNAL", "")
    if not number.isdecimal():
        return
    try:  # noqa: SIM105 (importing contextlib would delay the start of every Python)
        faulthandler.register(int(number), file=2, all_threads=True)
    except (AttributeError, OSError, RuntimeError, ValueError):
        pass  # no such signal here, or no stderr


def _run_original_sitecustomize() -> None:
    from importlib.machinery import PathFinder

    # Not from another copy of this directory, which would run this one again.
    elsewhere = [path for path in sys.path if not os.path.exists(f"{path or '.'}/allranks_import_hooks.py")]  # noqa: PTH110
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    main()
except BaseException:
    if "ALLRANKS_PREPARE" in os.environ:
        os._exit(1)  # Python would go on with the program, which runs elsewhere
    raise
