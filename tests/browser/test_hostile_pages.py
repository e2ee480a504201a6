"""Pages of hostile servers on other ports of this machine, in Chromium: cookies, requests, forms, frames, names."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from allranks.kube.auth import Connection
from browser.helpers import JOB, see
from support.chromium import REBOUND
from support.live import eventually
from support.ui_in_cluster import ClusterUi
from support.ui_samples import a_job
from support.ui_server import TOKEN, UiServer

pytestmark = pytest.mark.nightly

DELETE = f"{JOB}/actions/delete"
ATTEMPTS = """
const tried = {};
async function attempt(name, request) {
  try { const answer = await request(); tried[name] = `${answer.type} ${answer.status} ${await answer.text()}`; }
  catch (error) { tried[name] = String(error); }
}
function loads(name, tag, property, address) {
  return new Promise((done) => {
    const element = document.createElement(tag);
    element.onload = () => { tried[name] = 'loaded'; done(); };
    element.onerror = () => { tried[name] = 'error'; done(); };
    element[property] = address;
    document.body.append(element);
  });
}
(async () => {
  for (const site of SITES) {
    const body = JSON.stringify(JOB);
    const own = {credentials: 'include'}, blind = {mode: 'no-cors', credentials: 'include'};
    await attempt(`read ${site}`, () => fetch(`${site}/api/v1/jobs?namespace=team`, own));
    await attempt(`read blindly ${site}`, () => fetch(`${site}/api/v1/jobs?namespace=team`, blind));
    await attempt(`create ${site}`, () => fetch(`${site}/api/v1/jobs?namespace=team`,
      {method: 'POST', body, headers: {'content-type': 'application/json'}, ...own}));
    await attempt(`create blindly ${site}`, () => fetch(`${site}/api/v1/jobs?namespace=team`,
      {method: 'POST', body, ...blind}));
    await attempt(`delete ${site}`, () => fetch(`${site}/api/v1/jobs/team/penguins`, {method: 'DELETE', ...own}));
    await attempt(`delete by a form blindly ${site}`, () => fetch(`${site}DELETE_PATH`,
      {method: 'POST', body: new URLSearchParams({uid: ''}), ...blind}));
    await loads(`script ${site}`, 'script', 'src', `${site}/api/v1/jobs?namespace=team`);
    await loads(`picture ${site}`, 'img', 'src', `${site}/static/icon.svg`);
    const events = new EventSource(`${site}/api/v1/stream`, {withCredentials: true});
    await new Promise((done) => {
      events.onmessage = (message) => { tried[`stream ${site}`] = message.data; done(); };
      events.onerror = () => { tried[`stream ${site}`] = 'error'; done(); };
    });
    events.close();
    const opened = window.open(site);
    try { tried[`window ${site}`] = opened.document.body.innerText; }
    catch (error) { tried[`window ${site}`] = String(error); }
    const frame = document.createElement('iframe');
    frame.src = site;
    document.body.append(frame);
  }
  tried.cookie = document.cookie;
  document.body.dataset.tried = JSON.stringify(tried);
})();
"""


class Hostile:
    """A server on a port of its own, such as TensorBoard in a pod whose port a user forwards."""

    def __init__(self) -> None:
        self.cookies: list[str] = []
        """What browsers sent."""
        self.page = ""
        hostile = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hostile.cookies += self.headers.get_all("Cookie") or []
                data = hostile.page.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]

    def __enter__(self) -> Hostile:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def attempts(self, *sites: str) -> None:
        """Serve a page that tries all that a page can."""
        job = a_job("evil", "Running")
        script = ATTEMPTS.replace("SITES", json.dumps(sites)).replace("JOB", json.dumps(job))
        self.page = f"<body><script>{script.replace('DELETE_PATH', DELETE)}</script>"


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    with Hostile() as server:
        yield server


@pytest.fixture
def cluster_ui(api) -> Iterator[ClusterUi]:
    api.users = {"maria": {"team"}}
    with ClusterUi(Connection(api.url)) as server:
        yield server


@pytest.fixture
def context(browser) -> Iterator:
    context = browser.new_context()
    yield context
    context.close()


def results(page) -> dict[str, str]:
    eventually(lambda: page.evaluate("document.body.dataset.tried"))
    tried: dict[str, str] = json.loads(page.evaluate("document.body.dataset.tried"))
    return tried


def writes(api) -> int:
    return sum(verb != "GET" and "reviews" not in path for verb, path in api.asked)


def sign_in(context, ui: ClusterUi):
    """A page of a user who is signed in, who has opened the address of kubectl port-forward."""
    page = context.new_page()
    page.goto(f"{ui.url}{JOB}")
    page.fill("input[name=token]", "maria")
    page.click("main button:has-text('Sign in')")
    see(page, "penguins", "h1")
    assert page.url == f"{ui.site}{JOB}"
    return page


def test_a_page_of_another_port_gets_no_session_of_the_cluster_and_cannot_use_it(context, cluster_ui, api, hostile):
    mine = sign_in(context, cluster_ui)
    hostile.attempts(cluster_ui.url, cluster_ui.url.replace("127.0.0.1", "localhost"), cluster_ui.site)
    for name in ("127.0.0.1", "localhost", "other.localhost"):
        page = context.new_page()
        page.goto(f"http://{name}:{hostile.port}/")
        assert_nothing_happened(page, results(page), api)
        assert hostile.cookies == []
        page.close()
    mine.reload()
    see(mine, "penguins", "h1")


def test_a_page_of_another_port_gets_no_session_of_this_machine_and_cannot_use_it(open_page, server, api, hostile):
    mine = open_page(JOB)
    see(mine, "penguins", "h1")
    hostile.attempts(server.url, server.url.replace("127.0.0.1", "localhost"), server.site)
    for name in ("127.0.0.1", "localhost", "other.localhost"):
        page = mine.context.new_page()
        page.goto(f"http://{name}:{hostile.port}/")
        assert_nothing_happened(page, results(page), api)
        assert hostile.cookies == []
        page.close()
    mine.reload()
    see(mine, "penguins", "h1")


def assert_nothing_happened(page, tried: dict[str, str], api) -> None:
    assert "penguins" not in json.dumps(tried)
    readable = [name for name, result in tried.items() if result.startswith(("basic", "cors", "loaded", "{"))]
    assert readable == []
    assert tried["cookie"] == ""
    assert not [frame.url for frame in page.frames[1:] if "penguins" in frame.content()]
    assert {"penguins", "translate"} <= set(api.jobs)
    assert writes(api) == 0


def test_a_cookie_that_a_page_lured_to_its_own_port_is_of_no_use_to_its_pod(context, cluster_ui, hostile):
    """The name of the server in the cluster is public, and browsers send its cookies to all its ports."""
    sign_in(context, cluster_ui)
    page = context.new_page()
    page.goto(f"http://{cluster_ui.host.partition(':')[0]}:{hostile.port}/")
    assert hostile.cookies
    pod = http.client.HTTPConnection("127.0.0.1", cluster_ui.port, 300, source_address=("127.0.0.7", 0))
    headers = {"Cookie": hostile.cookies[0], "Host": cluster_ui.host, "Origin": cluster_ui.site}
    for verb, path in (("GET", "/api/v1/jobs?namespace=team"), ("DELETE", "/api/v1/jobs/team/penguins")):
        pod.request(verb, path, headers=headers)
        answer = pod.getresponse()
        assert answer.status == 401
        assert b"the session began on another way" in answer.read()
    pod.close()


def test_a_name_of_another_site_that_leads_to_this_machine_shows_nothing(context, open_page, server, cluster_ui, api):
    sign_in(context, cluster_ui)
    page = context.new_page()
    page.goto(f"http://{REBOUND}:{cluster_ui.port}{JOB}")
    see(page, "Sign in", "h1")
    mine = open_page(JOB)
    page = mine.context.new_page()
    page.goto(f"http://{REBOUND}:{server.port}{JOB}")
    assert "the Host header is not localhost" in page.content()
    assert "penguins" not in page.content()


def test_the_address_of_this_machine_leads_to_the_name_without_other_ports(browser, server: UiServer):
    page = browser.new_page()
    page.goto(f"{server.url}{JOB}?token={TOKEN}")
    see(page, "penguins", "h1")
    assert page.url == f"{server.site}{JOB}"
    page.close()
