"""`allranks report`: prints a one-page report on a job of a cluster, of a local run, or of a file."""

from __future__ import annotations

import functools
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from allranks.api.job import KIND
from allranks.cli.archived import Archive, also_missing, archive_options, find_job, without_cluster
from allranks.cli.completers import complete_files, complete_jobs_and_runs
from allranks.cli.options import FAILED, OK, cluster_options, name_callback, print_error, run_on_cluster
from allranks.errors import AllranksError
from allranks.kube.cluster import Cluster, Manifest, Where
from allranks.local.run_directories import LATEST, RUN_FILE, StoredRun
from allranks.views.report.forms import FORMS, SUFFIXES, WIDTH, rendered

if TYPE_CHECKING:
    from allranks.views.report.history import MetricValue
    from allranks.views.report.run_files import RunFiles
    from allranks.views.report.sweep_cost import TrialJobs


CSV, TENSORBOARD = "csv", "tensorboard"
"""Forms of the record of metrics, instead of a report."""
PRINTED = (*FORMS, CSV)


class Output(NamedTuple):
    """Where to write the report, and in which format."""

    form: str = "text"
    file: Path | None = None
    """None: stdout. With TENSORBOARD, a directory."""


def output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add -o and --tensorboard to `command(output, **options)`."""

    @click.option(
        "--tensorboard",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Write the record of metrics as event files of TensorBoard into DIR, instead of a report.",
    )
    @click.option(
        "-o",
        "--output",
        multiple=True,
        metavar="FORMAT|FILE",
        callback=lambda _context, _parameter, values: parse_output(values),
        shell_complete=_complete_output,
        help="Print text, html or json, or write FILE in the format of its suffix: .txt, .html, .json. diff, or .diff: "
        "only what the code differs from its commit in. csv, or .csv: the record of metrics. [default: text]",
    )
    @functools.wraps(command)
    def run(output: Output, tensorboard: Path | None, **options: Any) -> None:
        if tensorboard and output != Output():
            raise click.UsageError("specify either -o or --tensorboard, not both.")
        command(output=Output(TENSORBOARD, tensorboard) if tensorboard else output, **options)

    return run


def _complete_output(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    forms = [CompletionItem(form) for form in PRINTED if form.startswith(incomplete)]
    return forms or [CompletionItem(incomplete, type="file")]


def parse_output(values: Sequence[str]) -> Output:
    """Parse a format, a file, or both, of which the format then wins. Raise click.BadParameter."""
    forms = [value for value in values if value in PRINTED]
    files = [Path(value) for value in values if value not in PRINTED]
    if len(forms) > 1 or len(files) > 1:
        raise click.BadParameter(f"{', '.join(values)}: specify one format and one file at most.")
    if not files:
        return Output(forms[0] if forms else "text")
    form = forms[0] if forms else {**SUFFIXES, ".csv": CSV}.get(files[0].suffix.lower())
    if form is None:
        raise click.BadParameter(
            f"{files[0]}: specify text, html, json, diff or csv, or a file whose name ends in .txt, .html, .json, "
            ".diff or .csv."
        )
    return Output(form, files[0])


class NoReport(AllranksError):
    """The job cannot be read, or the report cannot be written."""


@click.command(
    epilog="""\b
Examples:
  allranks report penguins
  allranks report penguins -n team -o penguins.html
  allranks report penguins -o diff
  allranks report penguins -o penguins.csv
  allranks report penguins --tensorboard events/penguins
  allranks report --run-dir runs/penguins -o json
  kubectl get dt penguins -o yaml | allranks report -f - -o json
  allranks report penguins --archive s3://team/history
\b
Exit status:
  0 printed, also for a failed job, 1 the job does not exist or cannot be read.
"""
)
@click.argument("name", required=False, metavar="[JOB]", callback=name_callback, shell_complete=complete_jobs_and_runs)
@output_options
@click.option(
    "--run-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Report on a local run: the run directory of allranks run, or runs/JOB for the newest one. The job may run.",
)
@click.option(
    "-f",
    "--filename",
    "source",
    metavar="FILE",
    shell_complete=complete_files,
    help="Report on a job in FILE, the output of kubectl get dt JOB -o yaml or json; - for standard input.",
)
@archive_options
@cluster_options
def report(
    where: Where,
    name: str | None,
    output: Output,
    run_dir: Path | None,
    source: str | None,
    archive: Archive,
) -> None:
    """Print a one-page report on a job: attempts, progress, throughput, lost time, restarts and outcome; or on a sweep:
    trials, the best one, GPU time and cost, the importance of parameters, and parallel coordinates.

    The report is text, one self-contained HTML file, or JSON. For an unfinished job on a cluster it covers the time
    until now, for a job in a file or in an archive the time until its last timestamp. -o csv and --tensorboard have the
    record of metrics instead: a row for each value.
    """
    if run_dir and source:
        raise click.UsageError("specify either --run-dir or -f, not both.")
    if not (name or run_dir or source):
        raise click.UsageError("specify a job name, --run-dir DIR or -f FILE.")
    if name and not (run_dir or source):
        sys.exit(
            run_on_cluster(
                _from_cluster,
                where,
                {"name": name, "output": output, "archive": archive},
                lambda error: _without_cluster(error, where, name, output, archive),
            )
        )
    try:
        if run_dir:
            write_of_run(run_dir, output, name)
        else:
            _write_of_file(source or "-", name, source or "-", output)
    except AllranksError as error:
        print_error(error)
        sys.exit(FAILED)


async def _from_cluster(cluster: Cluster, name: str, output: Output, archive: Archive) -> int:
    from allranks.client.submission import read_differences
    from allranks.client.sweeps import trials_of_cluster
    from allranks.views.report.model import last_update
    from allranks.views.report.sweep import is_sweep

    document, exists = await find_job(cluster, name, archive, sweeps=True)
    if is_sweep([document]):
        _write_sweep(document, output, await trials_of_cluster(cluster, document, archive.trials))
    else:
        write(document, output, None if exists else last_update(document), await read_differences(cluster, document))
    return OK


def _without_cluster(error: AllranksError, where: Where, name: str, output: Output, archive: Archive) -> int:
    """Report on an archived job or sweep, or on a local run, if the cluster has none. Return the exit status."""
    from allranks.client.sweeps import trials_of_archive
    from allranks.views.report.model import last_update
    from allranks.views.report.sweep import is_sweep

    try:
        if document := without_cluster(error, where, name, archive, sweeps=True):
            if is_sweep([document]):
                _write_sweep(document, output, trials_of_archive(archive.trials, document))
            else:
                write(document, output, last_update(document))
            return OK
        error = also_missing(error, where, name, archive, sweeps=True)
    except AllranksError as archive_error:
        print_error(archive_error)
        return FAILED
    return _from_runs(error, name, output)


def _from_runs(error: AllranksError, name: str, output: Output) -> int:
    """Report on the newest local run of the job if the cluster has none. Return the exit status."""
    from allranks.local.run_directories import ROOT, RunsError
    from allranks.local.sweep_files import find_stored

    try:
        run = find_stored(name)
        click.echo(f"The newest local run of {name} is shown ({run.directory}).", err=True)
        write_of_run(run.directory, output)
    except RunsError as runs_error:
        print_error(error)
        if ROOT.is_dir():
            print_error(runs_error)
        return FAILED
    except AllranksError as report_error:
        print_error(report_error)
        return FAILED
    return OK


def write_of_run(run_dir: Path, output: Output, name: str | None = None) -> None:
    """Report on a run directory, or on the newest one in a job's directory `runs/JOB`. Raise NoReport."""
    from allranks.local.sweep_files import SWEEP_FILE

    if (run_dir / SWEEP_FILE).exists():
        _write_sweep_of_run(run_dir, name or "", output)
        return
    newest = run_dir / LATEST
    directory = newest if not (run_dir / RUN_FILE).exists() and newest.exists() else run_dir
    _write_of_file(str(directory / RUN_FILE), name, str(run_dir), output, directory.resolve())


def _write_of_file(source: str, name: str | None, place: str, output: Output, run_dir: Path | None = None) -> None:
    """`place` stands for the file in messages."""
    from allranks.views.report.history import of_run
    from allranks.views.report.model import last_update
    from allranks.views.report.run_files import read_run_files
    from allranks.views.report.sweep import is_sweep

    documents = _read_documents(source)
    if sweep := is_sweep(documents):
        _write_sweep(sweep, output)
        return
    job = select_job(documents, name, place)
    if run_dir and output.form in (CSV, TENSORBOARD):
        _write_values(of_run(StoredRun(run_dir)), output)
    else:
        write(job, output, last_update(job), read_run_files(run_dir) if run_dir else None)


def write(job: Manifest, output: Output, now: datetime | None = None, run: RunFiles | None = None) -> None:
    """Print the report, or write it to a file. `now`: end of the report. Raise NoReport."""
    from allranks.views.format.plots import supports_unicode
    from allranks.views.report.history import of_job

    if output.form in (CSV, TENSORBOARD):
        _write_values(of_job(job), output)
        return
    file = output.file
    width = max(60, min(shutil.get_terminal_size().columns, 140)) if sys.stdout.isatty() and not file else WIDTH
    unicode = bool(file) or supports_unicode(getattr(sys.stdout, "encoding", None))
    text = rendered(job, output.form, now or datetime.now(UTC), width, unicode, run, file.parent if file else None)
    _put(text, file)


def _write_values(values: Sequence[MetricValue], output: Output) -> None:
    """Print the record of metrics, or write it to files. Raise AllranksError."""
    from allranks.views.report.event_files import write_event_files
    from allranks.views.report.history import as_csv

    if output.form == CSV:
        _put(as_csv(values), output.file)
    elif output.file:
        written = write_event_files(values, output.file)
        repeated, untimed = sum(bool(v.repeated) for v in values), sum(v.time is None for v in values)
        left_out = [f"{repeated} of repeated steps"] if repeated else []
        left_out += [f"{untimed} whose time the status does not have"] if untimed else []
        without = f", without {' and '.join(left_out)}" if left_out else ""
        click.echo(f"wrote {written} values into {output.file}{without}", err=True)


def _write_sweep_of_run(run_dir: Path, name: str, output: Output) -> None:
    from allranks.client.sweeps import trials_of_run
    from allranks.local.sweep_files import read_sweep

    _write_sweep(read_sweep(run_dir, name), output, trials_of_run(run_dir))


def _write_sweep(sweep: Mapping[str, Any], output: Output, jobs: TrialJobs | None = None) -> None:
    from allranks.views.report.sweep import rendered as rendered_sweep

    if output.form == "diff":
        raise NoReport("a sweep has no code of its own: name one of its trials to see what its code differs in")
    if output.form in (CSV, TENSORBOARD):
        raise NoReport("a sweep has no record of metrics of its own: name one of its trials")
    _put(rendered_sweep(sweep, output.form, jobs), output.file)


def _put(text: str, file: Path | None) -> None:
    if file is None:
        click.echo(text, nl=False)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NoReport(f"cannot write {file}: {error.strerror}") from error
    click.echo(f"wrote {file}", err=True)


def select_job(documents: list[Any], name: str | None, where: str) -> Manifest:
    """Return the job with this name, or the only job. Raise NoReport."""
    items = [item for document in documents for item in _items(document)]
    jobs = [item for item in items if item.get("kind") == KIND and _is_job(item)]
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


def _read_documents(source: str) -> list[Any]:
    """Return the documents in a file; - is standard input. Raise NoReport."""
    import yaml

    name = "stdin" if source == "-" else source
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
        return [_plain(document) for document in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))]
    except FileNotFoundError:
        raise NoReport(f"{name} does not exist: a run directory of allranks run contains {RUN_FILE}") from None
    except OSError as error:
        raise NoReport(f"cannot read {name}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise NoReport(f"{name} is not a text file in UTF-8") from error
    except (yaml.YAMLError, ValueError) as error:
        raise NoReport(f"{name} is neither YAML nor JSON: {' '.join(str(error).split())}") from error


_NAIVE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?")


def _plain(value: Any) -> Any:
    """Convert timestamps back to text: YAML parses unquoted ones."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    elif isinstance(value, date):
        value = f"{value.isoformat()}T00:00:00Z"
    return f"{value}Z" if isinstance(value, str) and _NAIVE.fullmatch(value) else value
