"""Servers of Google's and Azure's object stores for tests, as processes: fake-gcs-server and Azurite."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from .tools import built

SECONDS = 300.0
"""Limit for the start of a server on a busy machine."""
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's, as its documentation has them."""


@contextlib.contextmanager
def gcs_server(address: str = "127.0.0.1") -> Iterator[str]:
    """Yields the URL of a server that speaks Google's JSON API. It checks no credentials."""
    port, url = free_port(address)
    folder = built("go-tools.sh", "gcs")
    where = ("-scheme", "http", "-host", address, "-port", str(port), "-public-host", f"{address}:{port}")
    command = [str(folder / "fake-gcs-server"), "-backend", "memory", "-external-url", url, *where]
    with running([*command, "-log-level", "error"], f"{url}/storage/v1/b"):
        yield url


@contextlib.contextmanager
def azure_server(address: str = "127.0.0.1") -> Iterator[str]:
    """Yields the URL of a server that speaks the protocol of Azure's blobs, and checks keys and signatures."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm, which installs Azurite")
    port, url = free_port(address)
    # Clients on PyPI may name a newer version of the API than Azurite has.
    options = ("--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent")
    where = ("--blobHost", address, "--blobPort", str(port))
    with running([str(built("azurite.sh") / "azurite-blob"), *options, *where], url):
        yield f"{url}/{ACCOUNT}"


def gcs_environment(url: str) -> dict[str, str]:
    """The variables that clients need for it."""
    return {"STORAGE_EMULATOR_HOST": url, "NO_GCE_CHECK": "true"}


def azure_environment(url: str, login: str = f"AccountKey={KEY}") -> dict[str, str]:
    """The same. `login`: how the connection string logs in."""
    scheme = url.partition("://")[0]
    text = f"DefaultEndpointsProtocol={scheme};AccountName={ACCOUNT};{login};BlobEndpoint={url};"
    return {"AZURE_STORAGE_CONNECTION_STRING": text}


def google_key(url: str) -> dict[str, str]:
    """The JSON key of a service account, whose tokens come from `url`/token."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(*form).decode()
    more = {"client_email": "reader@birds.iam.gserviceaccount.com", "token_uri": f"{url}/token", "project_id": "birds"}
    return {"type": "service_account", "private_key_id": "1", "private_key": private, "client_id": "1", **more}


def token_answer(token: str) -> tuple[int, dict[str, str], bytes]:
    """What Google answers to who has a key."""
    body = {"access_token": token, "expires_in": 3600, "token_type": "Bearer"}
    return 200, {"Content-Type": "application/json"}, json.dumps(body).encode()


def free_port(address: str) -> tuple[int, str]:
    with socket.create_server((address, 0)) as found:
        port = found.getsockname()[1]
    return port, f"http://{address}:{port}"


@contextlib.contextmanager
def running(command: list[str], url: str) -> Iterator[None]:
    """A process that answers at `url`."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + SECONDS
        while not answers(url):
            assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
            assert time.monotonic() < until, f"{command[0]} does not answer"
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(SECONDS)


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=10).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
