"""What the API server answers when it refuses, in one sentence that says what the user can do. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from allranks.api.job import GROUP, KIND, PLURAL
from allranks.control_sequences import clean
from allranks.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked, and of whom."""

    method: str
    path: str
    server: str
    context: str

    @property
    def place(self) -> str:
        return f"{self.server} (context {self.context})" if self.context else self.server


def refusal(asked: Asked, status: int, body: bytes) -> ClusterError:
    """The error for an answer with an HTTP status of 400 and above."""
    answer = _status(body)
    reason = str(answer.get("reason") or "")
    message = _clean(str(answer.get("message") or body.decode(errors="replace").strip() or f"HTTP status {status}"))
    details = answer.get("details") if isinstance(answer.get("details"), dict) else {}
    assert isinstance(details, dict)
    if status == 401:
        text = f"{asked.place} does not accept your credentials: log in again, or choose another --context"
    elif status == 403:
        text = _forbidden(message, asked)
    elif status == 404:
        text = _not_found(message, details, asked)
    elif status == 422:
        text = invalid(details.get("causes") or (), message)
    elif status == 429 or status >= 500:
        text = f"{asked.place} is in trouble, try again later: {message}"
    else:
        text = message
    return ClusterError(text, status, reason)


_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]*)"'
    r' in API group "(?P<group>[^"]*)"(?: in the namespace "(?P<namespace>[^"]*)"| (?P<all>at the cluster scope))?'
)


def _forbidden(message: str, asked: Asked) -> str:
    found = _FORBIDDEN.search(message)
    if not found:
        # Not RBAC but admission: a quota, pod security, a webhook. It says itself what it wants.
        return message
    if found["user"] == "system:anonymous":
        return f"{asked.place} was asked without credentials: the kubeconfig has none for this context"
    user, verb, resource, group = found["user"], found["verb"], found["resource"], found["group"]
    what = f"{resource}.{group}" if group else resource
    role = "ClusterRole" if found["all"] else "Role"
    where = "in all namespaces" if found["all"] else f"in namespace {found['namespace']}"
    narrower = ", or name one with -n" if found["all"] else ""
    return (
        f"{user} may not {verb} {resource} {where}{narrower}: ask an admin of {asked.server} for a {role} with verb "
        f"{verb} on {what}"
    )


def _not_found(message: str, details: dict[str, Any], asked: Asked) -> str:
    kind, name = details.get("kind"), details.get("name")
    if kind == "namespaces":
        return f"there is no namespace {name}: choose one that there is with -n, or kubectl create namespace {name}"
    if name:
        return message
    if f"/apis/{GROUP}/" in asked.path:
        return (
            f"{asked.place} does not know {KIND}: its admin installs allranks there, with the Helm chart in "
            f"charts/allranks or kubectl apply --server-side -f crds/{PLURAL}.yaml"
        )
    return f"{asked.place} does not serve {asked.path}: {message}"


def invalid(causes: Iterable[Any], message: str) -> str:
    """Every cause on its line, with its field: as `allranks validate` tells them."""
    lines = []
    for cause in causes:
        field, text = _clean(str(cause.get("field", ""))), _clean(str(cause.get("message", "")))
        text = text.removeprefix("Invalid value: ")
        # A schema's message begins with the value; a rule's has none there.
        text = re.sub(r'^("(?:[^"\\]|\\.)*"|-?[\d.]+): (?:spec[\w.\[\]]* in body )?', r"\1 ", text)
        known = "" if field in ("", "<nil>", "spec" if text.startswith("spec.") else "") else f"{field}: "
        lines.append(f"{known}{text}")
    return "\n".join(dict.fromkeys(lines)) or message


def _status(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _clean(text: str) -> str:
    return clean(" ".join(text.split()).encode(), colour=False)
