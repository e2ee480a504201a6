"""Sends what the function of a rank returned or raised to the operator, in parts. Needs only the standard library.

The operator answers the last part when it has stored the outcome. It may be restarted meanwhile, so each answer says
where to continue.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PART_BYTES = 16_384
"""The same as in allranks.telemetry.outcomes."""
TIMEOUT_SECONDS = 20.0
LONGEST_PAUSE = 15.0
ANSWER_BYTES = 65_536
URL, TOKEN_FILE = "ALLRANKS_REPORT_URL", "ALLRANKS_REPORT_TOKEN_FILE"
LOCAL_RANK = ("LOCAL_RANK", "HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")


def send(content: bytes, kind: str, rank: int, seconds: float) -> str:
    """Try for this many seconds. Return why it was not stored, empty if all is well."""
    url, token_file = os.environ.get(URL), os.environ.get(TOKEN_FILE)
    if not url or not token_file:
        return "the operator of this cluster receives no reports (its chart has reports.enabled: false)"
    local = next((os.environ[name] for name in LOCAL_RANK if os.environ.get(name, "").isdecimal()), "0")
    attempt = os.environ.get("ALLRANKS_ATTEMPT", "0")
    header = {
        "kind": kind,
        "rank": rank,
        "localRank": int(local),
        "size": len(content),
        "attempt": int(attempt) if attempt.isdecimal() else 0,
    }
    return Sender(url, token_file, time.monotonic() + seconds).send(header, content)


class Sender:
    """Sends one outcome."""

    def __init__(self, url: str, token_file: str, deadline: float) -> None:
        self._parts = urlsplit(url)
        self._path = self._parts.path.rpartition("/")[0] + "/outcome"
        self._token_file = Path(token_file)
        self._deadline = deadline
        self._connection: http.client.HTTPConnection | None = None
        self._failures = 0

    def send(self, header: dict[str, Any], content: bytes) -> str:
        # Of many ranks that raise at once the operator stores few, so it is asked first.
        offset, part = 0, b"" if header["kind"] == "raised" else content[:PART_BYTES]
        try:
            while True:
                body = json.dumps({**header, "offset": offset}).encode() + b"\n" + part
                status, answer, retry_after = self._post(body)
                if status == 200:
                    if "stored" in answer:
                        return ""
                    offset = int(answer.get("received", 0))
                    part = content[offset : offset + PART_BYTES]
                    self._failures = 0
                elif status in (400, 404, 409, 413, 422):
                    return str(answer.get("error") or f"the operator answered {status}")
                elif not self._pause(retry_after):
                    return f"the operator did not store it in time: {answer.get('error') or status}"
        finally:
            self._close()

    def _post(self, body: bytes) -> tuple[int, dict[str, Any], float]:
        """Return (status, answer, seconds to wait before the next try); status 0 without an answer."""
        try:
            if self._connection is None:
                https = self._parts.scheme == "https"
                kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
                self._connection = kind(self._parts.hostname or "", self._parts.port, timeout=TIMEOUT_SECONDS)
            # Read each time: the kubelet replaces the token before it expires.
            headers = {"Authorization": f"Bearer {self._token_file.read_text(encoding='ascii').strip()}"}
            self._connection.request("POST", self._path, body, headers)
            response = self._connection.getresponse()
            text = response.read(ANSWER_BYTES)
            if response.will_close:
                self._close()
            answer = json.loads(text)
            wait = response.getheader("Retry-After") or "0"
            return response.status, answer if isinstance(answer, dict) else {}, float(wait) if wait.isdecimal() else 0.0
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._close()
            return 0, {"error": str(error) or type(error).__name__}, 0.0

    def _pause(self, retry_after: float) -> bool:
        """Wait before the next try. Return False if there is no time left for one."""
        self._failures += 1
        pause = max(retry_after, min(LONGEST_PAUSE, 0.2 * 2.0 ** min(self._failures, 8))) * random.uniform(0.7, 1.3)
        if time.monotonic() + pause > self._deadline:
            return False
        time.sleep(pause)
        return True

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
