"""The command line's session with an API server: errors as sentences, few retries, watches of plain manifests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from allranks.errors import ClusterError
from allranks.extras import install_command
from allranks.kube import watch as watches
from allranks.kube.cluster import Cluster, Watch, Where
from support.scripted import Answer, Scripted, resets, says, server, status, streams
from support.some_api import SomeApi


@pytest.fixture(autouse=True)
def short_backoffs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "FIRST_BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(watches, "LAST_BACKOFF_SECONDS", 0.02)


@asynccontextmanager
async def cluster_of(tmp_path: Any, *script: Answer) -> AsyncIterator[tuple[Cluster, Scripted]]:
    """Connected through a kubeconfig, as commands are."""
    async with server(*script) as api:
        file = tmp_path / "config"
        file.write_text(
            "{current-context: c, contexts: [{name: c, context: {cluster: c, user: u, namespace: team}}], "
            f"clusters: [{{name: c, cluster: {{server: '{api.url}'}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
        )
        async with Cluster.connect(Where(kubeconfig=str(file))) as cluster, asyncio.timeout(300):
            yield cluster, api


# --- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "fault", "requests"),
    [
        ("GET", resets, 2),
        ("GET", status(429), 2),
        ("GET", status(503), 2),
        ("POST", status(429), 2),
        ("POST", resets, 1),
        ("GET", status(500), 1),
        ("GET", status(401), 1),
        ("GET", status(403), 1),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_only_safe_retries_are_made(tmp_path, verb: str, fault: Answer, requests: int) -> None:
    async def scenario() -> int:
        async with cluster_of(tmp_path, fault, says({})) as (cluster, api):
            try:
                await cluster.request(verb, "/x")
            except ClusterError:
                assert requests == 1
            return len(api.asked)

    assert asyncio.run(scenario()) == requests


def test_an_unreachable_server_is_reported_at_once(tmp_path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, says({})) as (cluster, api):
            pass
        async with Cluster.connect(Where(kubeconfig=str(tmp_path / "config"))) as cluster:
            began = time.monotonic()
            with pytest.raises(
                ClusterError, match=rf"no API server answers at {api.url} \(context c\): connection refused"
            ):
                await cluster.get("/x")
            assert time.monotonic() - began < 5

    asyncio.run(scenario())


def test_warnings_of_the_API_server_are_printed(tmp_path, capsys) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, status(200, Warning='299 - "old version"')) as (cluster, _):
            await cluster.get("/x")
            assert (cluster.namespace, cluster.wanted_namespace) == ("team", None)

    asyncio.run(scenario())
    assert "old version" in capsys.readouterr().err


# --- a watch ---------------------------------------------------------------------------------------------------------


def item(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


def listed(version: int, *items: dict[str, Any]) -> Answer:
    return says({"kind": "List", "metadata": {"resourceVersion": str(version)}, "items": list(items)})


def event(kind: str, what: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": what}


def watched(
    tmp_path: Any, count: int, *script: Answer, table: bool = False
) -> tuple[list[tuple[str, str]], list[str], list[str]]:
    """(the first changes, the messages about the connection, the requests)"""
    messages: list[str] = []

    async def read() -> tuple[list[tuple[str, str]], list[str]]:
        async with cluster_of(tmp_path, *script) as (cluster, api):
            watch = Watch(cluster, "/jobs", {}, table=table, on_interruption=messages.append)
            await watch.listed()
            out = []
            async with aclosing(watch.changes()) as changes:
                async for change in changes:
                    found = change.item["cells"][0] if table else change.item["metadata"]["name"]
                    out.append((change.kind, found))
                    if len(out) == count:
                        break
            return out, [
                f"watch from {query['resourceVersion']}" if "watch" in query else "list" for _, _, query, _ in api.asked
            ]

    changes, requests = asyncio.run(read())
    return changes, messages, requests


def test_a_watch_that_ends_or_breaks_continues_where_it_was(tmp_path):
    changes, messages, requests = watched(
        tmp_path,
        3,
        listed(5, item("a", 3)),
        streams(event("MODIFIED", item("a", 6)), event("BOOKMARK", item("", 9))),
        streams(event("ADDED", item("b", 10)), then="cut"),
        streams(event("DELETED", item("a", 11)), then="hang"),
    )
    assert changes == [("changed", "a"), ("added", "b"), ("deleted", "a")]
    assert requests == ["list", "watch from 5", "watch from 9", "watch from 10"]
    [message] = messages
    assert message.endswith("; trying again")
    assert "closed the connection" in message


@pytest.mark.parametrize(
    "answer",
    [streams(event("ERROR", {"kind": "Status", "code": 410})), status(410, "Expired", "too old resource version")],
    ids=["as an event", "as an answer"],
)
def test_after_a_relist_only_differences_are_reported(tmp_path, answer):
    changes, messages, requests = watched(
        tmp_path,
        4,
        listed(5, item("a", 3), item("b", 4), item("c", 5)),
        answer,
        listed(20, item("a", 3), item("b", 15), item("d", 18)),
        streams(event("MODIFIED", item("a", 21)), then="hang"),
    )
    assert changes == [("deleted", "c"), ("changed", "b"), ("added", "d"), ("changed", "a")]
    assert messages == []
    assert requests == ["list", "watch from 5", "list", "watch from 20"]


def test_a_rejection_ends_a_watch(tmp_path):
    with pytest.raises(ClusterError, match="joe may not watch"):
        watched(tmp_path, 1, listed(5), status(403, "Forbidden", "joe may not watch"))


def test_rows_of_a_table_are_watched(tmp_path):
    def rows(version: int, *found: dict[str, Any]) -> dict[str, Any]:
        cells = [{"cells": [row["metadata"]["name"]], "object": row} for row in found]
        columns = [{"name": "Name"}]
        return {"kind": "Table", "metadata": {"resourceVersion": str(version)}, "rows": cells} | {
            "columnDefinitions": columns
        }

    changes, _, requests = watched(
        tmp_path,
        2,
        says(rows(5, item("a", 3))),
        streams(event("MODIFIED", rows(6, item("a", 6))), event("BOOKMARK", rows(9))),
        streams(event("DELETED", rows(10, item("a", 10))), then="hang"),
        table=True,
    )
    assert changes == [("changed", "a"), ("deleted", "a")]
    assert requests == ["list", "watch from 5", "watch from 9"]


# --- what a command imports ------------------------------------------------------------------------------------------


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)


def test_without_its_packages_a_command_says_what_to_install():
    done = run(
        "import sys\nsys.modules['aiohttp'] = None\nsys.argv = ['allranks', 'get']\n"
        "from allranks.__main__ import main\nmain()"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: the commands for clusters need further Python packages (")
    assert done.stderr.endswith(f"): {install_command('cli')}\n")


def test_a_kubeconfig_with_a_token_does_not_need_the_official_client(tmp_path):
    with SomeApi(tmp_path) as api:
        done = run(
            "import sys\nsys.modules['kubernetes'] = None\n"
            f"sys.argv = ['allranks', 'get', '--kubeconfig', {str(api.kubeconfig)!r}, '-o', 'json']\n"
            "from allranks.__main__ import main\nmain()"
        )
    assert done.returncode == 0, done.stderr
