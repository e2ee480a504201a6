"""Certificates with which a test's API server forwards requests to another server, such as Kueue's visibility server.

The other server believes the user name in a header only of a client with such a certificate.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLIENT = "front-proxy-client"


def options(folder: Path) -> list[str]:
    """Writes the certificates, and returns the options of the API server that uses them."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, client = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_file, client_file, key_file = (folder / f"front-proxy-{name}" for name in ("ca.crt", "client.crt", "key"))
    authority_file.write_bytes(_certificate("front-proxy-ca", authority, "front-proxy-ca", authority))
    client_file.write_bytes(_certificate(CLIENT, client, "front-proxy-ca", authority))
    key_file.touch(mode=0o600)
    key_file.write_bytes(
        client.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    return [
        f"--requestheader-client-ca-file={authority_file}",
        f"--requestheader-allowed-names={CLIENT}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={client_file}",
        f"--proxy-client-key-file={key_file}",
    ]


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, issuer_key: ec.EllipticCurvePrivateKey
) -> bytes:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=name == issuer, path_length=None), critical=True)
    )
    if name != issuer:
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = builder.add_extension(usage, critical=False)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
