"""`allranks ui-server` as a process, while one account or a sender without credentials floods it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pytest

from allranks.kube.auth import Connection
from allranks.kube.client import Client
from allranks.kube.cluster import user_client
from allranks.ui import users
from allranks.ui.bodies import MOST_BODY_BYTES
from allranks.ui.http_server import LIMITS
from allranks.ui.logs import FOLLOWED, MOST_OF_ALL, PAGES_AT_ONCE
from allranks.ui.problems import Problem
from allranks.ui.users import MOST_REQUESTS_OF_ONE, MOST_SCOPES, MOST_USERS, Users
from support.job_api import JobApi
from support.live import eventually
from support.ui_samples import a_job, pods_of

WAIT_SECONDS = 300
MIB = 2**20
FLOOD, HONEST = "127.0.0.2", "127.0.0.3"
TOKENS = [f"token-{number}" for number in range(MOST_USERS + 20)]
"""Of one account, which may get any number of them."""
PODS = 8


class Process:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process, self._port = process, port

    @contextlib.contextmanager
    def connected(self, address: str) -> Iterator[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, WAIT_SECONDS, source_address=(address, 0))
        try:
            yield connection
        finally:
            connection.close()

    def status(self, token: str, path: str = "/api/v1/jobs?namespace=team", address: str = HONEST) -> int:
        with self.connected(address) as connection:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            answer.read()
            return answer.status

    def length(self, token: str) -> int:
        """Bytes of the list of jobs."""
        with self.connected(HONEST) as connection:
            connection.request("GET", "/api/v1/jobs?namespace=team", headers={"Authorization": f"Bearer {token}"})
            return len(connection.getresponse().read())

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), WAIT_SECONDS, (FLOOD, 0))

    def half_request(self) -> socket.socket:
        connection = self.raw()
        connection.sendall(b"GET / HTTP/1.1\r\nHost: ui\r\nX-Padding: ".ljust(8192, b"x"))
        return connection

    @property
    def peak(self) -> int:
        """The most bytes that were in memory."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@pytest.fixture
def api(tmp_path: Path) -> Iterator[JobApi]:
    job = a_job("penguins", "Running", workers=PODS)
    with JobApi(tmp_path, job) as api:
        api.pods = pods_of(job)
        api.users = {token: {"team"} for token in ("alice", "bob", *TOKENS)}
        api.names = {token: f"system:serviceaccount:flood:bot-{place % 7}" for place, token in enumerate(TOKENS)}
        yield api


@pytest.fixture
def server(api: JobApi) -> Iterator[Process]:
    command = [sys.executable, "-m", "allranks", "ui-server", "--port", "0", "--api-server", api.url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        try:
            assert process.stderr
            server = Process(process, int(process.stderr.readline().partition("port ")[2].partition(",")[0]))
            assert server.status("alice") == 200
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_SECONDS)


def all_at_once(number: int, call: Callable[[int], Any]) -> Counter[Any]:
    with ThreadPoolExecutor(min(number, 64)) as pool:
        return Counter(pool.map(call, range(number)))


@contextlib.contextmanager
def streams(server: Process, tokens: list[str]) -> Iterator[Counter[int]]:
    """Open streams of changes at the same time, which are not closed. The numbers of their statuses."""
    with contextlib.ExitStack() as stack:
        lock = threading.Lock()

        def begin(place: int) -> int:
            with lock:
                connection = stack.enter_context(server.connected(FLOOD))
            authorization = {"Authorization": f"Bearer {tokens[place]}"}
            connection.request("GET", "/api/v1/stream?namespace=team", headers=authorization)
            return connection.getresponse().status

        yield all_at_once(len(tokens), begin)


def test_bodies_of_any_size_are_refused_and_do_not_grow_the_process(server):
    before = server.peak

    def send(place: int) -> int:
        chunked = place % 2 == 1
        with server.connected(FLOOD) as connection:
            head = {"Authorization": f"Bearer {TOKENS[0]}", "Content-Type": "application/json"}
            body = iter([b"x" * MIB] * 20) if chunked else b"x" * 20 * MIB
            with contextlib.suppress(OSError):  # the server does not read all of it
                connection.request("POST", "/api/v1/jobs?namespace=team", body, head, encode_chunked=chunked)
            try:
                return connection.getresponse().status
            except OSError:
                return 0

    statuses = all_at_once(40, send)
    assert set(statuses) <= {413, 0}
    assert statuses[413]
    assert server.status("alice") == server.status("bob") == 200
    assert server.peak - before < 64 * MOST_BODY_BYTES


def test_the_refusal_of_a_body_says_the_limit(server):
    with server.connected(FLOOD) as connection:
        connection.putrequest("POST", "/api/v1/jobs?namespace=team")
        connection.putheader("Authorization", f"Bearer {TOKENS[0]}")
        connection.putheader("Content-Length", str(MOST_BODY_BYTES + 1))
        connection.endheaders(b"x" * MOST_BODY_BYTES)
        answer = connection.getresponse()
        assert answer.status == 413
        assert b"the body of the request is too large: at most 1024 KiB are read" in answer.read()


def test_an_account_with_any_number_of_tokens_ends_no_watch_of_others(server):
    with streams(server, ["alice"]) as first, streams(server, TOKENS[: MOST_SCOPES + 16]) as statuses:
        assert first == {200: 1}
        assert statuses[200] >= MOST_SCOPES
        assert server.status("alice") == 200
        assert server.status("bob") == 200, "a user who comes later has a place, too"


def test_an_account_with_any_number_of_tokens_signs_no_other_account_out(server, api):
    all_at_once(len(TOKENS), lambda place: server.status(TOKENS[place], address=FLOOD))
    asked = api.count("selfsubjectreviews")
    assert server.status("alice") == 200
    assert api.count("selfsubjectreviews") == asked, "her token is still cached"


def test_the_requests_of_one_account_are_bounded_and_others_are_answered(server):
    with streams(server, [TOKENS[place % 3] for place in range(2 * MOST_REQUESTS_OF_ONE)]) as statuses:
        assert statuses == {200: MOST_REQUESTS_OF_ONE, 429: MOST_REQUESTS_OF_ONE}
        assert server.status("alice") == server.status("bob") == 200


def test_an_account_that_asks_for_much_work_delays_others_by_one_piece_of_it(server, api):
    for number in range(300):
        api.put(a_job(f"penguins-{number}", "Running", workers=PODS))
    eventually(lambda: server.length("alice") > 300 * 300)
    address = "/api/v1/history?namespace=team"
    with ThreadPoolExecutor(64) as pool:
        flood = [pool.submit(server.status, TOKENS[0], address, FLOOD) for _ in range(64)]
        next(as_completed(flood))  # the others wait
        assert server.status("alice", address) == 200
        waiting = sum(not request.done() for request in flood)
    assert waiting > 32


def test_half_requests_are_closed_and_others_are_answered_meanwhile(server):
    before = server.peak
    connections = []
    try:
        for _ in range(LIMITS.connections_of_peer + 200):
            with contextlib.suppress(OSError):
                connections.append(server.half_request())
        assert server.status("alice") == server.status("bob") == 200
        for connection in connections:  # the deadline for a head ends all of them
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b""
    finally:
        for connection in connections:
            connection.close()
    assert server.peak - before < 100 * MIB


def test_invalid_tokens_of_one_address_are_not_all_checked_and_others_sign_in(server, api):
    statuses = all_at_once(400, lambda place: server.status(f"invalid-{place}", address=FLOOD))
    assert set(statuses) == {401, 429}
    assert api.count("selfsubjectreviews") < 300
    assert server.status("bob") == 200


LOG = [b"2026-03-04T10:00:00.000000000Z " + b"x" * 800 + b"\n"] * 10_000


def test_logs_of_many_pages_are_read_in_turn_and_do_not_grow_the_process_together(server, api):
    api.logs = {pod["metadata"]["name"]: LOG for pod in api.pods}
    path = "/api/v1/jobs/team/penguins/logs?tail=10000&search=x"
    assert server.status("alice", path) == 200
    one = server.peak
    statuses = all_at_once(8, lambda place: server.status(TOKENS[place], path, FLOOD))
    assert statuses == {200: 8}
    assert server.peak - one < (PAGES_AT_ONCE - 1) * (MOST_OF_ALL + 64 * MIB)
    assert server.status("alice", path) == 200


def test_followed_logs_without_a_reader_are_bounded_together_and_others_follow_theirs(server, api):
    api.logs = {pod["metadata"]["name"]: LOG[:4000] for pod in api.pods}
    before = server.peak
    with contextlib.ExitStack() as stack:

        def follow(token: str, address: str) -> bytes:
            connection = stack.enter_context(server.connected(address))
            path = "/api/v1/jobs/team/penguins/logs?follow=true"
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            assert answer.status == 200
            return next(line for line in answer if line.startswith(b"event: "))

        room = FOLLOWED * 3 // 4 // PODS
        kinds = [follow(TOKENS[0], FLOOD) for _ in range(room + 4)]
        assert kinds == [b"event: lines\n"] * room + [b"event: problem\n"] * 4
        assert follow("alice", HONEST) == b"event: lines\n"
        assert server.status("bob") == 200
        assert server.peak - before < 512 * MIB


def test_large_answers_that_are_not_read_are_bounded_together_and_others_get_theirs(server, api):
    for number in range(200):  # the UI keeps at most 64 KiB of the annotations of a job
        job = a_job(f"large-{number}", "Running")
        job["metadata"]["annotations"] = {"note": "x" * 60_000}
        api.put(job)
    eventually(lambda: server.length("alice") > 10_000_000)
    before = server.peak
    with contextlib.ExitStack() as stack:

        def ask(token: str) -> bytes:
            connection = stack.enter_context(server.raw())
            head = f"GET /api/v1/jobs?namespace=team HTTP/1.1\r\nHost: ui\r\nAuthorization: Bearer {token}\r\n\r\n"
            connection.sendall(head.encode())
            return connection.recv(12)

        statuses = Counter(ask(TOKENS[0]) for _ in range(60))
        assert set(statuses) == {b"HTTP/1.1 200", b"HTTP/1.1 503"}
        assert server.length("alice") > 10_000_000
        assert server.status("bob") == 200
        assert server.peak - before < 300 * MIB


def test_a_list_and_a_page_of_large_jobs_take_little_more_memory_than_their_text(server, api):
    for number in range(150):  # decoded, each takes 5 MB
        job = a_job(f"large-{number}", "Running")
        job["spec"]["template"] = {"spec": {"containers": [{}] * 64_000}}
        api.put(job)
    eventually(lambda: server.length("alice") > 150 * 190_000, seconds=120)
    before = server.peak
    assert [server.status("alice", path) for path in ("/?namespace=team", "/api/v1/jobs?namespace=team")] == [200, 200]
    assert server.peak - before < 100 * MIB


def test_pods_nodes_and_events_of_any_size_are_read_in_pages_and_do_not_grow_the_process_together(server, api):
    labels = {f"label-{number:05}": "x" for number in range(13_000)}
    for number in range(60):
        large = copy.deepcopy(api.pods[0])
        large["metadata"] |= {"name": f"large-{number}", "uid": f"large-{number}", "annotations": labels}
        api.pods.append(large)
        event = {"metadata": {"name": f"e-{number}", "annotations": labels}, "reason": "Noise"}
        api.events.append({**event, "involvedObject": {"kind": "DistributedTraining"}})
    api.queues["/api/v1/nodes"] = {"metadata": {}, "items": []}
    before = server.peak
    paths = ("jobs/team/penguins/pods", "jobs/team/penguins/ranks", "jobs/team/penguins/events", "nodes")
    flood = all_at_once(8, lambda place: server.status(TOKENS[0], f"/api/v1/{paths[place % 4]}?namespace=team", FLOOD))
    assert flood == {200: 8}
    assert [server.status("alice", f"/api/v1/{path}?namespace=team") for path in paths] == [200] * 4
    assert server.peak - before < 120 * MIB


def test_a_new_token_for_which_there_is_no_room_leaves_no_connection_open(api, monkeypatch):
    clients: list[Client] = []

    def recorded(connection: Connection) -> Client:
        clients.append(user_client(connection))
        return clients[-1]

    monkeypatch.setattr(users, "user_client", recorded)
    monkeypatch.setattr(users, "MOST_USERS", 1)

    async def scenario() -> None:
        signed_in = Users(Connection(api.url))
        alice = await signed_in.signed_in("alice")
        with alice.active(), pytest.raises(Problem, match="too many users"):
            await signed_in.signed_in("bob")
        assert [client.transport._connector.closed for client in clients] == [False, True]
        await signed_in.close()

    asyncio.run(scenario())
