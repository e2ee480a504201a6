"""Connections: service accounts, kubeconfigs, login programs, and providers of the official client."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from allranks.kube import auth
from allranks.kube import login as logins
from allranks.kube.auth import Connection, connect
from allranks.kube.client import Client
from allranks.kube.errors import LOGIN_FAILED, LoginError, Unavailable
from allranks.kube.login import ClientCertificate
from allranks.operator.app import Operator
from allranks.operator.settings import Settings
from support.scripted import says, server, status

CONFIG = {
    "current-context": "a",
    "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://h:1/"}}],
    "users": [{"name": "u", "user": {}}],
}

GOOD = """\
current-context: a
contexts: [{name: a, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: 'https://h:1/'}}]
users: [{name: u, user: {}}]
"""


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
        (None, "kubeconfig .*: there is no such file"),
        ("", "is not a kubeconfig: it has no contexts"),
        ("a: 1", "is not a kubeconfig: it has no contexts"),
        ("{", ":1:2: is not YAML: expected the node content, but found '<stream end>'"),
        (
            "{current-context: a, contexts: [{name: b}]}",
            "current-context is a, and there is no such context: there are b",
        ),
        (
            "{current-context: a, contexts: [{name: a, context: {cluster: c}}]}",
            "context a names cluster c, and there are no clusters: add it, or kubectl config set-context a --cluster",
        ),
        ("just text", "it must be a mapping with clusters, users and contexts: name another"),
        ("[]", "it must be a mapping with clusters, users and contexts: name another"),
        ("contexts: 5", "is not a kubeconfig: contexts must be a list"),
        ("contexts: [a]", r"contexts\[0\] must be a mapping"),
        ("contexts: [{context: {}}]", r"contexts\[0\].name must be a string"),
        ("users: [{name: u, user: {token: 5}}]", r"users\[0\].user.token must be a string"),
        ("users: [{name: u, user: {exec: aws}}]", r"users\[0\].user.exec must be a mapping"),
        (
            GOOD.replace("server:", "insecure-skip-tls-verify: 'false', server:"),
            r"clusters\[0\].cluster.insecure-skip-tls-verify must be true or false",
        ),
        ("current-context: 5", "current-context must be a string"),
        ("\x00", " is not YAML: unacceptable character #x0000: special characters are not allowed$"),
        ("contexts: [{name: b}, {name: c}]", "has no current-context; there are b, c: choose one of them, or"),
        (GOOD.replace("user: u}", "user: v}"), "context a names user v, and there are u: add it, or kubectl config"),
        (GOOD.replace("cluster: c,", "cluster: d,"), "context a names cluster d, and there are c: add it"),
        (
            GOOD.replace("server: 'https://h:1/'", "server: h"),
            "has the server h, which is not a URL such as https://HOST",
        ),
        (GOOD.replace("https://h:1", "https://h:x"), "has the server https://h:x/, which is not a URL"),
        (GOOD.replace("server: 'https://h:1/'", ""), "its cluster has no server: add its URL"),
        (GOOD.replace("user: {}", "user: {client-certificate: c}"), "user u has a client-certificate and no"),
        (GOOD.replace("user: {}", "user: {client-certificate-data: '%'}"), "client-certificate-data is not base64"),
        (GOOD.replace("user: {}", "user: {exec: {command: c}}"), "exec.apiVersion None is not supported: create the"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_one_sentence(tmp_path, text, message) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    with pytest.raises(LoginError, match=message):
        connect(str(file))


NOT_YAML = {
    "a second colon": (b"a: 1\nb: c: d\n", ":2:5: is not YAML: mapping values are not allowed here$"),
    "an exclamation mark": (b"a: !b c\n", ":1:4: is not YAML: could not determine a constructor for the tag '!b'$"),
    "an invalid date": (b"a: 2026-13-45\n", " is not YAML: month must be in 1..12"),
    "deep nesting": (b"[" * 5000, " is not YAML: maximum recursion depth exceeded"),
    "no text": (b"a: \xff\n", " is not a kubeconfig: it is not text in UTF-8: name another file"),
}


@pytest.mark.parametrize("case", NOT_YAML)
def test_a_kubeconfig_that_is_not_yaml_is_one_sentence_with_the_line(case, tmp_path) -> None:
    text, message = NOT_YAML[case]
    (tmp_path / "config").write_bytes(text)
    with pytest.raises(LoginError, match=f"^{tmp_path}/config{message}") as raised:
        connect(str(tmp_path / "config"))
    assert "\n" not in str(raised.value)


def test_base64_and_certificates_that_are_none_are_named_without_the_words_of_openssl(tmp_path) -> None:
    text = base64.b64encode(b"hello").decode()
    for fields, message in (
        (
            cluster(**{"certificate-authority-data": "%"}),
            "context a of .*config: certificate-authority-data is not base64",
        ),
        (
            cluster(**{"certificate-authority-data": text}),
            "certificate-authority-data is not a certificate in PEM format",
        ),
        (
            user(**{"client-certificate-data": text, "client-key-data": text}),
            "client-key is not in PEM format: copy both",
        ),
        (cluster(**{"certificate-authority": "config"}), "certificate-authority .*config is not a certificate in PEM"),
    ):
        config = write(tmp_path / "config", **fields)
        with pytest.raises(LoginError, match=message) as raised:
            connect(config).ssl_context()
        assert config in str(raised.value)
        assert str(raised.value).endswith("again from the cluster")
        assert "_ssl" not in str(raised.value)


def test_a_directory_is_not_a_kubeconfig(tmp_path) -> None:
    with pytest.raises(LoginError, match=f"^{tmp_path} cannot be read: is a directory$"):
        connect(str(tmp_path))


def test_without_any_configuration_the_message_says_what_to_give() -> None:
    with pytest.raises(LoginError, match=r"no cluster is configured.*name a kubeconfig, or set KUBECONFIG"):
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
    assert found.client_certificate == (b"PEM", b"PEM")
    assert "PEM" not in repr(found)
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
    monkeypatch.setattr(logins, "REJECTED_SECONDS", 0.0)

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
    connection = connect(login(tmp_path))
    connection.forget_token()
    assert connection.headers() == {"Authorization": "Bearer token-1"}


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


def test_a_login_program_needs_no_official_client(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert connect(login(tmp_path)).headers() == {"Authorization": "Bearer token-1"}


def test_a_provider_without_the_official_client_says_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    config = write(tmp_path / "config", **user(**{"auth-provider": {"name": "oidc", "config": {}}}))
    with pytest.raises(LoginError, match=r"auth-provider oidc, which needs.*pip install .*\[cli,login\]', or use"):
        connect(config)


@pytest.mark.parametrize(("provider", "command"), [("gcp", "gcloud container"), ("azure", "az aks")])
def test_a_provider_that_kubectl_removed_says_what_replaces_it(provider, command, tmp_path) -> None:
    config = write(tmp_path / "config", **user(**{"auth-provider": {"name": provider}}))
    with pytest.raises(LoginError, match=f"{provider}, which Kubernetes 1.26 replaced.*create .* again with {command}"):
        connect(config)


def test_an_error_of_the_official_client_is_one_sentence(tmp_path) -> None:
    config = {
        "idp-issuer-url": "http://127.0.0.1:1",
        "client-id": "c",
        "id-token": token_until(0),
        "refresh-token": "r",
    }
    file = write(tmp_path / "config", **user(**{"auth-provider": {"name": "oidc", "config": config}}))
    with pytest.raises(LoginError, match=r"^logging in as context a of .* failed: ") as raised:
        connect(file)
    assert "\n" not in str(raised.value)


def test_a_provider_logs_in_with_the_official_client(tmp_path) -> None:
    config = {"idp-issuer-url": "http://127.0.0.1:1", "client-id": "c", "id-token": token_until(4102444800)}
    file = write(tmp_path / "config", **user(**{"auth-provider": {"name": "oidc", "config": config}}))
    headers = connect(file).headers()
    assert headers == {"authorization": f"Bearer {config['id-token']}"}


def token_until(expires: int) -> str:
    """A JSON web token."""
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, {"exp": expires})]
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "x"])


def test_a_name_and_a_password_are_sent(tmp_path) -> None:
    headers = connect(write(tmp_path / "config", **user(username="me", password="p"))).headers()
    assert headers == {"Authorization": "Basic bWU6cA=="}


PRINTS = {
    "nothing": ("print()", {}, "printed no ExecCredential with a status: run it by hand"),
    "no token": ("show({})", {}, "printed neither a token nor a client certificate with its key"),
    "no certificate's key": (
        "show({'clientCertificateData': 'c'})",
        {},
        "printed neither a token nor a client certificate with its key",
    ),
    "another version": (
        "show({'token': 't'})",
        {"apiVersion": "client.authentication.k8s.io/v1beta1"},
        "printed client.authentication.k8s.io/v1, and exec.apiVersion is client.authentication.k8s.io/v1beta1",
    ),
    "an old version": (
        "",
        {"apiVersion": "client.authentication.k8s.io/v1alpha1"},
        "exec.apiVersion client.authentication.k8s.io/v1alpha1 is not supported: create the kubeconfig again",
    ),
    "no command": ("", {"command": None}, "exec.command is missing: it names the login program"),
    "a failure": (
        "print('no session', file=sys.stderr); sys.exit(3)",
        {},
        "ended with exit code 3: no session",
    ),
    "an error among other lines": (
        "print('loading\\nERROR: you have no account.\\nRun: login\\n', file=sys.stderr); sys.exit(1)",
        {},
        "ended with exit code 1: ERROR: you have no account. / Run: login$",
    ),
    "a missing program": (
        "",
        {"command": "no-such-login", "installHint": "install it with\n  apt"},
        "the login program no-such-login is not on PATH: install it with apt$",
    ),
    "a missing program without a hint": (
        "",
        {"command": "no-such-login"},
        "no-such-login is not on PATH: install it, or choose another context",
    ),
    "a program that must ask": ("", {"interactiveMode": "Always"}, "needs a terminal .interactiveMode Always., and"),
    "a program that does not end": ("import time; time.sleep(60)", {}, "did not end within 0 s: run it by hand"),
}


@pytest.mark.parametrize("case", PRINTS)
def test_a_login_program_that_prints_no_credential_is_one_sentence(case, tmp_path, monkeypatch) -> None:
    program, changes, message = PRINTS[case]
    if "sleep" in program:
        monkeypatch.setattr(logins, "RUN_SECONDS", 0.3)
    with pytest.raises(LoginError, match=r"logging in as context a of .* failed: ") as raised:
        connect(login_by(tmp_path, program, **changes))
    assert "\n" not in str(raised.value)
    assert re.search(message, str(raised.value)), raised.value


def test_a_login_program_gets_its_environment_and_the_cluster(tmp_path) -> None:
    text = "show({'token': os.environ['A'] + '|' + os.environ['KUBERNETES_EXEC_INFO']})"
    env = [{"name": "A", "value": "b"}]
    token = connect(login_by(tmp_path, text, env=env, provideClusterInfo=True)).headers()["Authorization"]
    value, _, info = token.removeprefix("Bearer ").partition("|")
    assert value == "b"
    assert json.loads(info) == {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://h:1/"}},
    }


def test_a_credential_is_renewed_before_it_expires(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(logins, "REJECTED_SECONDS", 0.0)
    text = "open(__file__ + '.runs', 'a').write('.'); n = os.path.getsize(__file__ + '.runs')\n"
    text += "end = '2000-01-01T00:00:00Z' if n == 1 else '2100-01-01T00:00:00Z'\n"
    text += "show({'token': f't{n}', 'expirationTimestamp': end})"
    connection = connect(login_by(tmp_path, text))
    assert [connection.headers()["Authorization"] for _ in range(3)] == ["Bearer t2"] * 3


def test_a_relative_login_program_is_beside_its_kubeconfig(tmp_path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "login"
    program.write_text(f"#!{sys.executable}\nfrom runpy import run_path\nrun_path({str(tmp_path / 'plugin.py')!r})\n")
    program.chmod(0o755)
    config = login_by(tmp_path, "show({'token': 't'})", command="bin/login", args=None)
    assert connect(config).headers() == {"Authorization": "Bearer t"}


# --- certificates ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pems() -> tuple[bytes, bytes, bytes]:
    """(certificate, its key, another key)"""
    key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "me")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    keys = [
        each.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        for each in (key, other)
    ]
    return certificate, keys[0], keys[1]


def embedded(certificate: bytes, key: bytes) -> dict[str, Any]:
    pair = zip(("client-certificate-data", "client-key-data"), (certificate, key), strict=True)
    return user(**{name: base64.b64encode(pem).decode() for name, pem in pair})


@pytest.mark.parametrize("memory", [True, False])
def test_an_embedded_key_leaves_no_file(memory, tmp_path, monkeypatch, pems) -> None:
    if memory:
        monkeypatch.setattr(tempfile, "TemporaryDirectory", None)
    else:
        monkeypatch.delattr(os, "memfd_create")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    connection = connect(write(tmp_path / "config", **embedded(*pems[:2])))
    assert isinstance(connection.ssl_context(), ssl.SSLContext)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_no_private_key_is_left_when_a_command_is_killed(tmp_path, pems) -> None:
    (tmp_path / "tmp").mkdir()
    code = (
        "import os, signal, sys\n"
        "from allranks.kube.auth import connect\n"
        "connect(sys.argv[1]).ssl_context()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    config = write(tmp_path / "config", **embedded(*pems[:2]))
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run([sys.executable, "-c", code, config], env=env, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list((tmp_path / "tmp").iterdir()) == []


CERTIFICATES = {
    "an absent certificate": (
        {"client-certificate": "no.pem", "client-key": "k.pem"},
        r"client-certificate .*no\.pem: no such file or directory: make it readable, or correct its path$",
    ),
    "an absent key": ({"client-certificate": "c.pem", "client-key": "no.pem"}, r"client-key .*no\.pem: no such file"),
    "a directory": ({"client-certificate": "c.pem", "client-key": "."}, r"client-key .*: is a directory: "),
    "another key": (
        {"client-certificate": "c.pem", "client-key": "other.pem"},
        "client-key does not belong to client-certificate: get both again",
    ),
    "no PEM": ({"client-certificate": "text.pem", "client-key": "k.pem"}, "or client-key is not in PEM format: "),
}


@pytest.mark.parametrize("case", CERTIFICATES)
def test_a_certificate_that_cannot_be_used_is_one_sentence(case, tmp_path, pems) -> None:
    fields, message = CERTIFICATES[case]
    for name, pem in zip(("c", "k", "other", "text"), (*pems, b"text"), strict=True):
        (tmp_path / f"{name}.pem").write_bytes(pem)
    with pytest.raises(
        LoginError, match=r"the certificates for https://h:1 cannot be read \(.*config, context a\): "
    ) as raised:
        connect(write(tmp_path / "config", **user(**fields))).ssl_context()
    assert re.search(message, str(raised.value)), raised.value


def test_an_authority_or_a_token_that_cannot_be_read_is_one_sentence(tmp_path) -> None:
    config = write(tmp_path / "config", **cluster(**{"certificate-authority": "no.crt"}), **user(tokenFile="no"))
    connection = connect(config)
    with pytest.raises(LoginError, match=r"config, context a\): certificate-authority .*no\.crt: no such file"):
        connection.ssl_context()
    with pytest.raises(
        LoginError, match=r"the token file .*no cannot be read: no such file or directory: log in again"
    ):
        connection.headers()


def test_a_login_program_renews_its_client_certificate(tmp_path, pems, monkeypatch) -> None:
    data = {"clientCertificateData": pems[0].decode(), "clientKeyData": pems[1].decode()}
    connection = connect(login_by(tmp_path, f"show({data!r})"))
    assert isinstance(connection.ssl_context(), ssl.SSLContext)
    context, connection.client_certificate = connection.ssl_context(), None
    loaded: list[object] = []
    monkeypatch.setattr(ClientCertificate, "load", lambda _self, into: loaded.append(into))
    for _ in range(2):
        connection.headers()
    assert connection.client_certificate == (pems[0], pems[1])
    assert loaded == [context]


def login_by(folder: Path, text: str, **changes: Any) -> str:
    """A kubeconfig with a login program of this text; `show(status)` prints a credential."""
    show = (
        "def show(status):\n"
        "    version = 'client.authentication.k8s.io/v1'\n"
        "    print(json.dumps({'apiVersion': version, 'kind': 'ExecCredential', 'status': status}))\n"
    )
    (folder / "plugin.py").write_text(f"import json, os, sys\n{show}{text}\n")
    program = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(folder / "plugin.py")],
        "interactiveMode": "Never",
    }
    return write(folder / "config", **user(exec=program | changes))


# --- the operator ----------------------------------------------------------------------------------------------------


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
    done = subprocess.run(
        [sys.executable, "-c", code, config], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout, done.stderr) == ("{'Authorization': 'Bearer t'}\n", "")


def test_the_operator_takes_a_kubeconfig_with_a_login_program(tmp_path) -> None:
    operator = Operator(Settings(), connect(login(tmp_path)))
    assert operator.connection.headers() == {"Authorization": "Bearer token-1"}
