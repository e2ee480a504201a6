"""The one-page report on a job as an object: text, HTML or JSON; in a notebook it is shown as HTML."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from allranks.cli.commands.report import SUFFIXES, rendered
from allranks.kube.cluster import Manifest


class Report:
    """The report that `allranks report` prints, as of one moment."""

    def __init__(self, job: Manifest, now: datetime) -> None:
        self._job, self._now = job, now

    @property
    def text(self) -> str:
        return rendered(self._job, "text", self._now)

    @property
    def html(self) -> str:
        """A self-contained page."""
        return rendered(self._job, "html", self._now)

    @property
    def data(self) -> dict[str, Any]:
        """The numbers, as `allranks report -o json` prints them."""
        data: dict[str, Any] = json.loads(rendered(self._job, "json", self._now))
        return data

    def save(self, file: str | os.PathLike[str]) -> None:
        """Writes it in the format of the suffix: .txt, .html or .json. Raises ValueError for another one, OSError."""
        path = Path(file)
        if (form := SUFFIXES.get(path.suffix.lower())) is None:
            raise ValueError(f"{path}: the name must end in .txt, .html or .json")
        path.write_text(rendered(self._job, form, self._now), encoding="utf-8")

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html
