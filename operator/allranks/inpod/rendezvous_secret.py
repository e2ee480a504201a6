"""Keeps other pods away from the rendezvous of a job: any pod of a cluster can reach its port, and Horovod unpickles
what it receives there.

Every pod of the job mounts a secret. Requests of allranks' own helpers carry a token that is derived from it. Horovod's
clients, in C++, cannot send one: they are admitted by the address from which such a request came before.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import math
import os
import time
from typing import Any

FILE = "ALLRANKS_RENDEZVOUS_SECRET_FILE"
HEADER = "X-Allranks-Token"


@functools.cache
def headers() -> dict[str, str]:
    """Return the headers of a request to the rendezvous."""
    mine = token()
    return {HEADER: mine} if mine else {}


def token() -> str:
    """Return the token of this attempt; empty without a secret."""
    try:
        with open(os.environ.get(FILE, ""), "rb") as file:
            secret = file.read()
    except OSError:
        return ""
    return hmac.new(secret, f"attempt {os.environ.get('ALLRANKS_ATTEMPT', '')}".encode(), hashlib.sha256).hexdigest()


def guarded(handler: Any, seconds: float = math.inf) -> Any:
    """Return the HTTP request handler with a guard: untrusted clients get 403. Without a secret, return the handler
    itself.

    `seconds`: time for which an address remains admitted after its last request with the token.
    """
    if not token():
        return handler
    admitted: dict[str, float] = {}
    accepted = {token()}

    class Guarded(handler):  # type: ignore[misc]
        def parse_request(self) -> bool:
            if not super().parse_request():
                return False
            address, now = self.client_address[0], time.monotonic()
            if self._has_token():
                admitted[address] = now + seconds
            elif self.path.startswith("/allranks") or admitted.get(address, now) <= now:
                self.send_error(403)
                return False
            return True

        def _has_token(self) -> bool:
            sent = self.headers.get(HEADER, "").encode()
            if not sent:
                return False
            accepted.add(token())  # a deleted Secret is created again with other data: pods of both times are peers
            return any(
                hmac.compare_digest(sent, accepted_token.encode()) for accepted_token in accepted if accepted_token
            )

    return Guarded
