"""Check who uses the server.

On the user's own machine it is only the user who started it (`Access`). The address that `allranks ui` opens has a
random token, which becomes a cookie, and a random name below localhost, because cookies are shared by all ports of a
name. Pages of other sites are rejected: the Host header is checked against DNS rebinding, the Origin header against
forged requests.

In a cluster it is every user whose token the API server accepts (`SignIn`). The token comes with each request as a
bearer token, from a program or from an OIDC proxy in front of the server, or from the sign-in page. Then the browser
gets a cookie, and the token stays in the memory of the server.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from allranks.errors import AllranksError
from allranks.telemetry.connections import Limits, Rejections
from allranks.ui import rendering
from allranks.ui.bodies import read_body
from allranks.ui.http_server import PLACE, accept_sender
from allranks.ui.problems import MEDIA_TYPE, Problem, details
from allranks.ui.sessions import HOST, LOOPBACK, Sessions, cookies, hostname, is_https, private_host, with_name
from allranks.ui.state import USER, SignedIn
from allranks.ui.users import NAMESPACE_COOKIE, USER_HEADER, User, Users

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

    def __init__(self, app: ASGIApp, token: str, opened: Callable[[], None] = lambda: None) -> None:
        """`opened` is called when a browser has exchanged the token for its cookie."""
        self._app, self._token, self._on_open = app, token, opened
        digest = hashlib.sha256(token.encode()).hexdigest()
        self._host = private_host(token)
        # The value is not the token, which programs use.
        self._cookie, self._session = f"allranks-ui-{digest[:8]}", digest[8:]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = self._answer(scope) if scope["type"] == "http" else None
        except Problem as problem:
            answer = _rejection(scope, problem)
        if answer is None:
            accept_sender(scope)
        await (answer or self._app)(scope, receive, send)

    def _answer(self, scope: Scope) -> Response | None:
        """Return the answer to a request that goes no further, None for any other request. Raises Problem."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if hostname(host) not in LOOPBACK | {self._host}:  # TrustedHostMiddleware would not say what to do
            raise Problem(421, "the Host header is not localhost: open the address that allranks ui printed")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            raise Problem(403, "the request comes from a page of another site")
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = dict(query).get("token")
        if token is not None and scope["method"] in SAFE:
            if not _equal(token, self._token):
                raise Problem(401, "the token is not that of this server: open the address that allranks ui printed")
            if hostname(host) != self._host:
                address = f"http://{with_name(self._host, host)}"
                return RedirectResponse(f"{address}/{quote(scope['path'].lstrip('/'))}?{urlencode(query)}", 307)
            return self._opened(scope["path"], [item for item in query if item[0] != "token"])
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _equal(bearer, self._token):
            return None
        if hostname(host) != self._host or not self._has_cookie(headers):
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
        self._on_open()
        return answer

    def _has_cookie(self, headers: Headers) -> bool:
        return any(_equal(value, self._session) for value in cookies(headers, self._cookie))


def _equal(text: str, secret: str) -> bool:
    return hmac.compare_digest(text.encode(errors="replace"), secret.encode())


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


def _rejection(scope: Scope, problem: Problem) -> Response:
    if scope["path"].startswith("/api/"):
        return JSONResponse(details(problem).model_dump(), problem.status, media_type=MEDIA_TYPE)
    page = f'<!DOCTYPE html><html lang="en"><title>allranks</title><body><h1>allranks</h1><p>{_escaped(str(problem))}.'
    return HTMLResponse(page, problem.status)


# --- in a cluster ----------------------------------------------------------------------------------------------------


MOST_FORM_BYTES = 64 * 1024
HEALTH = "/healthz"
"""Path for the probes of the kubelet. It sends no request to the API server: pages say whether it is available."""
OPEN = ("/static/", "/favicon.ico")


class SignIn:
    """ASGI middleware that rejects requests without a user."""

    def __init__(self, app: ASGIApp, users: Users) -> None:
        self._app, self._users = app, users
        self._rejections, self._sessions = Rejections(Limits()), Sessions()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            answer = await self._answer(Request(scope, receive), send)
        except AllranksError as error:
            answer = challenge(scope, error)
        if answer is not None:
            await answer(scope, receive, send)

    async def _answer(self, request: Request, send: Send) -> Response | None:
        """Return the answer, None if the request was passed on. Raises Problem and ClusterError."""
        scope, path = request.scope, request.url.path
        if path == HEALTH:
            return PlainTextResponse("ok\n")
        _check_origin(request)
        if path.startswith(OPEN):
            await self._app(scope, request.receive, send)
            return None
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        has_session = scheme.lower() != "bearer"
        if has_session and (answer := _elsewhere(request)):
            return answer
        if path == "/sign-in":
            return await self._sign_in(request) if request.method == "POST" else RedirectResponse("/", 303)
        if has_session:
            token = self._sessions.token_of(request)
            if request.method not in SAFE and "origin" not in request.headers:
                raise Problem(403, "the request has no Origin header: a program sends a bearer token")
        if path == "/sign-out" and request.method == "POST":
            return self._sign_out(request)
        user = await self._signed_in(scope, token.strip())
        accept_sender(scope)
        scope[USER_HEADER] = user
        context = USER.set(SignedIn(user.name, has_session))
        try:
            with user.active():
                await self._app(scope, request.receive, send)
        finally:
            USER.reset(context)
        return None

    async def _signed_in(self, scope: Scope, token: str) -> User:
        """Return the user of a token. After many invalid ones from an address, its new tokens are not checked.

        Raises Problem and ClusterError.
        """
        place = scope.get(PLACE)
        peer = place.peer if place else ""
        user = self._users.cached(token)
        if user is None and not self._rejections.allow(peer):
            raise Problem(429, "too many invalid tokens came from this address: try again in a few seconds")
        try:
            return user or await self._users.signed_in(token, peer)
        except AllranksError as error:
            if details(error).status == 401:
                self._rejections.count(peer)
            raise

    async def _sign_in(self, request: Request) -> Response:
        form = rendering.form_fields(await read_body(request.scope, request.receive, MOST_FORM_BYTES))
        target = _local_path(form.get("target", "/"))
        token = "".join(form.get("token", "").split())
        try:
            user = await self._signed_in(request.scope, token)
        except AllranksError as error:
            return rendering.sign_in_page(details(error), target)
        answer = RedirectResponse(target, 303)
        self._sessions.begin(request, answer, user, token)
        return answer

    def _sign_out(self, request: Request) -> Response:
        answer = RedirectResponse("/", 303)
        answer.delete_cookie(NAMESPACE_COOKIE, path="/")
        self._sessions.end(request, answer)
        return answer


def _elsewhere(request: Request) -> Response | None:
    """Return the answer to a browser that uses a name that all programs of its machine share, else None.

    Raises Problem for an attempt to sign in there.
    """
    host, path = request.headers.get("host", ""), request.url.path
    if hostname(host) not in LOOPBACK or path.startswith("/api/"):
        return None
    address = f"{'https' if is_https(request) else 'http'}://{with_name(HOST, host)}"
    if request.method in SAFE:
        return RedirectResponse(address + _target(request.scope), 307)
    if path == "/sign-in":
        raise Problem(421, f"all ports of {hostname(host)} share its cookies: sign in at {address}")
    return None


def challenge(scope: Scope, error: AllranksError) -> Response:
    """Answer a request without a user: with a problem for programs, with the sign-in page for people."""
    problem = details(error)
    path = str(scope["path"])
    if path.startswith("/api/"):
        headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
        problem.detail = problem.detail or "there is no token: send a token for the API server as a bearer token"
        return JSONResponse(problem.model_dump(), problem.status, headers, media_type=MEDIA_TYPE)
    if problem.status != 401:
        return rendering.problem_page(problem)
    target = _local_path(_target(scope)) if scope["method"] in SAFE else "/"
    return rendering.sign_in_page(problem if problem.detail else None, target)


def _target(scope: Scope) -> str:
    query = scope.get("query_string", b"").decode("latin-1")
    return str(scope["path"]) + (f"?{query}" if query else "")


def _check_origin(request: Request) -> None:
    """Raises Problem for a request from a page of another site."""
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    foreign = origin is not None and origin not in (f"http://{host}", f"https://{host}")
    site = request.headers.get("sec-fetch-site", "same-origin")
    if foreign or (request.method not in SAFE and site not in ("same-origin", "none")):
        raise Problem(403, "the request comes from a page of another site")


def _local_path(target: str) -> str:
    """Return the target if it is a path of this server, and no other address."""
    safe = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if safe else "/"
