"""Certificates for tests: an authority of their own, and what it signs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Authority:
    """A certificate authority in memory."""

    def __init__(self, name: str) -> None:
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))
        """In PEM format."""

    def issue(self, name: str, certificate: Path, key: Path, dns_names: Sequence[str] = ()) -> None:
        """Writes a certificate with its key: for a server with these names, or without any for a client."""
        private = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.SERVER_AUTH if dns_names else ExtendedKeyUsageOID.CLIENT_AUTH
        extensions: list[x509.ExtensionType] = [x509.ExtendedKeyUsage([usage])]
        if dns_names:
            extensions.append(x509.SubjectAlternativeName([x509.DNSName(one) for one in dns_names]))
        certificate.write_bytes(self._sign(_name(name), private, *extensions))
        key.touch(mode=0o600)
        key.write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            )
        )

    def _sign(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType) -> bytes:
        now, serial = datetime.now(UTC), x509.random_serial_number()
        builder = x509.CertificateBuilder(
            self._name, name, key.public_key(), serial, now - timedelta(hours=1), now + timedelta(days=30)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
