"""Connections: service accounts, kubeconfigs, and login programs that the official client runs."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from allranks.kube import auth
from allranks.kube.auth import Connection, LoginProgram, connect
from allranks.kube.client import Client
from allranks.kube.errors import LOGIN_FAILED, LoginError, Unavailable
from allranks.operator.app import Operator
from allranks.operator.settings import Settings
from support.scripted import says, server, status

CONFIG = {
    "current-context": "a",
    "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://h:1/"}}],
    "users": [{"name": "u", "user": {}}],
}


def write(file: Path, **changes: Any) -> str:
    file.write_text(yaml.safe_dump(CONFIG | changes))
    return str(file)


def user(**fields: Any) -> dict[str, Any]:
    return {"users": [{"name": "u", "user": fields}]}


def cluster(**fields: Any) -> dict[str, Any]:
    return {"clusters": [{"name": "c", "cluster": {"server": "https://h:1/", **fields}}]}


@pytest.fixture(autouse=True)
def no_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


# --- kubeconfig ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "--kubeconfig .*: there is no such file"),
        ("[]", "is not a kubeconfig"),
        ("", "is not a kubeconfig: it has no contexts"),
        ("a: 1", "is not a kubeconfig: it has no contexts"),
        ("contexts: 5", "is not a kubeconfig"),
        ("{", "is not YAML"),
        ("{current-context: a, contexts: [{name: b}]}", "there is no context a in .*: there are b"),
        ("{current-context: a, contexts: [{name: a, context: {cluster: c}}]}", "context a: cluster c has no server"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_one_sentence(tmp_path, text, message) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    with pytest.raises(LoginError, match=message):
        connect(str(file))


def test_without_any_configuration_the_message_says_what_to_give() -> None:
    with pytest.raises(LoginError, match=r"no cluster is configured.*give --kubeconfig FILE, or set KUBECONFIG"):
        connect()


def test_paths_in_a_kubeconfig_are_relative_to_it(tmp_path) -> None:
    changes = cluster(**{"certificate-authority": "ca.crt"}) | user(
        **{"client-certificate": "c.pem", "client-key": "/k.pem", "tokenFile": "token"}
    )
    found = connect(write(tmp_path / "config", **changes))
    assert (found.url, found.ca_file) == ("https://h:1", str(tmp_path / "ca.crt"))
    assert found.client_certificate == (str(tmp_path / "c.pem"), "/k.pem")
    assert found.token_file == tmp_path / "token"


def test_options_of_the_cluster_and_the_context(tmp_path) -> None:
    fields = {"proxy-url": "http://p:1", "tls-server-name": "name", "insecure-skip-tls-verify": True}
    context = {"cluster": "c", "user": "u", "namespace": "team"}
    changes = cluster(**fields) | {"contexts": [{"name": "b", "context": context}]}
    found = connect(write(tmp_path / "config", **changes), "b")
    assert (found.proxy, found.server_name, found.verify) == ("http://p:1", "name", False)
    assert (found.namespace, found.context) == ("team", "b")


def test_embedded_data_is_decoded(tmp_path) -> None:
    encoded = base64.b64encode(b"PEM").decode()
    changes = cluster(**{"certificate-authority-data": encoded}) | user(
        **{"client-certificate-data": encoded, "client-key-data": encoded}
    )
    found = connect(write(tmp_path / "config", **changes))
    assert found.ca_data == "PEM"
    assert found.client_certificate
    assert [Path(file).read_bytes() for file in found.client_certificate] == [b"PEM", b"PEM"]
    with pytest.raises(LoginError, match="the certificates for https://h:1 cannot be read"):
        found.ssl_context()


def test_several_files_are_merged_and_the_first_wins(tmp_path, monkeypatch) -> None:
    first = write(tmp_path / "first", contexts=[], users=[{"name": "u", "user": {"token": "first"}}])
    (tmp_path / "dir").mkdir()
    second = write(tmp_path / "dir" / "second", **user(token="second"), **cluster(**{"certificate-authority": "ca"}))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([first, str(tmp_path / "absent"), second]))
    found = connect()
    assert found.token == "first"
    assert found.ca_file is None  # the first file has the cluster, too


def test_a_pod_uses_its_service_account(tmp_path, monkeypatch) -> None:
    for name, text in (("token", "t\n"), ("namespace", "team\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(auth, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    for prefer_pod in (True, False):
        found = connect(prefer_pod=prefer_pod)
        assert (found.url, found.namespace) == ("https://[fd00::1]:443", "team")
        assert found.headers() == {"Authorization": "Bearer t"}
    (tmp_path / "home" / ".kube").mkdir(parents=True)
    write(tmp_path / "home" / ".kube" / "config")
    assert connect().url == "https://[fd00::1]:443"
    assert connect(prefer_pod=False).url == "https://h:1"


# --- login programs --------------------------------------------------------------------------------------------------

PLUGIN = """\
import json, pathlib, sys
count = pathlib.Path(sys.argv[1])
runs = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(runs))
credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
print(json.dumps(credential | {"status": {"token": f"token-{runs}"}}))
"""


def login(folder: Path, url: str = "http://h:1", command: str = sys.executable) -> str:
    (folder / "plugin.py").write_text(PLUGIN)
    program = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": command,
        "args": [str(folder / "plugin.py"), str(folder / "runs")],
        "interactiveMode": "Never",
    }
    return write(folder / "config", **cluster(server=url), **user(exec=program))


def test_a_login_program_runs_once_and_again_when_its_token_is_rejected(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(auth, "LOGIN_SECONDS", 0.0)

    async def scenario() -> None:
        async with server(says({}), says({}), status(401), says({})) as api:
            client = Client(connect(login(tmp_path, api.url)))
            for _ in range(3):
                await client.get("/x")
            await client.close()
            sent = [headers["Authorization"] for headers in api.headers]
            assert sent == ["Bearer token-1"] * 3 + ["Bearer token-2"]

    asyncio.run(scenario())
    assert (tmp_path / "runs").read_text() == "2"


def test_requests_that_are_rejected_together_log_in_once(tmp_path) -> None:
    credentials = LoginProgram(login(tmp_path), "a")
    credentials.forget()
    assert credentials.headers() == {"authorization": "Bearer token-1"}


def test_a_login_program_that_fails_is_reported(tmp_path) -> None:
    with pytest.raises(LoginError, match=r"logging in as context a of .* failed: .*/no/such/program"):
        connect(login(tmp_path, command="/no/such/program"))


def test_a_login_that_fails_later_is_retried(tmp_path) -> None:
    class Failing:
        def headers(self) -> dict[str, str]:
            raise LoginError("the program failed")

        def forget(self) -> None: ...

    async def scenario() -> None:
        client = Client(Connection("http://127.0.0.1:1", credentials=Failing()), retry_timeout=0.0)
        with pytest.raises(Unavailable, match="GET /x: no response from the API server: the program failed") as raised:
            await client.get("/x")
        assert raised.value.reason == LOGIN_FAILED
        await client.close()

    asyncio.run(scenario())


def test_without_the_official_client_the_message_says_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(LoginError, match=r"logs in with a program.*pip install .*\[login\]'"):
        connect(login(tmp_path))


def test_the_operator_runs_without_the_official_client(tmp_path) -> None:
    code = (
        "import sys\n"
        "sys.modules['kubernetes'] = None\n"
        "from allranks.kube.auth import connect\n"
        "from allranks.operator.app import Operator\n"
        "from allranks.operator.settings import Settings\n"
        "print(Operator(Settings(), connect(sys.argv[1])).connection.headers())\n"
    )
    config = write(tmp_path / "config", **user(token="t"))
    done = subprocess.run([sys.executable, "-c", code, config], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("{'Authorization': 'Bearer t'}\n", "")


def test_the_operator_takes_a_kubeconfig_with_a_login_program(tmp_path) -> None:
    operator = Operator(Settings(), connect(login(tmp_path)))
    assert operator.connection.headers() == {"authorization": "Bearer token-1"}
