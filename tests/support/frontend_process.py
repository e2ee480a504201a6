"""The process `allranks operator-frontend`, with nothing in its environment but what it needs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

_STARTS = {"serving /metrics": "metrics", "serving probes": "probes", "receiving reports": "reports"}
"""Start of a log line that ends with a port -> its name."""


@contextlib.contextmanager
def frontend(socket: str, **ports: int) -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    """Yields the process and its ports. Without `ports` it selects free ones."""
    command = [sys.executable, "-m", "allranks", "operator-frontend", "--address=127.0.0.1", "--log-format=json"]
    env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    wanted = {"ALLRANKS_PORT": "metrics", "ALLRANKS_PROBE_PORT": "probes", "ALLRANKS_REPORT_PORT": "reports"}
    env |= {"ALLRANKS_SOCKET": socket} | {variable: str(ports.get(name, 0)) for variable, name in wanted.items()}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            found: dict[str, int] = {}
            while len(found) < 3:
                text = json.loads(process.stderr.readline())["message"]
                found |= {name: int(text.split()[-1]) for start, name in _STARTS.items() if text.startswith(start)}
            yield process, found
        finally:
            process.kill()


def get(port: int, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """(HTTP code, body) of a GET, or with a body of a POST."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
