"""Errors of requests to the API server, and the sentences that the command line prints for them. No I/O.

ClusterError (allranks.errors)
 ├─ LoginError       no cluster is configured, or there are no credentials for it
 └─ ApiError         the API server rejected a request, or did not answer
     ├─ NamespaceTerminating  403: the namespace is being deleted, so nothing can be created in it any more
     ├─ Unavailable  no answer in time: the request may have been carried out or not
     ├─ NotFound     404
     ├─ Conflict     409: the name exists already, or the resourceVersion or UID is not the current one
     ├─ Gone         410: the resourceVersion is too old
     ├─ Refused      400, 403, 422, ...: quota, admission, validation, permissions
     └─ Fenced       not sent: this replica is not the leader
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from allranks.api.job import GROUP, KIND, PLURAL
from allranks.control_sequences import clean
from allranks.errors import ClusterError


class LoginError(ClusterError): ...


class ApiError(ClusterError):
    """`status` is the HTTP status, 0 without an answer. `reason` and `details` are from the Status object."""

    def __init__(
        self,
        message: str,
        status: int = 0,
        reason: str = "",
        details: Mapping[str, Any] | None = None,
        *,
        context: str = "",
    ) -> None:
        super().__init__(f"{context}: {message}" if context else message, status, reason)
        self.message = message
        """Without the context, which is part of `str()`."""
        self.details = details or {}


CONNECT_FAILED, UNTRUSTED, TIMED_OUT, DISCONNECTED = "ConnectFailed", "Untrusted", "TimedOut", "Disconnected"
LOGIN_FAILED = "LoginFailed"
SERVER_TIMEOUT = "ServerTimeout"
"""Reason of a Status with code 500: "The list operation against pods could not be completed at this time"
(apimachinery, NewServerTimeout)."""


class Unavailable(ApiError):
    """`status` is 0 if there was no answer; `reason` is one of the constants below then."""

    retry_after = 0.0
    """Seconds that the API server asks to wait."""

    @property
    def timed_out(self) -> bool:
        """Return whether the answer took too long, for the client or for the API server."""
        return self.reason in (TIMED_OUT, SERVER_TIMEOUT) or self.status == 504


class NotFound(ApiError): ...


class Conflict(ApiError): ...


class Gone(ApiError): ...


class Refused(ApiError): ...


class Fenced(ApiError): ...


class NamespaceTerminating(ApiError):
    """Not a `Refused`: no retry and no change of the job helps."""


BY_STATUS: dict[int, type[ApiError]] = {404: NotFound, 409: Conflict, 410: Gone}
"""Every other rejection is `Refused`."""


@dataclass(frozen=True, slots=True)
class Target:
    """The recipient of a request, for error messages."""

    server: str
    context: str
    path: str
    verb: str = "GET"

    @property
    def place(self) -> str:
        return f"{self.server} (context {self.context})" if self.context else self.server


def explain(error: ApiError, target: Target) -> ClusterError:
    """Return the same error, with a sentence that says what the user can do."""
    message = _clean(error.message)
    if error.status == 0:
        text = _unanswered(error.reason, message, target)
    elif error.status == 401:
        text = f"{target.place} does not accept your credentials: log in again, or choose another context"
    elif error.status == 403:
        text = _forbidden(message, target)
    elif error.status == 404:
        text = _not_found(message, error.details, target)
    elif error.status == 422:
        text = _invalid(error.details.get("causes") or (), message)
    elif error.status == 429 or error.status >= 500:
        text = f"{target.place} cannot serve the request at the moment, try again later: {message}"
    else:
        text = message
    return ClusterError(text, error.status, error.reason, uncertain=_uncertain(error, target.verb))


def _uncertain(error: ApiError, verb: str) -> bool:
    """Return whether the request may have been carried out. A 503 and a 429 are answers to a request that was not
    carried out; a proxy answers 502 or 504 without knowing."""
    if verb == "GET":
        return False
    if error.status == 0:
        return error.reason in (TIMED_OUT, DISCONNECTED)
    return isinstance(error, Unavailable) and error.status >= 500 and error.status != 503


def _unanswered(reason: str, message: str, target: Target) -> str:
    if reason == LOGIN_FAILED:
        return message
    if reason == UNTRUSTED:
        advice = "check certificate-authority in the kubeconfig"
        return f"the certificate of {target.place} is not trusted: {message}: {advice}"
    if reason == CONNECT_FAILED:
        advice = "is the cluster up, and is it the right one? kubectl config get-contexts lists yours"
        return f"no API server answers at {target.place}: {message}: {advice}"
    if reason == TIMED_OUT:
        return f"{target.place} does not answer: try again"
    return f"{target.place} closed the connection ({message}): try again"


_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]*)"'
    r' in API group "(?P<group>[^"]*)"(?: in the namespace "(?P<namespace>[^"]*)"| (?P<all>at the cluster scope))?'
)


def _forbidden(message: str, target: Target) -> str:
    match = _FORBIDDEN.search(message)
    if not match:
        # Not RBAC but admission (quota, pod security, webhook), whose message says what to change.
        return message
    if match["user"] == "system:anonymous":
        return f"{target.place}: the request had no credentials: the kubeconfig has none for this context"
    user, verb, resource, group = match["user"], match["verb"], match["resource"], match["group"]
    plural = f"{resource}.{group}" if group else resource
    role = "ClusterRole" if match["all"] else "Role"
    where = "in all namespaces" if match["all"] else f"in namespace {match['namespace']}"
    narrower = ", or name a namespace" if match["all"] else ""
    return (
        f"{user} may not {verb} {resource} {where}{narrower}: ask an admin of {target.server} for a {role} with verb "
        f"{verb} on {plural}"
    )


def _not_found(message: str, details: Mapping[str, Any], target: Target) -> str:
    kind, name = details.get("kind"), details.get("name")
    if kind == "namespaces":
        return f"namespace {name} does not exist: choose another, or kubectl create namespace {name}"
    if name:
        return message
    if f"/apis/{GROUP}/" in target.path:
        return (
            f"{target.place} does not serve {KIND}: its admin installs allranks there, with the Helm chart in "
            f"charts/allranks or kubectl apply --server-side -f crds/{PLURAL}.yaml"
        )
    return f"{target.place} does not serve {target.path}: {message}"


_PATH = re.compile(r"(?:spec|metadata)\.[\w.\[\]]+: ")
_TYPE = re.compile(r'"(?:object|array|string|integer|number|boolean)": (?!\S+ in body )')
"""Kubernetes 1.30 begins the message of a rule with the type of the field, newer versions with the value or nothing."""


def _invalid(causes: Iterable[Any], message: str) -> str:
    """Return one line per cause, with its field: the format of `allranks validate`."""
    lines = []
    for cause in causes:
        field, text = _clean(str(cause.get("field", ""))), _clean(str(cause.get("message", "")))
        text = _TYPE.sub("", text.removeprefix("Invalid value: "), count=1)
        # A schema's message begins with the value; a rule's does not.
        text = re.sub(r'^("(?:[^"\\]|\\.)*"|-?[\d.]+): (?:spec[\w.\[\]]* in body )?', r"\1 ", text)
        if _PATH.match(text):  # merged rules: sentences with their own paths
            lines += re.split(rf"\. (?={_PATH.pattern})", text.removesuffix("."))
            continue
        prefix = "" if field in ("", "<nil>") else f"{field}: "
        lines.append(f"{prefix}{text}")
    return "\n".join(dict.fromkeys(lines)) or message


def _clean(text: str) -> str:
    return clean(" ".join(text.split()).encode(), colour=False)
