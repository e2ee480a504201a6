"""`allranks report`: prints a one-page report on a job of a cluster, of a local run, or of a file."""

from __future__ import annotations

import json
import re
import shutil
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import click

from allranks.api.job import KIND
from allranks.cli.completers import complete_files, complete_jobs_and_runs
from allranks.cli.options import FAILED, OK, cluster_options, get_job, name_callback, print_error, run_on_cluster
from allranks.errors import AllranksError
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.local.run_directories import LATEST, RUN_FILE

FORMS = ["text", "html", "json"]
WIDTH = 100


class NoReport(AllranksError):
    """The job cannot be read, or the report cannot be written."""


@click.command(
    epilog="""\b
Examples:
  allranks report penguins
  allranks report penguins -n team -o html --output penguins.html
  allranks report --run-dir runs/penguins/20260304-101500
  kubectl get dt penguins -o yaml | allranks report -f - -o json
\b
Exit status:
  0 printed, also for a failed job, 1 the job does not exist or cannot be read.
"""
)
@click.argument("name", required=False, metavar="[JOB]", callback=name_callback, shell_complete=complete_jobs_and_runs)
@click.option("-o", "form", type=click.Choice(FORMS), help="The format. [default: by the suffix of --output, or text]")
@click.option(
    "--output",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to FILE.",
)
@click.option(
    "--run-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Report on a local run: the run directory of allranks run. The job may still run.",
)
@click.option(
    "-f",
    "--filename",
    "source",
    metavar="FILE",
    shell_complete=complete_files,
    help="Report on a job in FILE, the output of kubectl get dt JOB -o yaml or json; - for standard input.",
)
@cluster_options
def report(
    where: Where,
    name: str | None,
    form: str | None,
    target: Path | None,
    run_dir: Path | None,
    source: str | None,
) -> None:
    """Print a one-page report on a job: attempts, progress, throughput, lost time, restarts and outcome.

    The report is text, one self-contained HTML file, or JSON. For an unfinished job on a cluster it covers the time
    until now, for a job in a file the time until the last timestamp in the file.
    """
    if run_dir and source:
        raise click.UsageError("specify either --run-dir or -f, not both.")
    if not (name or run_dir or source):
        raise click.UsageError("specify a job name, --run-dir DIR or -f FILE.")
    form = form or {".html": "html", ".htm": "html", ".json": "json"}.get(target.suffix if target else "", "text")
    if name and not (run_dir or source):
        options = {"name": name, "form": form, "target": target}
        sys.exit(run_on_cluster(_from_cluster, where, options, lambda error: _from_runs(error, name, form, target)))
    try:
        if run_dir:
            write_of_run(run_dir, form, target, name)
        else:
            _write_of_file(source or "-", name, source or "-", form, target)
    except AllranksError as error:
        print_error(error)
        sys.exit(FAILED)


async def _from_cluster(cluster: Cluster, name: str, form: str, target: Path | None) -> int:
    write(await get_job(cluster, name), form, target)
    return OK


def _from_runs(error: AllranksError, name: str, form: str, target: Path | None) -> int:
    """Reports on the newest local run of the job if the cluster has none. Returns the exit status."""
    from allranks.local.run_directories import RunsError, find_run

    try:
        run = find_run(name)
        click.echo(f"The newest local run of {name} is shown ({run.directory}).", err=True)
        write_of_run(run.directory, form, target)
    except RunsError:
        print_error(error)
        return FAILED
    except AllranksError as broken:
        print_error(broken)
        return FAILED
    return OK


def write_of_run(run_dir: Path, form: str, target: Path | None, name: str | None = None) -> None:
    """Reports on a run directory, or on the newest one in a job's directory `runs/JOB`. Raises NoReport."""
    newest = run_dir / LATEST
    directory = newest if not (run_dir / RUN_FILE).exists() and newest.exists() else run_dir
    _write_of_file(str(directory / RUN_FILE), name, str(run_dir), form, target)


def _write_of_file(source: str, name: str | None, shown: str, form: str, target: Path | None) -> None:
    from allranks.cli.job_report.model import last_update

    job = select_job(_read(source), name, shown)
    write(job, form, target, last_update(job))


def write(job: Manifest, form: str, target: Path | None, now: datetime | None = None) -> None:
    """Prints the report, or writes it to `target`. `now`: end of the report. Raises NoReport."""
    from allranks.cli.format.plots import supports_unicode

    width = max(60, min(shutil.get_terminal_size().columns, 140)) if sys.stdout.isatty() and not target else WIDTH
    unicode = bool(target) or supports_unicode(getattr(sys.stdout, "encoding", None))
    made = rendered(job, form, now or datetime.now(UTC), width, unicode)
    if target is None:
        click.echo(made, nl=False)
        return
    try:
        target.write_text(made, encoding="utf-8")
    except OSError as error:
        raise NoReport(f"cannot write {target}: {error.strerror}") from error


def rendered(job: Manifest, form: str, now: datetime, width: int = WIDTH, unicode: bool = True) -> str:
    """The report as text, html or json."""
    from allranks.cli.job_report.model import build_report

    report = build_report(job, now)
    if form == "html":
        from allranks.cli.job_report.html import page

        return page(report)
    if form == "json":
        return json.dumps(report.as_json(), indent=2) + "\n"
    from allranks.cli.job_report.text import lines

    return "".join(f"{line}\n" for line in lines(report, width, unicode))


def select_job(documents: list[Any], name: str | None, where: str) -> Manifest:
    """The job with this name, or the only job. Raises NoReport."""
    found = [item for document in documents for item in _items(document)]
    jobs = [item for item in found if item.get("kind") == KIND and _is_job(item)]
    if name:
        jobs = [job for job in jobs if job["metadata"].get("name") == name]
    if not jobs:
        raise NoReport(f"{where} contains no {KIND}{f' {name}' if name else ''}: kubectl get dt JOB -o yaml prints one")
    if len(jobs) > 1:
        names = ", ".join(str(job["metadata"].get("name")) for job in jobs)
        raise NoReport(f"{where} contains {len(jobs)} jobs: specify one of {names}")
    return jobs[0]


def _items(document: Any) -> list[Manifest]:
    if not isinstance(document, dict):
        return []
    inner = document.get("items")
    return [item for item in inner if isinstance(item, dict)] if isinstance(inner, list) else [document]


def _is_job(job: Manifest) -> bool:
    return isinstance(job.get("metadata"), dict) and all(
        isinstance(job.get(part) or {}, dict) for part in ("spec", "status")
    )


def _read(source: str) -> list[Any]:
    """The documents in a file; - is standard input. Raises NoReport."""
    import yaml

    shown = "stdin" if source == "-" else source
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
        return [_plain(document) for document in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))]
    except FileNotFoundError:
        raise NoReport(f"{shown} does not exist: a run directory of allranks run contains {RUN_FILE}") from None
    except OSError as error:
        raise NoReport(f"cannot read {shown}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise NoReport(f"{shown} is not a text file in UTF-8") from error
    except (yaml.YAMLError, ValueError) as error:
        raise NoReport(f"{shown} is neither YAML nor JSON: {' '.join(str(error).split())}") from error


_NAIVE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?")


def _plain(value: Any) -> Any:
    """Converts timestamps back to text: YAML parses unquoted ones."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    elif isinstance(value, date):
        value = f"{value.isoformat()}T00:00:00Z"
    return f"{value}Z" if isinstance(value, str) and _NAIVE.fullmatch(value) else value
