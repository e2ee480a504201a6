"""Random content of the Secrets of jobs: an SSH key pair for MPI, a secret for the rendezvous of gloo."""

from __future__ import annotations

import base64
import secrets

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from allranks.core.facts.model import Manifest
from allranks.core.objects.companions import SSH_AUTH


def secret_data(manifest: Manifest) -> dict[str, str]:
    """Return `data` of a new Secret, by its type."""
    if manifest["type"] == SSH_AUTH:
        return key_pair()
    return {"secret": base64.b64encode(secrets.token_urlsafe(32).encode()).decode()}


def key_pair() -> dict[str, str]:
    """Return `data` of a Secret of type kubernetes.io/ssh-auth, with the private and the public key,
    and the known_hosts of the launcher."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b" allranks\n"
    known_hosts = b"* " + public  # all workers have this host key
    return {
        "ssh-privatekey": base64.b64encode(private).decode(),
        "ssh-publickey": base64.b64encode(public).decode(),
        "ssh-knownhosts": base64.b64encode(known_hosts).decode(),
    }
