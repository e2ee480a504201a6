"""How a pod's ranks can report: an address, and a token that says which pod they are in and is good for nothing else.

`progress` or `hang` in a job brings the reporting library into every pod of it, and a helper before the command that
makes it importable and reads the output where the job has a pattern for it.
"""

from __future__ import annotations

import re

from allranks.api.job import Job
from allranks.core.model import Manifest, Platform
from allranks.frameworks.base import HELPER_DIR, Wiring

AUDIENCE = "allranks.dev/report"
"""Whom the token is for: the API server takes it for nothing else."""
TOKEN_DIR = "/var/run/secrets/allranks.dev"
TOKEN_SECONDS = 3600
"""kubelet brings a new one before this is over."""
URL, TOKEN_FILE = "ALLRANKS_REPORT_URL", "ALLRANKS_REPORT_TOKEN_FILE"


def environment(job: Job, platform: Platform) -> dict[str, str]:
    """Variables of the training container; none where nobody listens. The driver of one machine adds the token."""
    if not platform.report_url:
        return {}
    out = {URL: platform.report_url}
    if not platform.local:
        out[TOKEN_FILE] = f"{TOKEN_DIR}/token"
    if job.spec.hang:
        out["ALLRANKS_HANG_SECONDS"] = str(job.spec.hang.timeout_seconds)
    if job.spec.progress and job.spec.progress.log_pattern:
        out["ALLRANKS_LOG_PATTERN"] = job.spec.progress.log_pattern
    return out


def volume(platform: Platform) -> Manifest | None:
    """The token's, to be mounted at TOKEN_DIR."""
    if not platform.report_url or platform.local:
        return None
    token = {"audience": AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"}
    return {"projected": {"sources": [{"serviceAccountToken": token}]}}


def wraps(job: Job, wiring: Wiring, command: object, platform: Platform) -> bool:
    """The helper stands before the pod's own command; an image's entrypoint nobody can see."""
    asked = job.spec.progress is not None or job.spec.hang is not None
    return asked and bool(platform.report_url) and wiring.command is None and bool(command)


def needs_command(job: Job, wiring: Wiring) -> bool:
    """Output can only be read by who starts the program."""
    return wiring.command is None and job.spec.progress is not None and job.spec.progress.log_pattern is not None


def problems(job: Job) -> list[tuple[str, str]]:
    """(field path, message) of what no schema sees."""
    pattern = job.spec.progress.log_pattern if job.spec.progress else None
    if pattern is None:
        return []
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        return [(_PATTERN, f"is no regular expression: {error}")]
    named = r"needs named groups, for example step (?P<step>\d+): step, total_steps, epoch, samples, or a metric's name"
    return [] if groups else [(_PATTERN, named)]


_PATTERN = "spec.progress.logPattern"

HELPER = ("python3", f"{HELPER_DIR}/watch.py", "--")
