"""`allranks.history`: the record of metrics of a run of this machine, of a job on a cluster, or of an archived job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from allranks.errors import AllranksError
from allranks.local.run_directories import LATEST, ROOT, RUN_FILE, StoredRun
from allranks.local.sweep_files import SWEEP_FILE, StoredSweep, find_stored, require_job
from allranks.views.report.history import MetricValue, of_job, of_run


def history(
    run: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] = ROOT,
    archive: str | None = None,
    namespace: str = "default",
    uid: str | None = None,
) -> Any:
    """Return the values of all metrics: a data frame where pandas is installed, else a list of named tuples.

    The columns are step, time, attempt, metric, value and repeated: whether an earlier attempt had reported the metric
    at this step or a later one. What the status does not have is None. NaN also stands for infinite values.

    `run`: a run directory, JOB or JOB/TIME in the directory `root`, or a trial of a sweep there. With `archive`, a
    directory or an address such as s3://BUCKET/PREFIX, the name of a job in it: the newest one in `namespace`, or that
    with the UID. A job on a cluster has `allranks.job(NAME).history()`.

    Raises AllranksError if there is no such run.
    """
    if archive is None:
        return table(of_run(_stored(run, Path(root))))
    from allranks.archive.reader import Reader

    job = Reader.open(archive).find(namespace, os.fspath(run), uid)
    if job is None:
        raise AllranksError(f"{archive} has no job {os.fspath(run)} in namespace {namespace}")
    return table(of_job(job))


def table(values: Sequence[MetricValue]) -> Any:
    """Return a data frame; without pandas, the values."""
    try:
        import pandas
    except ImportError:
        return list(values)
    frame = pandas.DataFrame(values, columns=MetricValue._fields)
    frame["time"] = pandas.to_datetime(frame["time"], utc=True)
    return frame.astype({"step": "int64", "attempt": "Int64", "value": "float64", "repeated": "boolean"})


def _stored(run: str | os.PathLike[str], root: Path) -> StoredRun:
    """Return a run by its directory, the directory of its job, or its name. Raise RunsError."""
    for directory in (Path(run), Path(run) / LATEST):
        if (directory / RUN_FILE).exists():
            return StoredRun(directory)
        if (directory / SWEEP_FILE).exists():
            return require_job(StoredSweep(directory))
    return require_job(find_stored(os.fspath(run), root))
