"""Receivers of notifications: the file that an administrator mounts from a Secret (setting `receivers`).

The file is read again when it has changed. Authors of jobs can name receivers of it, and addresses whose host it
allows: an author must not be able to make the operator call any address that it can reach.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, get_args
from urllib.parse import urlsplit

import yaml
from pydantic import Field, ValidationError

from allranks.api.notify import Occasion, Receiver, Target, Webhook
from allranks.fields import Model

logger = logging.getLogger("allranks.operator")

OCCASIONS: tuple[str, ...] = get_args(Occasion)


class ReceiverConfig(Model):
    """A receiver, with its secrets."""

    name: Receiver
    type: Literal["CloudEvents", "Slack"]
    url: str = ""
    headers: dict[str, str] = {}
    all_jobs: list[Occasion] = []
    """What it is notified about every job; other jobs name the receiver themselves."""
    namespaces: list[str] = []
    """Only jobs of these namespaces. Empty: of all."""


class Receivers(Model):
    """The file."""

    receivers: Annotated[list[ReceiverConfig], Field(max_length=64)] = []
    allowed_hosts: list[str] = []
    """HOST or HOST:PORT of webhooks that jobs and pools may name."""
    link: str = ""
    """Address of a page about the job, with {namespace} and {name}."""
    sweep_link: str = ""
    """The same about a sweep."""

    def for_all(self, namespace: str) -> dict[str, tuple[str, ...]]:
        """Return the receivers that are notified about every job of the namespace, by occasion."""
        return {
            occasion: tuple(
                receiver.name
                for receiver in self.receivers
                if occasion in receiver.all_jobs and _admits(receiver, namespace)
            )
            for occasion in OCCASIONS
        }

    def resolve(self, name: str, named: Mapping[str, Target], namespace: str) -> ReceiverConfig:
        """Return the receiver of an entry. Raises ValueError with the reason why it cannot be used."""
        if (entry := named.get(name)) is not None and entry.webhook is not None:
            return self._webhook(name, entry.webhook)
        match = next((receiver for receiver in self.receivers if receiver.name == name), None)
        if match is None:
            raise ValueError(f"there is no receiver {name}")
        if not _admits(match, namespace):
            raise ValueError(f"receiver {name} does not admit namespace {namespace}")
        return match

    def _webhook(self, name: str, webhook: Webhook) -> ReceiverConfig:
        target = urlsplit(webhook.url)
        allowed = {target.netloc.lower(), (target.hostname or "")} & {host.lower() for host in self.allowed_hosts}
        # HOST alone admits the usual ports only.
        usual = target.port in (None, 80, 443)
        if target.netloc.lower() not in allowed and not (allowed and usual):
            raise ValueError(f"host {target.netloc} is not in allowedHosts")
        return ReceiverConfig(name=name, type=webhook.format, url=webhook.url)


def _admits(receiver: ReceiverConfig, namespace: str) -> bool:
    return not receiver.namespaces or namespace in receiver.namespaces


class ReceiversFile:
    """The newest valid content of the file. Without a path there are no receivers."""

    def __init__(self, path: str) -> None:
        self._path, self._read_at, self._content = Path(path) if path else None, 0, Receivers()

    @property
    def enabled(self) -> bool:
        return self._path is not None

    def read(self) -> Receivers:
        """Return the newest valid content. An invalid file is logged once, and the former content stays."""
        if self._path is None:
            return self._content
        try:
            changed_at = self._path.stat().st_mtime_ns
            if changed_at == self._read_at:
                return self._content
            self._read_at = changed_at
            self._content = Receivers.model_validate(yaml.safe_load(self._path.read_text()) or {})
        except (OSError, yaml.YAMLError) as error:
            logger.error("receivers of notifications: %s", type(error).__name__)  # not its text: the file is secret
        except ValidationError as error:
            where = "; ".join(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors())
            logger.error("receivers of notifications: %s", where)
        return self._content
