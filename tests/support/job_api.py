"""An API server with jobs, pods, logs and Events, from memory: what `allranks ui` needs of a cluster."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from allranks.kube.merge_patch import apply

from .some_api import SomeApi, _Handler

Manifest = dict[str, Any]


class JobApi(SomeApi):
    """The test changes `pods`, `events`, `logs` and the sets below."""

    def __init__(self, folder: Path, *jobs: Manifest) -> None:
        super().__init__(folder, *jobs)
        self._server.RequestHandlerClass = type("Handler", (_JobHandler,), {"api": self})
        self.pods: list[Manifest] = []
        self.events: list[Manifest] = []
        self.logs: dict[str, list[bytes]] = {}
        """Pod -> chunks of its log, each line with its time. A follower gets what is appended."""
        self.queues: dict[str, Any] = {}
        """Path -> answer, of what else is served."""
        self.forbidden: set[str] = set()
        """Plurals that the user may not read or change: distributedtrainings, pods, events."""
        self.users: dict[str, set[str]] = {}
        """Token -> namespaces in which it may do everything, for the server in the cluster. The user has its name."""
        self.names: dict[str, str] = {}
        """Token -> name of its user, if that is not the token."""
        self.asked: list[tuple[str, str]] = []
        """(verb, path with query) of each request."""
        self.ended: set[str] = set()
        """Pods whose log ends."""

    def drop_watches(self) -> None:
        """Closes the connections of all watches."""
        watches, self.watches = self.watches, []
        for watch in watches:
            watch.put(None)

    def count(self, part: str) -> int:
        """The number of requests whose address contains the text."""
        return sum(part in path for _, path in self.asked)


class _JobHandler(_Handler):
    api: JobApi

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.api.asked.append(("GET", self.path))
        parts = url.path.strip("/").split("/")
        if self._is_forbidden(parts):
            return
        query = parse_qs(url.query)
        if url.path in self.api.queues:
            self._answer(200, self.api.queues[url.path])
        elif parts[-1] == "log":
            self._log(parts[-2], query)
        elif parts[-1] == "pods":
            self._list(self.api.pods, query)
        elif parts[-1] == "events":
            selector = query.get("fieldSelector", [""])[0]
            about_pods = selector == "involvedObject.kind=Pod"
            events = [event for event in self.api.events if (event["involvedObject"]["kind"] == "Pod") == about_pods]
            self._list(events, query)
        elif parts[-1] == "distributedtrainings" and "watch" not in query:
            namespace = parts[4] if "namespaces" in parts else None
            jobs = self.api.jobs.values()
            self._list([job for job in jobs if namespace in (None, job["metadata"]["namespace"])], query)
        elif "distributedtrainings" in parts or ("trainingsweeps" in parts and self.api.sweeps is not None):
            super().do_GET()
        else:
            self._answer(404, {"kind": "Status", "reason": "NotFound", "message": "not served", "details": {}})

    def do_POST(self) -> None:
        """Answers a review, or creates a job; with dryRun it only answers."""
        self.api.asked.append(("POST", self.path))
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        url = urlsplit(self.path)
        if "reviews" in url.path:
            self._review(job)
            return
        parts = url.path.strip("/").split("/")
        if self._is_forbidden(parts):
            return
        name = job["metadata"]["name"]
        if name in self.api.jobs:
            message = f'distributedtrainings.allranks.dev "{name}" already exists'
            self._answer(409, {"kind": "Status", "reason": "AlreadyExists", "message": message, "details": {}})
            return
        job["metadata"] |= {"namespace": parts[parts.index("namespaces") + 1], "uid": f"uid-of-{name}"}
        if "dryRun" not in parse_qs(url.query):
            self.api.put(job)
        self._answer(201, job)

    def _review(self, review: Manifest) -> None:
        """Answers the name of the user, or whether the user may do something."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.api.users:
            self._answer(401, {"kind": "Status", "reason": "Unauthorized", "message": "Unauthorized", "details": {}})
            return
        where = (review.get("spec") or {}).get("resourceAttributes", {}).get("namespace")
        allowed = {"allowed": where in self.api.users[token]}
        self._answer(201, {"status": {"userInfo": {"username": self.api.names.get(token, token)}, **allowed}})

    def do_PATCH(self) -> None:
        self._change("PATCH")

    def do_DELETE(self) -> None:
        self._change("DELETE")

    def _change(self, verb: str) -> None:
        self.api.asked.append((verb, self.path))
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        parts = urlsplit(self.path).path.strip("/").split("/")
        if self._is_forbidden(parts):
            return
        name = parts[parts.index("distributedtrainings") + 1]
        job = self.api.jobs[name]
        if verb == "DELETE":
            self.api.delete(name)
            self._answer(200, {"kind": "Status", "status": "Success"})
            return
        if parts[-1] == "scale":
            body = {"spec": {"roles": {"worker": {"replicas": body["spec"]["replicas"]}}}}
        changed = apply(body, job)
        self.api.put(changed)
        self._answer(200, changed)

    def _is_forbidden(self, parts: list[str]) -> bool:
        plural = next((part for part in parts if part in self.api.forbidden), None)
        if plural is None:
            return False
        verb = {"GET": "list", "POST": "create", "PATCH": "patch", "DELETE": "delete"}[self.command]
        group = "allranks.dev" if plural == "distributedtrainings" else ""
        message = f'{plural} is forbidden: User "me" cannot {verb} resource "{plural}" in API group "{group}"'
        message += ' in the namespace "team"'
        self._answer(403, {"kind": "Status", "reason": "Forbidden", "message": message, "details": {}})
        return True

    def _list(self, items: list[Manifest], query: dict[str, list[str]]) -> None:
        begin, limit = int(query.get("continue", ["0"])[0]), int(query.get("limit", [str(len(items))])[0])
        end = begin + limit
        metadata = {"resourceVersion": "100"} | ({"continue": str(end)} if end < len(items) else {})
        self._answer(200, {"kind": "List", "metadata": metadata, "items": items[begin:end]})

    def _log(self, pod: str, query: dict[str, list[str]]) -> None:
        chunks = self.api.logs.get(pod)
        if chunks is None:
            self._answer(404, {"kind": "Status", "reason": "NotFound", "message": "no pod", "details": {"name": pod}})
            return
        self.send_response(200)
        self.end_headers()
        try:
            if "follow" in query:
                self._follow(pod, query.get("sinceTime", [""])[0])
                return
            tail = int(query.get("tailLines", ["0"])[0])
            if "sinceSeconds" in query:
                after = datetime.now(UTC) - timedelta(seconds=int(query["sinceSeconds"][0]))
                begin = after.isoformat()[:19].encode()
                chunks = [chunk for chunk in chunks if chunk[:19] >= begin]
            if "timestamps" not in query:
                chunks = [chunk.partition(b" ")[2] for chunk in chunks]
            data = b"".join(chunks)
            lines = data.splitlines(keepends=True)
            limit = int(query.get("limitBytes", [str(1 << 40)])[0])
            self.wfile.write(b"".join(lines[-tail:] if tail else lines)[:limit])
        except OSError:
            pass  # the reader has enough

    def _follow(self, pod: str, since: str) -> None:
        place, begin = 0, since.removesuffix("Z").encode()
        while True:
            over = pod in self.api.ended or self.api.closed
            chunks = self.api.logs.get(pod, [])
            for chunk in chunks[place:]:
                if chunk[:19] >= begin:
                    self.wfile.write(chunk)
            self.wfile.flush()
            place = len(chunks)
            if over:
                return
            time.sleep(0.02)
