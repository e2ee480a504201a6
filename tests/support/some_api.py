"""An API server that serves only jobs and sweeps, from memory, for tests of the command line."""

from __future__ import annotations

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml


class SomeApi:
    """A context manager. Watches receive what `put` and `delete` change."""

    def __init__(self, folder: Path, *jobs: dict[str, Any]) -> None:
        self.jobs = {job["metadata"]["name"]: job for job in jobs}
        self.sweeps: list[dict[str, Any]] | None = None
        """None: sweeps are not served."""
        self.watches: list[queue.Queue[dict[str, Any] | None]] = []
        self.closed = False
        self._version = 100
        self._past: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": self}))
        self._server.daemon_threads = True
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "some", "cluster": {"server": self.url}}],
                    "users": [{"name": "me", "user": {"token": "t"}}],
                    "contexts": [{"name": "some", "context": {"cluster": "some", "user": "me", "namespace": "team"}}],
                    "current-context": "some",
                }
            )
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> SomeApi:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.closed = True
            for watch in self.watches:
                watch.put(None)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def put(self, job: dict[str, Any]) -> None:
        self._publish("MODIFIED", job)
        self.jobs[job["metadata"]["name"]] = job

    def delete(self, name: str) -> None:
        self._publish("DELETED", self.jobs.pop(name))

    def _publish(self, kind: str, job: dict[str, Any]) -> None:
        with self._lock:
            self._version += 1
            job["metadata"]["resourceVersion"] = str(self._version)
            event = {"type": kind, "object": job}
            self._past.append(event)
            for watch in self.watches:
                watch.put(event)

    def watch(self, since: int) -> queue.Queue[dict[str, Any] | None]:
        """Every event after that version, past and future."""
        events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with self._lock:
            for event in self._past:
                if int(event["object"]["metadata"]["resourceVersion"]) > since:
                    events.put(event)
            if self.closed:
                events.put(None)  # a client that was faster than the end of the server
            self.watches.append(events)
        return events


class _Handler(BaseHTTPRequestHandler):
    api: SomeApi

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query, name = parse_qs(url.query), url.path.partition("distributedtrainings")[2].strip("/")
        jobs = self.api.jobs
        if "trainingsweeps" in url.path and self.api.sweeps is not None:
            self._sweeps(url.path.partition("trainingsweeps")[2].strip("/"), self.api.sweeps)
        elif "watch" in query:
            self._watch(self.api.watch(int(query["resourceVersion"][0])))
        elif not name:
            field = query.get("fieldSelector", ["="])[0].partition("=")[2]
            found = jobs.values() if "distributedtrainings" in url.path else ()  # there are no pods and no Events
            items = [job for job in found if not field or job["metadata"]["name"] == field]
            self._answer(200, {"kind": "List", "metadata": {"resourceVersion": "100"}, "items": items})
        elif name in jobs:
            self._answer(200, jobs[name])
        else:
            message = f'distributedtrainings.allranks.dev "{name}" not found'
            status = {"kind": "Status", "reason": "NotFound", "message": message, "details": {"name": name}}
            self._answer(404, status)

    def _sweeps(self, name: str, sweeps: list[dict[str, Any]]) -> None:
        if not name:
            self._answer(200, {"kind": "List", "metadata": {"resourceVersion": "100"}, "items": sweeps})
            return
        found = next((sweep for sweep in sweeps if sweep["metadata"]["name"] == name), None)
        missing = {"kind": "Status", "reason": "NotFound", "message": f'"{name}" not found', "details": {}}
        self._answer(200 if found else 404, found or missing)

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, events: queue.Queue[dict[str, Any] | None]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.flush()
        while (event := events.get()) is not None:
            try:
                self.wfile.write(json.dumps(event).encode() + b"\n")
                self.wfile.flush()
            except OSError:
                return

    def log_message(self, format: str, *args: object) -> None:
        pass
