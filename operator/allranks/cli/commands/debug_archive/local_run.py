"""Collects a run of `allranks run`: its job file, progress and logs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from allranks.cli.commands.debug_archive.archive import Archive, DebugError, Log, log_limit
from allranks.cli.commands.debug_archive.overview import versions
from allranks.cli.format.yaml import dump
from allranks.cli.job_report.forms import rendered
from allranks.cli.job_report.model import last_update
from allranks.cli.job_report.run_files import read_run_files
from allranks.local.run_directories import CODE_FILE, DIFFERENCES_FILE, PROGRESS_FILE, RUN_FILE
from allranks.masking import masked, secrets_in

PROGRESS_BYTES = 5 << 20

README = """\
A local run of the job {name}, collected by `allranks debug` on {at} UTC.

report.txt      what `allranks report` prints: attempts, progress, lost time
job.yaml        the manifest
status.yaml     the status: the last failure, past attempts, restarts
progress.jsonl  all progress that ranks reported
code.json       the commit of the code
code.diff       what the code differs from it in
logs/           the logs of all pods of all attempts
stacks/         stack dumps that ranks printed when the job hung
versions.yaml   of allranks and Python

Masked, as <masked>: values of variables and options whose names contain TOKEN, SECRET, PASSWORD, CREDENTIAL or KEY,
the same values wherever else they occur, and logins in URLs. Other secrets that the program prints are not recognised:
look at the files before you give them to somebody.
"""


def collect(directory: Path, now: datetime) -> Archive:
    """Raises DebugError."""
    job = _job(directory / RUN_FILE)
    name = str(job["metadata"]["name"])
    archive = Archive(name, secrets_in(job))
    archive.add("job.yaml", dump([masked({key: value for key, value in job.items() if key != "status"})]))
    archive.add("status.yaml", dump([masked(job.get("status") or {})]))
    archive.add("report.txt", rendered(job, "text", last_update(job) or now, run=read_run_files(directory)))
    archive.add("versions.yaml", dump([versions({})]))
    for file in (CODE_FILE, DIFFERENCES_FILE, PROGRESS_FILE):
        if (directory / file).is_file():
            archive.add(file, _end_of(directory / file, PROGRESS_BYTES))
    logs = sorted((directory / "logs").glob("*.log"))
    for path in logs:
        log = Log(log_limit(len(logs)))
        with path.open("rb") as lines:
            for line in lines:
                log.add(line.rstrip(b"\n"))
        archive.add_log(path.stem, log)
    archive.add("README.txt", README.format(name=name, at=f"{now.astimezone(UTC):%Y-%m-%d %H:%M:%S}"))
    return archive


def _job(file: Path) -> dict[str, Any]:
    try:
        job = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(job, dict) and isinstance(job["metadata"]["name"], str):
            return job
    except FileNotFoundError:
        raise DebugError(f"{file} does not exist: a run directory of allranks run contains {RUN_FILE}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DebugError(f"{file} cannot be read: {error}") from error
    raise DebugError(f"{file} contains no job")


def _end_of(file: Path, limit: int) -> str:
    """The last lines, at most `limit` bytes."""
    raw = file.read_bytes()
    if len(raw) > limit:
        raw = raw[-limit:].partition(b"\n")[2]
    return raw.decode("utf-8", errors="replace")
