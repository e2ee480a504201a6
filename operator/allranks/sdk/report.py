"""The one-page report on a job as an object: text, HTML or JSON; in a notebook it is shown as HTML."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from allranks.kube.cluster import Manifest
from allranks.views.report.forms import SUFFIXES, rendered
from allranks.views.report.run_files import RunFiles


class Report:
    """The report that `allranks report` prints, at one moment."""

    def __init__(self, job: Manifest, now: datetime, run: RunFiles | None = None) -> None:
        self._job, self._now, self._run = job, now, run

    def _rendered(self, form: str) -> str:
        return rendered(self._job, form, self._now, run=self._run)

    @property
    def text(self) -> str:
        return self._rendered("text")

    @property
    def html(self) -> str:
        """A self-contained page."""
        return self._rendered("html")

    @property
    def data(self) -> dict[str, Any]:
        """The numbers, as `allranks report -o json` prints them."""
        data: dict[str, Any] = json.loads(self._rendered("json"))
        return data

    @property
    def diff(self) -> str:
        """The difference between the code and its commit, as a unified diff."""
        return self._rendered("diff")

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the report in the format of the suffix: .txt, .html, .json or .diff. Raises ValueError, OSError."""
        path = Path(file)
        if (form := SUFFIXES.get(path.suffix.lower())) is None:
            raise ValueError(f"{path}: the name must end in .txt, .html, .json or .diff")
        path.write_text(self._rendered(form), encoding="utf-8")

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html
