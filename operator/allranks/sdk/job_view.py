"""A job on a cluster as rich output of a notebook: the view of a run, from the status of the job."""

from __future__ import annotations

from collections.abc import Callable

from allranks.kube.cluster import Manifest
from allranks.kube.job_codec import status_of
from allranks.sdk.run_view import View, html_of, view_of
from allranks.views.report.model import samples_of

REFRESH_SECONDS = 5.0
"""The ranks report as often."""


class JobView:
    """The job as it was read last; `read` reads it again."""

    def __init__(self, job: str, manifest: Callable[[], Manifest]) -> None:
        """`manifest` asks the API server."""
        self._job, self._manifest = job, manifest
        self._view = View(job)

    def read(self) -> View:
        """Raises JobDeleted, ClusterError."""
        status = status_of(self._manifest())
        self._view = view_of(self._job, status, samples_of(status.progress))
        return self._view

    def __repr__(self) -> str:
        return ", ".join([f"{self._job}: {self._view.phase}", *self._view.facts])

    def _repr_html_(self) -> str:
        return html_of(self._view)
