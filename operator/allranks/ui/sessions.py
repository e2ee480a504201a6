"""Sessions of people who signed in on the page of a server in the cluster, and the names of hosts that have cookies.

Browsers send a cookie to all ports of a host. By `kubectl port-forward` and by `allranks ui`, the pages would share
127.0.0.1 with the programs of others whose ports the user forwards. So they have a name below localhost of their own,
which browsers resolve to this machine, and 127.0.0.1 and localhost have no session.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from allranks.shares import largest_share
from allranks.ui.http_server import PLACE
from allranks.ui.problems import Problem
from allranks.ui.users import User

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Names of this machine that all its programs share."""
HOST = "allranks-ui.localhost"
"""Name of the server in the cluster, for browsers that reach it by kubectl port-forward."""
COOKIE = "allranks-session"
HTTPS_COOKIE = f"__Host-{COOKIE}"
"""Browsers accept a cookie with this prefix only by https, and from no other host."""
SESSION_SECONDS = 12 * 3600.0
MOST_SESSIONS = 1000


def private_host(token: str) -> str:
    """Return the name of `allranks ui` with this token. The name is a secret as well.

    A page of another port that knew the name could send the browser to its own port there, and get the cookie.
    """
    return f"allranks-ui-{hashlib.sha256(f'host of {token}'.encode()).hexdigest()[:16]}.localhost"


def hostname(host: str) -> str:
    """Return the name in a Host header; empty if there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def with_name(name: str, host: str) -> str:
    """Return the Host header with another name, and the same port."""
    _, separator, port = host.rpartition(":")
    return f"{name}:{port}" if separator and port.isdecimal() else name


def cookies(headers: Headers, name: str) -> Iterator[str]:
    """Return the values of the cookies with this name."""
    for line in headers.getlist("cookie"):
        jar: SimpleCookie = SimpleCookie()
        try:
            jar.load(line)
        except CookieError:
            continue
        if name in jar:
            yield jar[name].value


def is_https(request: Request) -> bool:
    """Return whether the browser used https, also if a proxy in front of the server ends TLS."""
    return request.headers.get("x-forwarded-proto", request.url.scheme).split(",")[0].strip() == "https"


@dataclass
class _Session:
    token: str
    account: str
    until: float
    forwarded: bool
    """Began by kubectl port-forward."""


class Sessions:
    """The sessions of all users, in memory."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}

    def begin(self, request: Request, answer: Response, user: User, token: str) -> None:
        """Set the cookie of a new session. If there are too many, the account that has most loses its oldest one."""
        now = time.monotonic()
        self._sessions = {key: session for key, session in self._sessions.items() if session.until > now}
        if len(self._sessions) >= MOST_SESSIONS:
            [(oldest, _), *_] = largest_share(self._sessions.items(), lambda item: item[1].account, user.account)
            del self._sessions[oldest]
        key = secrets.token_urlsafe(32)
        self._sessions[key] = _Session(token, user.account, now + SESSION_SECONDS, _is_forwarded(request))
        # Lax: a link in a message opens the page. What changes something needs the Origin of the own pages as well.
        https = is_https(request)
        answer.set_cookie(_name(request), key, httponly=True, samesite="lax", secure=https, path="/")

    def token_of(self, request: Request) -> str:
        """Return the token of the session that the cookie names. Raises Problem."""
        key = self._key(request)
        if not key or hostname(request.headers.get("host", "")) in LOOPBACK:
            raise Problem(401, "")
        session = self._sessions.get(key)
        if session is None or session.until < time.monotonic():
            self._sessions.pop(key, None)
            raise Problem(401, "your session has ended: sign in again")
        if session.forwarded != _is_forwarded(request):
            raise Problem(401, "the session began on another way to this server: sign in again")
        return session.token

    def end(self, request: Request, answer: Response) -> None:
        """End the session of a request, and delete its cookie."""
        self._sessions.pop(self._key(request), None)
        answer.delete_cookie(_name(request), path="/", secure=is_https(request), httponly=True, samesite="lax")

    @staticmethod
    def _key(request: Request) -> str:
        return next(cookies(request.headers, _name(request)), "")


def _name(request: Request) -> str:
    return HTTPS_COOKIE if is_https(request) else COOKIE


def _is_forwarded(request: Request) -> bool:
    """Return whether the connection comes from inside the pod, as those of kubectl port-forward do.

    A program that got the cookie, such as another forwarded pod whose page lured the browser to its port with the name
    of this server, can connect only from another address.
    """
    place = request.scope.get(PLACE)
    try:
        address = ipaddress.ip_address(place.peer.partition("%")[0]) if place else None
    except ValueError:
        address = None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address) in ("127.0.0.1", "::1")
