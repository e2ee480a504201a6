"""Users of the UI of a cluster: sessions, tokens of proxies, requests of other sites, and the shown namespace."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from allranks.ui import sessions
from allranks.ui.access import HEADERS, SecurityHeaders, SignIn
from allranks.ui.http_server import PLACE
from allranks.ui.problems import Problem
from allranks.ui.sessions import COOKIE, HTTPS_COOKIE
from allranks.ui.state import USER
from allranks.ui.users import NAMESPACE_COOKIE, REJECTED, USER_HEADER, User, remember_namespace, requested_namespace
from support.ui_server import Answer

HOST = "ui.example"


class KnownUsers:
    """Accepts the tokens that begin with `good`."""

    def cached(self, token: str) -> User | None:
        return None

    async def signed_in(self, token: str, peer: str) -> User:
        if not token.startswith("good"):
            raise Problem(401, REJECTED)
        return User(None, f"user of {token}", ())  # type: ignore[arg-type]


async def _page(scope: Scope, receive: Receive, send: Send) -> None:
    signed_in = USER.get()
    text = "file" if signed_in is None else f"{scope[USER_HEADER].name}, here: {signed_in.has_session}"
    await PlainTextResponse(text)(scope, receive, send)


class Browser:
    def __init__(self) -> None:
        self.app = SecurityHeaders(SignIn(_page, KnownUsers()))  # type: ignore[arg-type]
        self.peer = "10.0.0.1"

    def request(self, verb: str, path: str, body: str = "", **headers: str) -> Answer:
        path, _, query = path.partition("?")
        given = {"host": HOST, **{name.replace("_", "-"): value for name, value in headers.items()}}
        scope: dict[str, Any] = {"type": "http", "method": verb, "path": path, "query_string": query.encode()}
        scope |= {"scheme": "http", "server": (HOST, 80), "raw_path": path.encode()}
        scope["headers"] = [(name.encode(), value.encode()) for name, value in given.items()]
        scope[PLACE] = SimpleNamespace(peer=self.peer, is_served=lambda: None)
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body.encode(), "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(self.app(scope, receive, send))
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], found, b"".join(part.get("body", b"") for part in sent[1:]).decode())

    def sign_in(self, token: str = "good", target: str = "/", **headers: str) -> Answer:
        body = urlencode({"token": token, "target": target})
        return self.request("POST", "/sign-in", body, **{"origin": f"http://{HOST}", **headers})


@pytest.fixture
def browser() -> Browser:
    return Browser()


def cookie_of(answer: Answer) -> str:
    return answer.headers["set-cookie"].split(";")[0]


def test_a_request_without_a_token_gets_the_sign_in_page_or_a_problem(browser):
    page = browser.request("GET", "/jobs/team/penguins?x=1")
    assert page.status == 401
    assert 'name="target" value="/jobs/team/penguins?x=1"' in page.text
    answer = browser.request("GET", "/api/v1/jobs")
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json["detail"] == "there is no token: send a token for the API server as a bearer token"


def test_a_bearer_token_is_that_of_a_program_or_of_a_proxy(browser):
    assert browser.request("GET", "/", authorization="Bearer good").text == "user of good, here: False"
    assert browser.request("GET", "/api/v1/jobs", authorization="Bearer bad").json["detail"] == REJECTED
    # The token of the request counts, not that of the session.
    cookie = cookie_of(browser.sign_in("good-one"))
    assert "user of good-two" in browser.request("GET", "/", authorization="Bearer good-two", cookie=cookie).text


def test_a_session_begins_on_the_sign_in_page_and_ends_with_sign_out(browser):
    answer = browser.sign_in(target="/queues")
    assert (answer.status, answer.headers["location"]) == (303, "/queues")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    assert "good" not in cookie
    assert {"HttpOnly", "SameSite=lax"} <= set(cookie.split("; "))
    session = cookie_of(answer)
    assert browser.request("GET", "/", cookie=session).text == "user of good, here: True"
    browser.request("POST", "/sign-out", cookie=session, origin=f"http://{HOST}")
    assert "your session has ended" in browser.request("GET", "/", cookie=session).text


def test_a_session_ends_after_its_time(browser, monkeypatch):
    monkeypatch.setattr(sessions, "SESSION_SECONDS", -1.0)
    session = cookie_of(browser.sign_in())
    assert browser.request("GET", "/", cookie=session).status == 401


def test_an_account_with_any_number_of_sessions_signs_no_other_account_out(browser, monkeypatch):
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 5)
    alice = cookie_of(browser.sign_in("good-alice"))
    flood = [cookie_of(browser.sign_in("good-flood")) for _ in range(9)]
    bob = cookie_of(browser.sign_in("good-bob"))
    assert [browser.request("GET", "/", cookie=session).status for session in (alice, bob)] == [200, 200]
    alive = [browser.request("GET", "/", cookie=session).status for session in flood]
    assert alive == [401] * 6 + [200] * 3


def test_behind_tls_the_cookie_is_sent_by_tls_only_and_no_other_host_can_set_it(browser):
    https = {"x_forwarded_proto": "https", "origin": f"https://{HOST}"}
    answer = browser.sign_in(**https)
    assert answer.headers["set-cookie"].startswith(f"{HTTPS_COOKIE}=")
    assert HTTPS_COOKIE.startswith("__Host-")
    flags = set(answer.headers["set-cookie"].split("; ")[1:])
    assert {"Secure", "HttpOnly", "Path=/"} <= flags
    assert not [flag for flag in flags if flag.startswith("Domain")]
    session = cookie_of(answer)
    assert browser.request("GET", "/", cookie=session, **https).status == 200
    planted = session.replace(HTTPS_COOKIE, COOKIE)
    assert browser.request("GET", "/", cookie=planted, **https).status == 401
    left = browser.request("POST", "/sign-out", cookie=session, **https)
    assert "Secure" in left.headers["set-cookie"], "or the browser keeps the cookie"
    assert "Secure" not in browser.sign_in().headers["set-cookie"]


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]"])
def test_a_name_that_other_ports_share_has_no_sessions(browser, name):
    host = f"{name}:8765"
    answer = browser.request("GET", "/jobs/team/penguins?x=1", host=host)
    assert answer.status == 307
    assert answer.headers["location"] == "http://allranks-ui.localhost:8765/jobs/team/penguins?x=1"
    refused = browser.sign_in(host=host, origin=f"http://{host}")
    assert (refused.status, "set-cookie" in refused.headers) == (421, False)
    assert "sign in at http://allranks-ui.localhost:8765" in refused.text
    session = cookie_of(browser.sign_in())
    assert browser.request("GET", "/api/v1/jobs", cookie=session, host=host).status == 401
    assert browser.request("GET", "/api/v1/jobs", authorization="Bearer good", host=host).status == 200
    assert browser.request("GET", "/healthz", host=host).status == 200


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_a_session_of_a_forwarded_port_is_of_no_use_to_a_pod_that_got_its_cookie(browser, peer):
    browser.peer = peer
    session = cookie_of(browser.sign_in())
    assert browser.request("GET", "/", cookie=session).status == 200
    for other in ("10.0.0.7", "::ffff:10.0.0.7", "fd00::7", "127.0.0.6", ""):
        browser.peer = other
        answer = browser.request("GET", "/api/v1/jobs", cookie=session)
        assert (answer.status, "began on another way" in answer.text) == (401, True)
    browser.peer = "127.0.0.1"
    assert browser.request("GET", "/", cookie=session).status == 200


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example", "", "javascript:x"])
def test_after_the_sign_in_no_other_site_is_opened(browser, target):
    assert browser.sign_in(target=target).headers["location"] == "/"


def test_a_token_that_is_not_accepted_is_said_on_the_page(browser):
    page = browser.sign_in("bad")
    assert page.status == 401
    assert REJECTED in page.text
    assert "set-cookie" not in page.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": f"http://{HOST}.evil.example"},
        {"origin": f"http://{HOST}", "sec_fetch_site": "cross-site"},
    ],
)
@pytest.mark.parametrize("path", ["/sign-in", "/sign-out", "/jobs/team/penguins/actions/delete"])
def test_a_page_of_another_site_cannot_act_also_behind_a_proxy_that_adds_the_token(browser, path, headers):
    session = cookie_of(browser.sign_in())
    answer = browser.request("POST", path, "token=good", cookie=session, authorization="Bearer good", **headers)
    assert (answer.status, "another site" in answer.text) == (403, True)
    assert browser.request("GET", "/", cookie=session).status == 200


def test_without_an_origin_a_cookie_cannot_act(browser):
    session = cookie_of(browser.sign_in())
    assert browser.request("POST", "/jobs/team/penguins/actions/delete", cookie=session).status == 403


@pytest.mark.parametrize("path", ["/", "/static/ui.css", "/healthz", "/api/v1/jobs"])
def test_every_answer_has_the_headers_that_forbid_scripts_and_frames(browser, path):
    answer = browser.request("GET", path)
    assert {name: answer.headers[name.lower()] for name in HEADERS} == HEADERS


def test_files_and_health_are_open(browser):
    assert browser.request("GET", "/static/ui.css").text == "file"
    assert browser.request("GET", "/healthz").text == "ok\n"


def test_a_form_of_any_size_is_not_read(browser):
    assert browser.sign_in("good" * 20_000).status == 413


@pytest.mark.parametrize("namespace", ["team-a", "", "no/name"])
def test_the_namespace_that_was_shown_is_remembered(namespace):
    page = PlainTextResponse("")
    remember_namespace(page, namespace)
    cookie = page.headers.get("set-cookie", "")
    assert cookie.startswith(f"{NAMESPACE_COOKIE}=team-a;") == (namespace == "team-a") == bool(cookie)


def request(path_params: dict[str, str], query: str = "", cookie: str = "") -> Request:
    headers = [(b"cookie", f"{NAMESPACE_COOKIE}={cookie}".encode())] if cookie else []
    scope = {"type": "http", "path_params": path_params, "query_string": query.encode(), "headers": headers}
    return Request(scope)


@pytest.mark.parametrize(
    ("path", "query", "cookie", "namespace"),
    [
        ({"source": "jobs", "group": "team", "name": "penguins"}, "", "other", "team"),
        ({}, "namespace=team", "other", "team"),
        ({}, "source=jobs&group=team&name=penguins", "", "team"),
        ({}, "source=runs&group=penguins", "", None),
        ({}, "", "other", "other"),
        ({}, "", "../other", None),
        ({}, "", "", None),
    ],
)
def test_the_address_names_the_namespace_else_it_is_the_last_one(path, query, cookie, namespace):
    assert requested_namespace(request(path, query, cookie)) == namespace


def test_a_name_that_is_none_of_a_namespace_is_said():
    with pytest.raises(Problem, match=r"'team/\.\./x' is not the name of a namespace"):
        requested_namespace(request({"source": "jobs", "group": "team/../x"}))
