"""`allranks report`: the one-page account of a job of a cluster, of a run on this machine, or of a file."""

from __future__ import annotations

import json
import re
import shutil
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.api.job import KIND
from allranks.cli.options import FAILED, OK, connected, get_job, job_name, tell, where_options
from allranks.errors import AllranksError
from allranks.kube.cluster import Cluster, Manifest, Where

if TYPE_CHECKING:
    from allranks.cli.job_report.model import Account

FORMS = ["text", "html", "json"]
RUN_FILE = "job.json"
"""In a run directory: the job with its status, as the API would have it."""
WIDTH = 100


class NoReport(AllranksError):
    """There is nothing to tell of."""


def _name(_context: click.Context, _parameter: click.Parameter, given: str | None) -> str | None:
    return job_name(given) if given else None


@click.command(
    epilog="""\b
Examples:
  allranks report penguins
  allranks report penguins -n team -o html --output penguins.html
  allranks report --run-dir runs/penguins/20260304-101500
  kubectl get dt penguins -o yaml | allranks report -f - -o json
\b
Exit status:
  0 told (however the job went), 1 the job is not there, or cannot be read.
"""
)
@click.argument("name", required=False, metavar="[JOB]", callback=_name)
@click.option("-o", "form", type=click.Choice(FORMS), help="What to make. [default: by the file's name, else text]")
@click.option(
    "--output", "target", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write there."
)
@click.option(
    "--run-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Of a run on this machine: what allranks run had as its run directory. Also while it runs.",
)
@click.option(
    "-f", "--filename", "source", metavar="FILE", help="Of what kubectl get dt JOB -o yaml (or json) printed; or -."
)
@where_options
def report(
    where: Where,
    name: str | None,
    form: str | None,
    target: Path | None,
    run_dir: Path | None,
    source: str | None,
) -> None:
    """Print the account of a job: its attempts, progress, throughput, lost time, restarts and verdict, on one page.

    As text, as one HTML file that needs nothing else, or as JSON. A job of a cluster that goes on is told up to
    now, one of a file up to the last moment that the file speaks of.
    """
    if run_dir and source:
        raise click.UsageError("give either --run-dir or -f, not both.")
    if not (name or run_dir or source):
        raise click.UsageError("name a job, or give --run-dir DIR or -f FILE.")
    form = form or {".html": "html", ".htm": "html", ".json": "json"}.get(target.suffix if target else "", "text")
    if name and not (run_dir or source):
        sys.exit(connected(_of_cluster, where, {"name": name, "form": form, "target": target}))
    from allranks.cli.job_report.model import last_told

    try:
        job = chosen(_read(source or str(run_dir / RUN_FILE if run_dir else "")), name, source or str(run_dir))
        write(job, form, target, last_told(job))
    except AllranksError as error:
        tell(error)
        sys.exit(FAILED)


async def _of_cluster(cluster: Cluster, name: str, form: str, target: Path | None) -> int:
    write(await get_job(cluster, name), form, target)
    return OK


def write(job: Manifest, form: str, target: Path | None, now: datetime | None = None) -> None:
    """Prints the account of a job, or writes it to a file; as of now, or of that moment. Raises NoReport."""
    from allranks.cli.format.plots import draws

    width = max(60, min(shutil.get_terminal_size().columns, 140)) if sys.stdout.isatty() and not target else WIDTH
    unicode = bool(target) or draws(getattr(sys.stdout, "encoding", None))
    made = rendered(job, form, now or datetime.now(UTC), width, unicode)
    if target is None:
        click.echo(made, nl=False)
        return
    try:
        target.write_text(made, encoding="utf-8")
    except OSError as error:
        raise NoReport(f"{target} cannot be written: {error.strerror}") from error


def rendered(job: Manifest, form: str, now: datetime, width: int = WIDTH, unicode: bool = True) -> str:
    """The account of a job, as text, html or json."""
    from allranks.cli.job_report.html import page
    from allranks.cli.job_report.model import account
    from allranks.cli.job_report.text import lines

    told: Account = account(job, now)
    if form == "html":
        return page(told)
    if form == "json":
        return json.dumps(told.as_json(), indent=2) + "\n"
    return "".join(f"{line}\n" for line in lines(told, width, unicode))


def chosen(documents: list[Any], name: str | None, where: str) -> Manifest:
    """The job among what was read: the one that is named, or the only one. Raises NoReport."""
    found = [item for document in documents for item in _items(document)]
    jobs = [item for item in found if item.get("kind") == KIND and _whole(item)]
    if name:
        jobs = [job for job in jobs if job["metadata"].get("name") == name]
    if not jobs:
        raise NoReport(f"{where} holds no {KIND}{f' {name}' if name else ''}: kubectl get dt JOB -o yaml prints one")
    if len(jobs) > 1:
        names = ", ".join(str(job["metadata"].get("name")) for job in jobs)
        raise NoReport(f"{where} holds {len(jobs)} jobs: name one of {names}")
    return jobs[0]


def _items(document: Any) -> list[Manifest]:
    if not isinstance(document, dict):
        return []
    inner = document.get("items")
    return [item for item in inner if isinstance(item, dict)] if isinstance(inner, list) else [document]


def _whole(job: Manifest) -> bool:
    return isinstance(job.get("metadata"), dict) and all(
        isinstance(job.get(part) or {}, dict) for part in ("spec", "status")
    )


def _read(source: str) -> list[Any]:
    """The documents of a file, - is standard input. Raises NoReport."""
    import yaml

    shown = "stdin" if source == "-" else source
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
        return [_plain(document) for document in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))]
    except FileNotFoundError:
        raise NoReport(f"there is no {shown}: a run directory of allranks run has a {RUN_FILE}") from None
    except OSError as error:
        raise NoReport(f"{shown} cannot be read: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise NoReport(f"{shown} is not a text file in UTF-8") from error
    except (yaml.YAMLError, ValueError) as error:
        raise NoReport(f"{shown} is neither YAML nor JSON: {' '.join(str(error).split())}") from error


_NAIVE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?")


def _plain(value: Any) -> Any:
    """With times as the texts that the API has: YAML makes objects of those that have no quotes."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    elif isinstance(value, date):
        value = f"{value.isoformat()}T00:00:00Z"
    return f"{value}Z" if isinstance(value, str) and _NAIVE.fullmatch(value) else value
