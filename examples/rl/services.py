"""HTTP between the roles: JSON in, JSON out. The caller waits for a service that starts late or is replaced."""

import itertools
import json
import os
import time
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WAIT = 300  # seconds until a caller gives up


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests on the port of this pod, for ever."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            content = json.dumps(answer(request)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Print no line for each request."""

    ThreadingHTTPServer(("", int(os.environ["ALLRANKS_PORT"])), Handler).serve_forever()


def addresses(role: str) -> list[str]:
    """Return HOST:PORT of each pod of a role."""
    return Path(os.environ[f"ALLRANKS_HOSTS_{role.upper()}"]).read_text().split()


def ask(role: str, request: dict[str, Any], first: int) -> dict[str, Any]:
    """Return the answer of a pod of the role: of number `first`, or of the next one while that does not answer."""
    pods = addresses(role)
    content = json.dumps(request).encode()
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the services are in the job
    deadline = time.monotonic() + WAIT
    for number in itertools.count(first):
        index = number % len(pods)
        try:
            with direct.open(f"http://{pods[index]}", content, timeout=30) as answer:
                return json.load(answer)
        except OSError as error:
            if time.monotonic() > deadline:
                raise
            if number < first + len(pods):
                print(f"{role}-{index} does not answer ({error})", flush=True)
            time.sleep(0.5)
    raise AssertionError("the loop has no end")
