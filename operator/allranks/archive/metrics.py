"""Metrics of the archiver, and what is wrong with the archive at the moment."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest


class Metrics:
    """`problem` is a sentence while the archive or the cluster cannot be used."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.problem = ""
        name = "allranks_archive"
        self.written = Counter(f"{name}_written", "Files written to the archive.", ["kind"], registry=self.registry)
        self.failures = Counter(
            f"{name}_write_failures", "Writes that failed. They are tried again.", ["kind"], registry=self.registry
        )
        self.lost = Counter(
            f"{name}_lost",
            "Logs, jobs and sweeps that are not in the archive: it failed for too long, or the pod was deleted before "
            "its log was read.",
            ["kind"],
            registry=self.registry,
        )
        self.followed = Gauge(f"{name}_followed_logs", "Logs that are read at the moment.", registry=self.registry)
        self.waiting = Gauge(f"{name}_waiting_jobs", "Jobs and sweeps that wait to be written.", registry=self.registry)
        self.size = Gauge(f"{name}_bytes", "Bytes of the archive after the last clean-up.", registry=self.registry)
        self.deleted = Counter(
            f"{name}_deleted_jobs",
            "Jobs and sweeps that were deleted because of their age or size.",
            registry=self.registry,
        )
        self.available = Gauge(
            f"{name}_available", "1 if the last access to the archive succeeded.", registry=self.registry
        )
        self.available.set(1)

    def succeeded(self) -> None:
        self.problem = ""
        self.available.set(1)

    def failed(self, why: str) -> bool:
        """Returns whether this is news, for the log."""
        news, self.problem = not self.problem, why
        self.available.set(0)
        return news

    def page(self) -> bytes:
        return generate_latest(self.registry)
