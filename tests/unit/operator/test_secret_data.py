"""The random data of a job's Secrets."""

from __future__ import annotations

import base64

from allranks.core.objects.companions import SSH_AUTH
from allranks.operator.secret_data import secret_data


def test_the_type_of_a_secret_decides_its_data():
    assert set(secret_data({"type": SSH_AUTH})) == {"ssh-privatekey", "ssh-publickey", "ssh-knownhosts"}
    first, second = (base64.b64decode(secret_data({"type": "Opaque"})["secret"]) for _ in range(2))
    assert len(first) >= 32
    assert first != second
