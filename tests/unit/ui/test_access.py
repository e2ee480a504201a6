"""Protection of the server: token, Host, Origin, headers."""

from __future__ import annotations

import re

import pytest

from allranks.ui.sessions import private_host
from support.ui_server import TOKEN


@pytest.fixture
def cookie(server) -> str:
    answer = server.get(f"/?token={TOKEN}", authorization="none", host=server.host)
    return answer.headers["set-cookie"].partition(";")[0]


def test_the_address_with_the_token_sets_a_strict_cookie_and_loads_the_page_without_it(server):
    answer = server.get(f"/jobs/team/penguins?a=%22%3E&token={TOKEN}", authorization="none", host=server.host)
    assert answer.status == 200
    flags = {flag.strip().lower() for flag in answer.headers["set-cookie"].split(";")[1:]}
    assert flags >= {"httponly", "samesite=strict", "path=/"}
    assert 'content="0;url=/jobs/team/penguins?a=%22%3E"' in answer.text
    assert TOKEN not in answer.text + answer.headers["set-cookie"]


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]"])
def test_a_name_that_other_ports_share_gets_no_cookie_and_has_no_session(server, cookie, name):
    host = f"{name}:{server.port}"
    answer = server.get(f"/jobs/team/penguins?a=1&token={TOKEN}", authorization="none", host=host)
    assert (answer.status, answer.headers["location"]) == (307, f"{server.site}/jobs/team/penguins?a=1&token={TOKEN}")
    assert "set-cookie" not in answer.headers
    assert server.get("/", cookie=cookie, host=host).status == 401
    assert server.get("/api/v1/jobs", host=host).status == 200, "a program sends the token"


def test_the_name_is_as_random_as_the_token_and_no_part_of_the_cookie(server, cookie):
    assert private_host("a") != private_host("b")
    assert server.host.removeprefix("allranks-ui-")[:16] not in cookie + TOKEN


def test_the_cookie_opens_pages(server, cookie):
    assert server.get("/", cookie=cookie, host=server.host).status == 200
    assert server.get("/", cookie=f"other=1; {cookie}; more=2", host=server.host).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "none"},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {TOKEN}"},
        {"cookie": "allranks-ui-00000000=x"},
        {"cookie": "=;;\x7f"},
    ],
)
def test_without_the_token_nothing_is_shown(server, headers):
    for path in ("/", "/api/v1/jobs", "/api/openapi.json", "/static/live.js", "/nothing"):
        answer = server.get(path, **headers)
        assert answer.status == 401
        assert "penguins" not in answer.text
    assert server.get("/api/v1/jobs", **headers).json["title"] == "Unauthorized"
    assert server.get("/?token=wrong", **headers).status == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "", "[x"])
def test_another_host_is_rejected_so_that_no_name_can_be_bound_to_this_machine(server, host):
    answer = server.get("/api/v1/jobs", host=host)
    assert answer.status in (400, 421)
    assert "penguins" not in answer.text


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:{port}", "[::1]:9000", "LOCALHOST"])
def test_names_of_this_machine_are_accepted_also_behind_a_tunnel(server, host):
    assert server.get("/api/v1/jobs", host=host.format(port=server.port)).status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:{port}", "http://{name}:1", "https://{name}:{port}"]
)
def test_a_page_of_another_site_cannot_act_even_with_the_cookie(server, api, cookie, origin):
    sent = {"cookie": cookie, "host": server.host}
    sent["origin"] = origin.format(port=server.port, name=server.host.partition(":")[0])
    assert server.request("POST", "/jobs/team/penguins/actions/delete", "uid=", **sent).status == 403
    assert server.get("/api/v1/jobs", **sent).status == 403
    assert "penguins" in api.jobs


def test_without_an_origin_a_cookie_cannot_act(server, api, cookie):
    for verb, path in (("POST", "/jobs/team/penguins/actions/delete"), ("DELETE", "/api/v1/jobs/team/penguins")):
        assert server.request(verb, path, "", cookie=cookie, host=server.host).status == 403
    assert "penguins" in api.jobs


def test_a_form_of_the_own_page_acts(server, api, cookie):
    path = "/jobs/team/penguins/actions/delete"
    answer = server.request("POST", path, "uid=uid-penguins", cookie=cookie, origin=server.site, host=server.host)
    assert (answer.status, answer.headers["location"]) == (303, "/")
    assert "penguins" not in api.jobs


@pytest.mark.parametrize("path", ["/", "/jobs/team/penguins", "/nothing", "/api/v1/jobs", "/static/live.js"])
def test_every_answer_forbids_scripts_of_others_frames_and_copies(server, path):
    headers = server.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers
    assert ("max-age" if path.startswith("/static") else "no-store") in headers["cache-control"]


def test_pages_load_nothing_from_other_hosts_and_have_no_inline_script_or_style(server):
    for path in ("/", "/jobs/team/penguins", "/jobs/team/penguins/logs", "/queues"):
        page = server.get(path).text
        assert not re.search(r'(?:src|href|action)="(?:https?:)?//', page)
        assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", page)


def test_files_are_only_those_of_the_pages(server):
    for path in ("/static/..%2f..%2fcommand.py", "/static/../command.py", "/static/nothing.js"):
        assert server.get(path).status == 404
