"""Certificates that change during the life of a process: of the API server's authority, and of the client."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from allranks.kube import auth
from allranks.kube.auth import Connection
from allranks.kube.client import Client
from allranks.kube.errors import UNTRUSTED, ApiError, Unavailable
from allranks.kube.login import ClientCertificate
from support.certificates import Authority
from support.scripted import says


@asynccontextmanager
async def api_server(folder: Path, port: int, signed_by: Authority, clients: Authority) -> AsyncIterator[int]:
    """Serves with a new certificate, and accepts clients of an authority only."""
    signed_by.issue("server", folder / "server.crt", folder / "server.key", ["localhost"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=clients.certificate.decode())
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    application = web.Application()
    application.router.add_get("/version", says({}))
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context, reuse_address=True).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("transports", [1, 2])
def test_certificates_that_change_while_a_process_runs_are_used_for_new_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transports: int
) -> None:
    monkeypatch.setattr(auth, "TOKEN_SECONDS", 0)
    servers, clients = ([Authority(f"{kind} {year}") for year in (2026, 2027)] for kind in ("servers", "clients"))
    ca, certificate, key = (tmp_path / name for name in ("ca.crt", "client.crt", "client.key"))

    async def scenario() -> None:
        ca.write_bytes(servers[0].certificate)
        clients[0].issue("operator", certificate, key)
        async with api_server(tmp_path, 0, servers[0], clients[0]) as port:
            of_client = ClientCertificate(str(certificate), str(key))
            connection = Connection(f"https://localhost:{port}", str(ca), client_certificate=of_client)
            used = [Client(connection, retry_timeout=0.0) for _ in range(transports)]
            for client in used:
                await client.get("/version")
        async with api_server(tmp_path, port, servers[1], clients[1]):
            for client in used:
                with pytest.raises(Unavailable) as refused:
                    await client.get("/version")
                assert refused.value.reason == UNTRUSTED
            key.write_text("")  # written later than the certificate
            ca.write_bytes(servers[1].certificate)
            with pytest.raises(ApiError):
                await used[0].get("/version")
            clients[1].issue("operator", certificate, key)
            for client in used:
                await client.get("/version")
        for client in used:
            await client.close()

    asyncio.run(scenario())
