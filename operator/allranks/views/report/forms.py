"""The report on a job as text, HTML, JSON, or only the differences of its code."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.kube.cluster import Manifest

if TYPE_CHECKING:
    from allranks.views.report.run_files import RunFiles

SUFFIXES = {".txt": "text", ".html": "html", ".htm": "html", ".json": "json", ".diff": "diff"}
FORMS = ("text", "html", "json", "diff")
WIDTH = 100


def rendered(
    job: Manifest,
    form: str,
    now: datetime,
    width: int = WIDTH,
    unicode: bool = True,
    run: RunFiles | None = None,
    folder: Path | None = None,
) -> str:
    """Write the report as text, html or json, or as diff its differences.

    `folder`: the future directory of an HTML page, for its links to logs.
    """
    from allranks.views.report.model import build_report

    report = build_report(job, now, run)
    if form == "html":
        from allranks.views.report.html import page

        return page(report, folder)
    if form == "json":
        return json.dumps(report.as_json(), indent=2) + "\n"
    from allranks.views.report.text import differences, lines

    if form == "diff":
        return "".join(f"{line}\n" for line in differences(report))

    return "".join(f"{line}\n" for line in lines(report, width, unicode))
