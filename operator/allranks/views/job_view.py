"""The facts on a job that people see: behind `top`, `describe`, reports, the rows of the web UI and notebooks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from allranks.api.status import Status
from allranks.core.facts import gpu_count, pod_template, topology
from allranks.core.facts.model import ANY_PLATFORM
from allranks.core.facts.naming import TRAINER
from allranks.kube.job_codec import job_of, pods_of, status_of
from allranks.local.run_directories import phase_of
from allranks.views.format import cost as costs
from allranks.views.format import progress as progress_text
from allranks.views.format.duration import age, elapsed, human

ORDER = {"Running": 0, "Restarting": 0, "Pending": 1, "Queued": 2, "Suspended": 2, "Failed": 3, "Interrupted": 3}
"""Phase -> place in lists: first jobs that run, then jobs that wait, then failed jobs. Others have LAST."""
LAST = 4


@dataclass(frozen=True)
class JobView:
    """A job at a moment. A text is empty while its fact is unknown or does not apply."""

    manifest: Mapping[str, Any]
    """The job in the form of the API."""
    status: Status
    until: datetime
    """The moment up to which times count."""
    active: bool = True
    """Whether something still runs the job. False for a local run whose process has ended, and for a deleted job."""

    @classmethod
    def decode(cls, manifest: Mapping[str, Any], until: datetime, *, active: bool = True) -> JobView:
        """Decode the status of a job."""
        return cls(manifest, status_of(dict(manifest)), until, active)

    def at(self, until: datetime) -> JobView:
        """Return the view of another moment, without decoding the status again."""
        return replace(self, until=until)

    # --- the job -----------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.manifest.get("metadata") or {}

    @property
    def spec(self) -> Mapping[str, Any]:
        return self.manifest.get("spec") or {}

    @property
    def name(self) -> str:
        return str(self.metadata.get("name") or "")

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace") or "")

    @property
    def framework(self) -> str:
        return str(self.spec.get("framework") or "")

    @cached_property
    def gpus(self) -> int:
        """GPUs of all pods of the current attempt."""
        return total_gpus(self.manifest, self.status)

    # --- its phase ---------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """The phase; `Interrupted` if nothing runs an unfinished job any more."""
        return phase_of(self.status.phase, active=self.active)

    @property
    def running(self) -> bool:
        """Whether rates and an estimate of the end are true now."""
        return self.phase == "Running"

    @property
    def reason(self) -> str:
        """Why the job is in its phase: the message of the condition, else its reason."""
        kinds = {"Succeeded": "Complete", "Pending": "Running"}
        condition = self.status.condition(kinds.get(self.status.phase, self.status.phase))
        return condition.message or condition.reason if condition else ""

    @property
    def restarts(self) -> int:
        """All restarts, also those that do not count toward the limit."""
        return self.status.restarts.counted + self.status.restarts.disruptions

    @property
    def restart_reasons(self) -> str:
        """`Error 2, Evicted 1`."""
        return ", ".join(f"{reason} {count}" for reason, count in sorted(self.status.restarts.by_reason.items()))

    @property
    def seconds_since_start(self) -> float | None:
        """The time from the start to the end, or to the moment of this view."""
        start = self.status.start_time
        return ((self.status.completion_time or self.until) - start).total_seconds() if start else None

    @property
    def took(self) -> str:
        """The duration of a job that has ended: `1:02:03`."""
        seconds = self.seconds_since_start
        over = self.status.completion_time is not None or not self.active
        return elapsed(seconds) if over and seconds is not None else ""

    # --- its progress ------------------------------------------------------------------------------------------------

    @property
    def progress(self) -> str:
        """`1200/5000 24%`."""
        return progress_text.summary(self.status.progress) if self.status.progress else ""

    @property
    def fraction(self) -> float | None:
        """Share of completed steps; None if the total is not reported."""
        return progress_text.fraction(self.status.progress)

    @property
    def epoch(self) -> str:
        """`epoch 3`."""
        progress = self.status.progress
        return "" if progress is None or progress.epoch is None else f"epoch {progress.epoch}"

    @property
    def metrics(self) -> list[str]:
        """`loss 0.31`; the metric of the curve is first."""
        return list(progress_text.metrics(self.status.progress)) if self.status.progress else []

    @property
    def rates(self) -> list[str]:
        """`4.2 steps/s`, `810 samples/s`, `35% waiting for data`; none unless the job runs."""
        return list(progress_text.rates(self.status.progress)) if self.status.progress and self.running else []

    @property
    def rate(self) -> str:
        """The first of the rates."""
        return next(iter(self.rates), "")

    @property
    def eta(self) -> str:
        """`2h10m`; empty unless the job runs."""
        return progress_text.eta(self.status.progress) if self.running else ""

    @property
    def reported(self) -> str:
        """`reported 5s ago`."""
        progress = self.status.progress
        return f"reported {age(progress.last_report, self.until)} ago" if progress and progress.last_report else ""

    @property
    def curve(self) -> list[float | None]:
        return progress_text.values(self.status.progress)

    @property
    def stragglers(self) -> int:
        return len(self.status.progress.stragglers) if self.status.progress else 0

    # --- its time and cost -------------------------------------------------------------------------------------------

    @cached_property
    def times(self) -> dict[str, float]:
        """Seconds by kind; empty without time accounting."""
        return progress_text.times(self.status, self.until)

    @property
    def measured(self) -> bool:
        """Whether the ranks reported steps. Otherwise all running time counts as productive."""
        return progress_text.is_measured(self.status)

    @cached_property
    def goodput_share(self) -> float | None:
        """The goodput, or its upper bound unless it is measured."""
        return progress_text.goodput(self.status, self.until)

    @property
    def goodput(self) -> str:
        """`93.1%`; empty unless it is measured."""
        return progress_text.percent(self.goodput_share) if self.measured else ""

    @property
    def goodput_limit(self) -> str:
        """Why the goodput is not measured, and its upper bound; empty if it is measured, or nothing has run."""
        return "" if self.measured or self.goodput_share is None else progress_text.limit_note(self.goodput_share)

    @cached_property
    def lost(self) -> dict[str, float]:
        """Lost seconds by reason, the largest first."""
        return progress_text.lost_by(self.status, self.until)

    @property
    def lost_by(self) -> str:
        """`Error 2m, Evicted 10s`."""
        return ", ".join(f"{reason} {human(seconds)}" for reason, seconds in self.lost.items())

    @cached_property
    def cost(self) -> costs.Cost | None:
        """None for a job without GPUs."""
        return costs.cost_of(self.status, self.until)

    @property
    def gpu_hours(self) -> str:
        return costs.hours(self.cost.total_hours) if self.cost else ""

    @property
    def money(self) -> str:
        """`38.40 USD`; empty without a price."""
        return costs.amount(self.cost.total_money, self.cost.currency) if self.cost else ""


def of_role(number: int, role: str) -> str:
    """Write `1 worker`, `2 workers`, `2 ps`."""
    return f"{number} {role}{'s' if number != 1 and not role.endswith('s') else ''}"


def gpus_per_pod(job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]] = ()) -> dict[str, int]:
    """Return role -> GPUs of each of its pods, without roles that have none; nothing for a job that cannot be decoded.

    The `pods` of the job come before its manifest, because a TrainingPool can add GPUs to them.
    """
    parsed = job_of(dict(job))
    if parsed is None or not pod_template.has_valid_types(parsed):
        return {}
    templates = pod_template.role_templates(parsed, ANY_PLATFORM)
    gpus = {role: pod_template.gpus(parsed, role, template, ANY_PLATFORM) for role, template in templates.items()}
    manifests = {pod["metadata"]["uid"]: dict(pod) for pod in pods}
    for pod in pods_of(dict(job), manifests.values()) if manifests else ():
        trainers = [item for item in manifests[pod.uid]["spec"]["containers"] if item["name"] == TRAINER]
        gpus[pod.role] = sum(gpu_count.gpus(container.get("resources")) for container in trainers)
    return {role: count for role, count in gpus.items() if count}


def total_gpus(job: Mapping[str, Any], status: Status, pods: Sequence[Mapping[str, Any]] = ()) -> int:
    """Count the GPUs of all pods of the current attempt."""
    parsed = job_of(dict(job))
    sizes = topology.sizes(parsed, status) if parsed else {}
    return sum(sizes.get(role, 0) * count for role, count in gpus_per_pod(job, pods).items())
