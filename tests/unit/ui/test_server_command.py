"""`allranks ui-server`, as the chart starts it."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from allranks.cli.commands.ui import ui_server
from allranks.kube.auth import service_url
from allranks.ui.server import everywhere


def test_outside_of_a_pod_the_api_server_must_be_named(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    done = CliRunner().invoke(ui_server, ["--port", "0"])
    assert done.exit_code == 2
    assert "this is not a pod of a cluster: name the API server with --api-server URL" in done.output


@pytest.mark.parametrize(
    ("host", "url"), [("10.0.0.1", "https://10.0.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443"), ("", "")]
)
def test_in_a_pod_it_is_that_of_the_cluster(monkeypatch, host, url):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert service_url() == url


def test_a_port_in_use_is_said():
    with everywhere(0) as listener:
        port = listener.getsockname()[1]
        done = CliRunner().invoke(ui_server, ["--port", str(port), "--api-server", "http://127.0.0.1:1"])
    assert done.exit_code == 1
    assert f"Error: cannot serve port {port}" in done.output


def test_an_address_that_cannot_be_an_archive_is_said(monkeypatch):
    monkeypatch.setenv("ALLRANKS_ARCHIVE", "ftp://host/history")
    done = CliRunner().invoke(ui_server, ["--port", "0", "--api-server", "http://127.0.0.1:1"])
    assert done.exit_code == 1
    assert done.output.startswith("Error: ftp://host/history: an archive is a directory, or an address that begins")


def test_the_process_serves_on_all_addresses_and_ends_with_sigterm():
    command = [sys.executable, "-m", "allranks", "ui-server", "--port", "0", "--api-server", "http://127.0.0.1:1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        try:
            assert process.stderr
            line = process.stderr.readline()
            port = int(line.partition("port ")[2].partition(",")[0])
            hosts = ["127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])]
            for host in hosts:
                connection = http.client.HTTPConnection(host, port, timeout=60)
                connection.request("GET", "/healthz")
                assert connection.getresponse().read() == b"ok\n"
                connection.close()
            # The API server is away: the answer says so, and the server stays.
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/api/v1/jobs", headers={"Authorization": "Bearer t"})
            answer = connection.getresponse()
            assert answer.status == 503
            assert b"no API server answers at http://127.0.0.1:1" in answer.read()
            connection.close()
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) in (0, -signal.SIGTERM)
