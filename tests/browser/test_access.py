"""Rights of users in Chromium: signing in to the server in the cluster, users without rights, pages of other sites."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from allranks.kube.auth import Connection
from allranks.ui import users
from browser.helpers import JOB, WAIT_MS, expect, see
from support.chromium import DESK, PHONE, findings
from support.ui_in_cluster import ClusterUi

pytestmark = pytest.mark.nightly

TOKEN = "maria"


@pytest.fixture
def cluster_ui(api) -> Iterator[ClusterUi]:
    api.users = {TOKEN: {"team"}}
    with ClusterUi(Connection(api.url)) as server:
        yield server


@pytest.fixture
def page(browser, cluster_ui: ClusterUi) -> Iterator:
    """A page without a session. No script fails."""
    context, problems = browser.new_context(viewport=DESK), []
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    context.close()
    assert problems == []


def sign_in(page, token: str = TOKEN) -> None:
    page.fill("input[name=token]", token)
    page.click("main button:has-text('Sign in')")


def test_a_user_signs_in_chooses_a_namespace_and_signs_out(page, cluster_ui, api):
    page.goto(f"{cluster_ui.site}{JOB}")
    sign_in(page, "somebody")
    see(page, "the API server does not accept the token: sign in with a new one")
    sign_in(page)
    expect(page).to_have_url(f"{cluster_ui.site}{JOB}")  # the page that was asked for
    see(page, "penguins", "h1")
    assert TOKEN not in [cookie["value"] for cookie in page.context.cookies()]
    page.click("nav.top >> text=Jobs")
    see(page, "maria may not list the jobs of all namespaces: choose a namespace")
    page.fill("input[name=namespace]", "vision")
    page.click("text=Show its jobs")
    see(page, "maria may not list distributedtrainings.allranks.dev in namespace vision")
    page.fill("input[name=namespace]", "team")
    page.click("text=Show its jobs")
    see(page, "translate", "table.jobs")
    page.click("text=Sign out")
    see(page, "Sign in", "h1")
    page.goto(f"{cluster_ui.site}{JOB}")
    see(page, "Sign in", "h1")


def test_a_user_whose_token_has_ended_reads_that_the_page_is_not_current(page, cluster_ui, api, monkeypatch):
    monkeypatch.setattr(users, "CHECK_SECONDS", 0.05)
    cluster_ui.stop()
    cluster_ui.start()
    page.goto(f"{cluster_ui.site}{JOB}")
    sign_in(page)
    see(page, "penguins", "h1")
    api.users = {}
    see(page, "You are no longer signed in. This page is not current. Load it again to sign in.", "#connection")
    see(page, "penguins", "h1")


def test_a_page_of_another_site_cannot_act_for_a_user_who_is_signed_in(page, cluster_ui, api):
    page.goto(f"{cluster_ui.site}{JOB}")
    sign_in(page)
    see(page, "penguins", "h1")
    form = f'<form method="post" action="{cluster_ui.site}{JOB}/actions/delete"><button>Win</button></form>'
    page.route("http://evil.example/", lambda route: route.fulfill(body=form, content_type="text/html"))
    page.goto("http://evil.example/")
    page.click("text=Win")
    see(page, "the request comes from a page of another site")
    assert "penguins" in api.jobs


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_the_pages_to_sign_in_and_to_choose_a_namespace_are_accessible(page, cluster_ui, viewport, scheme):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(viewport)

    def check(text: str) -> None:
        see(page, text)
        assert findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]

    page.goto(cluster_ui.site)
    check("Sign in")
    sign_in(page, "somebody")
    check("does not accept the token")
    sign_in(page)
    check("choose a namespace")
    page.fill("input[name=namespace]", "team")
    page.click("text=Show its jobs")
    check("penguins")  # with the name of the user above


def test_a_user_who_may_no_longer_list_jobs_sees_the_last_ones_and_a_sentence(open_page, api):
    page = open_page("/")
    see(page, "penguins")
    api.forbidden = {"distributedtrainings"}
    api.drop_watches()
    see(page, "Not current: me may not list distributedtrainings", "[role=alert]")
    see(page, "penguins")
    api.forbidden = set()
    expect(page.locator("[role=alert]")).to_have_count(0, timeout=WAIT_MS)


def test_a_user_without_rights_for_pods_logs_and_events_sees_sentences_and_the_rest(open_page, api):
    api.forbidden = {"pods", "events"}
    page = open_page(JOB)
    see(page, "me may not list pods in namespace team")
    see(page, "torch.OutOfMemoryError: CUDA out of memory.", "section.failure")
    page.click("nav.tabs >> text=Logs")
    see(page, "me may not list pods in namespace team")
    page.click("nav.tabs >> text=Events")
    see(page, "me may not list events in namespace team")
