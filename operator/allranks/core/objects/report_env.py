"""The URL and the token with which ranks send reports, and the helper that reads progress from the output.

The token identifies the pod and nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from allranks.api.job import Job
from allranks.core.facts import pod_template
from allranks.core.facts.model import Manifest, Platform
from allranks.core.facts.rank_reports import TOKEN_FILE, URL
from allranks.frameworks.base import HELPER_DIR, Wiring

AUDIENCE = "allranks.dev/report"
"""Audience of the token: the API server accepts it for nothing else."""
TOKEN_DIR = "/var/run/secrets/allranks.dev"
IN_PLACE = "ALLRANKS_IN_PLACE"
"""`1`: the helper waits for an order when the program has failed, so that the next attempt can begin in the pod."""
START_TOGETHER = "ALLRANKS_START_TOGETHER"
"""`1`: the helper waits for an order before it starts the first program in the pod."""
WARM_START = "ALLRANKS_WARM_START"
"""`Never`: the helper does not start the next program in advance."""
WARM_FOLDER = "ALLRANKS_WARM_FOLDER"
"""The folder of the programs that are started in advance; without it, a temporary one."""
TOKEN_SECONDS = 3600
"""The kubelet replaces the token before it expires."""
DISABLE = "DISABLE_ALLRANKS_INTEGRATION"
"""`TRUE`: nothing reports that the program itself does not call. Named like DISABLE_MLFLOW_INTEGRATION of Hugging
Face."""
_TRAINER_URL, _TRAINER_TOKEN = "KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN"
_TRAINER = frozenset({_TRAINER_URL, _TRAINER_TOKEN, "KUBEFLOW_TRAINER_SERVER_CA_CERT"})
"""`transformers` sends its status there by itself. The certificate is only needed for an authority of one's own."""


def environment(job: Job, platform: Platform) -> dict[str, str]:
    """Return the variables of the training container; none without a report server. A local run adds the token
    itself."""
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


def defaults(job: Job, platform: Platform, user: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the variables that the user may set instead.

    `user`: the variables that the user sets. A local run adds those with the token itself.
    """
    if not platform.report_url:
        return {}
    if job.spec.progress and not job.spec.progress.automatic:
        return {DISABLE: "TRUE"}
    return {} if platform.local else trainer_variables(platform.report_url, f"{TOKEN_DIR}/token", user)


def trainer_variables(url: str, token_file: str, user: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the variables by which `transformers` reports; none if the user has another server, or wants no
    reports."""
    values = {variable["name"]: str(variable.get("value") or "") for variable in user}
    if not _TRAINER.isdisjoint(values) or disabled(values):
        return {}
    return {_TRAINER_URL: url, _TRAINER_TOKEN: token_file}


def disabled(variables: Mapping[str, str]) -> bool:
    return variables.get(DISABLE, "").upper() == "TRUE"


def token_volume(platform: Platform) -> Manifest | None:
    """Return the volume with the token, to be mounted at TOKEN_DIR; None where it is not needed."""
    if not platform.report_url or platform.local:
        return None
    token = {"audience": AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"}
    return {"projected": {"sources": [{"serviceAccountToken": token}]}}


def needs_helper(job: Job, wiring: Wiring, command: object, platform: Platform) -> bool:
    """Return whether the helper runs the pod's command. It cannot run an image's entrypoint, which is unknown here."""
    waits = job.spec.start_together == "Always" and not platform.local
    requested = waits or job.spec.progress is not None or job.spec.hang is not None
    return requested and bool(platform.report_url) and wiring.command is None and bool(command)


def restarts_in_place(job: Job, template: Manifest, platform: Platform) -> bool:
    """Return whether the helper may wait in a pod for the next attempt."""
    return job.spec.restart.in_place != "Never" and _takes_orders(template, platform)


def starts_together(job: Job, template: Manifest, platform: Platform) -> bool:
    """Return whether the helper may wait in a pod for the other pods, before it starts the program.

    A kubelet with a probe would end the container meanwhile. Programs of elastic jobs begin with the ranks that are
    there. On one machine, all pods start within a moment.
    """
    if job.spec.elastic or platform.local:
        return False
    runs_anyway = restarts_in_place(job, template, platform)
    if job.spec.start_together == "Never" or not (runs_anyway or job.spec.start_together == "Always"):
        return False
    trainer = pod_template.trainer(template)
    return _takes_orders(template, platform) and not (trainer.get("livenessProbe") or trainer.get("startupProbe"))


def _takes_orders(template: Manifest, platform: Platform) -> bool:
    """Return whether the helper can ask for orders on the report port, and no kubelet starts it again."""
    if not platform.report_url:
        return False
    trainer = pod_template.trainer(template)
    policies = template["spec"].get("restartPolicy"), trainer.get("restartPolicy")
    return all(policy in (None, "Never") for policy in policies) and not trainer.get("restartPolicyRules")


def needs_command(job: Job, wiring: Wiring) -> bool:
    """Return whether the job needs a command: only the helper that starts the program can read its output, or wait
    before its start."""
    reads_output = job.spec.progress is not None and job.spec.progress.log_pattern is not None
    return wiring.command is None and (reads_output or job.spec.start_together == "Always")


def problems(job: Job) -> list[tuple[str, str]]:
    """Return (field path, message) of a `logPattern` that cannot be used, which the CRD's schema does not check."""
    pattern = job.spec.progress.log_pattern if job.spec.progress else None
    if pattern is None:
        return []
    try:
        if _range_sizes(pattern) > _MAX_RANGE_SIZES:
            problem = r"has too many large character ranges: use \w, \S or a negated set such as [^ ]"
            return [(_PATTERN, problem)]
        groups = re.compile(pattern).groupindex
    except RecursionError:
        return [(_PATTERN, "has too many nested groups")]
    except (re.error, OverflowError) as error:
        return [(_PATTERN, f"is not a valid regular expression: {error}")]
    message = (
        r"needs named groups, for example step (?P<step>\d+): step, total_steps, epoch, samples, or a metric's name"
    )
    return [] if groups else [(_PATTERN, message)]


def _range_sizes(pattern: str) -> int:
    """Return the number of characters in all ranges of a pattern, such as 26 in `[a-z]`.

    `re` visits each of them below U+10000 when it compiles a range that ignores case: 180 large ranges take a second.
    """
    size, parts = 0, [re._parser.parse(pattern)]  # type: ignore[attr-defined]
    while parts:
        part = parts.pop()
        if isinstance(part, tuple) and len(part) == 2 and str(part[0]) == "RANGE":
            low, high = part[1]
            size += max(0, min(high, 0xFFFF) - low + 1)
        elif isinstance(part, tuple | list | re._parser.SubPattern):  # type: ignore[attr-defined]
            parts += part
    return size


_MAX_RANGE_SIZES = 3 * 0x10000
"""Three times all characters below U+10000: 30 ms."""
_PATTERN = "spec.progress.logPattern"

HELPER = ("python3", f"{HELPER_DIR}/watch.py", "--")
