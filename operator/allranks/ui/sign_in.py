"""Check who uses a server in the cluster: every request is that of a user whose token the API server accepts.

The token comes with each request as a bearer token, from a program or from an OIDC proxy in front of the server, or
from the sign-in page. Then the browser gets a cookie, and the token stays in the memory of the server. As on the user's
own machine, no page of another site can act.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from allranks.errors import AllranksError
from allranks.ui import rendering
from allranks.ui.access import SAFE, cookies
from allranks.ui.problems import MEDIA_TYPE, Problem, details
from allranks.ui.state import USER, SignedIn
from allranks.ui.users import NAMESPACE_COOKIE, USER_HEADER, Users

COOKIE = "allranks-session"
SESSION_SECONDS = 12 * 3600.0
MOST_SESSIONS = 1000
MOST_FORM_BYTES = 64 * 1024
HEALTH = "/healthz"
"""For the kubelet. It sends no request to the API server: pages say whether that is available."""
OPEN = ("/static/", "/favicon.ico")


@dataclass
class _Session:
    token: str
    until: float


class SignIn:
    """ASGI middleware that rejects requests without a user."""

    def __init__(self, app: ASGIApp, users: Users) -> None:
        self._app, self._users = app, users
        self._sessions: dict[str, _Session] = {}

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
        if path == "/sign-in":
            return await self._sign_in(request) if request.method == "POST" else RedirectResponse("/", 303)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        has_session = scheme.lower() != "bearer"
        if has_session:
            token = self._token_of(request)
            if request.method not in SAFE and "origin" not in request.headers:
                raise Problem(403, "the request has no Origin header: a program sends a bearer token")
        if path == "/sign-out" and request.method == "POST":
            return self._sign_out(request)
        user = await self._users.of(token.strip())
        scope[USER_HEADER] = user
        context = USER.set(SignedIn(user.name, has_session))
        try:
            with user.active():
                await self._app(scope, request.receive, send)
        finally:
            USER.reset(context)
        return None

    def _token_of(self, request: Request) -> str:
        """Return the token of the session that the cookie names. Raises Problem."""
        key = next(cookies(request.headers, COOKIE), "")
        if not key:
            raise Problem(401, "")
        session = self._sessions.get(key)
        if session is None or session.until < time.monotonic():
            self._sessions.pop(key, None)
            raise Problem(401, "your session has ended: sign in again")
        return session.token

    async def _sign_in(self, request: Request) -> Response:
        form = await rendering.read_form(request, MOST_FORM_BYTES)
        target = _local_path(form.get("target", "/"))
        token = "".join(form.get("token", "").split())
        try:
            await self._users.of(token)
        except AllranksError as error:
            return rendering.sign_in_page(details(error), target)
        now = time.monotonic()
        self._sessions = {key: session for key, session in self._sessions.items() if session.until > now}
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        key = secrets.token_urlsafe(32)
        self._sessions[key] = _Session(token, now + SESSION_SECONDS)
        answer = RedirectResponse(target, 303)
        # Lax: a link in a message opens the page. What changes something needs the Origin of the own pages as well.
        answer.set_cookie(COOKIE, key, httponly=True, samesite="lax", secure=_is_https(request), path="/")
        return answer

    def _sign_out(self, request: Request) -> Response:
        self._sessions.pop(next(cookies(request.headers, COOKIE), ""), None)
        answer = RedirectResponse("/", 303)
        answer.delete_cookie(COOKIE, path="/")
        answer.delete_cookie(NAMESPACE_COOKIE, path="/")
        return answer


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
    query = scope.get("query_string", b"").decode("latin-1")
    target = _local_path(path + (f"?{query}" if query else "")) if scope["method"] in SAFE else "/"
    return rendering.sign_in_page(problem if problem.detail else None, target)


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


def _is_https(request: Request) -> bool:
    """Also behind a proxy that ends TLS."""
    return request.headers.get("x-forwarded-proto", request.url.scheme).split(",")[0].strip() == "https"
