"""Check who uses the server: only the user who started it, in a page that the server itself delivered.

The address that `allranks ui` opens has a random token, which becomes a cookie. The checks are against pages of other
sites: of the Host header against DNS rebinding, of the Origin header against forged requests.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from allranks.ui.problems import MEDIA_TYPE, Problem, details

HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With no-referrer a form of our own page would have no Origin.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
SAFE = frozenset({"GET", "HEAD"})


class SecurityHeaders:
    """ASGI middleware that forbids frames, and scripts that are not files of the server, in every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if scope["type"] != "websocket":  # there are none
            await self._app(scope, receive, send_with_headers)


class Access:
    """ASGI middleware that rejects requests without the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token
        digest = hashlib.sha256(token.encode()).hexdigest()
        # Cookies are shared by all ports of a host: each server needs a name of its own. The value is not the token,
        # which programs use.
        self._cookie, self._session = f"allranks-ui-{digest[:8]}", digest[8:]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = self._answer(scope) if scope["type"] == "http" else None
        except Problem as problem:
            answer = _rejection(scope, problem)
        await (answer or self._app)(scope, receive, send)

    def _answer(self, scope: Scope) -> Response | None:
        """Return the answer to a request that goes no further, None for any other request. Raises Problem."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if _hostname(host) not in HOSTS:  # TrustedHostMiddleware would not say what to do
            raise Problem(421, "the Host header is not localhost: open the address that allranks ui printed")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            raise Problem(403, "the request comes from a page of another site")
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = dict(query).get("token")
        if token is not None and scope["method"] in SAFE:
            if not _equal(token, self._token):
                raise Problem(401, "the token is not that of this server: open the address that allranks ui printed")
            return self._opened(scope["path"], [item for item in query if item[0] != "token"])
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _equal(bearer, self._token):
            return None
        if not self._has_cookie(headers):
            raise Problem(401, "there is no token: open the address that allranks ui printed in its terminal")
        if scope["method"] not in SAFE and origin is None:
            raise Problem(403, "the request has no Origin header: a program sends the token as a bearer token")
        return None

    def _opened(self, path: str, query: list[tuple[str, str]]) -> Response:
        """Set the cookie, and load the page again without the token.

        The page loads itself, because browsers do not send a strict cookie after a redirection from another site.
        """
        target = quote(f"/{path.lstrip('/')}") + (f"?{urlencode(query)}" if query else "")
        page = (
            f'<!DOCTYPE html><html lang="en"><head><title>allranks</title>'
            f'<meta http-equiv="refresh" content="0;url={_escaped(target)}"></head>'
            f'<body><a href="{_escaped(target)}">allranks</a></body></html>'
        )
        answer = HTMLResponse(page)
        answer.set_cookie(self._cookie, self._session, httponly=True, samesite="strict", path="/")
        return answer

    def _has_cookie(self, headers: Headers) -> bool:
        return any(_equal(value, self._session) for value in cookies(headers, self._cookie))


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


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _equal(text: str, secret: str) -> bool:
    return hmac.compare_digest(text.encode(errors="replace"), secret.encode())


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


def _rejection(scope: Scope, problem: Problem) -> Response:
    if scope["path"].startswith("/api/"):
        return JSONResponse(details(problem).model_dump(), problem.status, media_type=MEDIA_TYPE)
    page = f'<!DOCTYPE html><html lang="en"><title>allranks</title><body><h1>allranks</h1><p>{_escaped(str(problem))}.'
    return HTMLResponse(page, problem.status)
