"""A fake kubelet: binds pods, updates their status like a real one, and carries out deletions.

`Hand` is controlled by a test, step by step. `Kubelet` runs thousands of pods by itself, also as a program:

    PYTHONPATH=tests python -m support.kubelet --kubeconfig FILE --run-seconds 1 [--namespace NAME] [--exit-code N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp

from allranks.core.facts.naming import TRAINER
from allranks.kube.auth import Connection, connect
from support.simulator import pod_status
from support.simulator.kubelets import Program
from support.simulator.store import GRACE_SECONDS, ended

from .api import Api, ApiError, path

Manifest = dict[str, Any]

STOP_SECONDS = 1.0
"""From SIGTERM to the end of a program."""


class Hand:
    """Scheduler, kubelet and node controller of one namespace, controlled by a test. Raises ApiError."""

    def __init__(
        self, api: Api, namespace: str, now: Callable[[], datetime], asked_to_go: Callable[[Manifest], datetime]
    ) -> None:
        self._api, self._namespace, self._now = api, namespace, now
        self._asked_to_go = asked_to_go
        self.lost_nodes: set[str] = set()

    def place(self, pod: str, node: str) -> None:
        """Binds the pod unless it has a node."""
        present = self._get(pod)
        if not _is_bound(present):
            self._api.request("POST", _path(present, "binding"), binding(present, node))
            self._report(pod, pod_status.scheduled)

    def start(self, pod: str) -> None:
        self._report(pod, pod_status.running)

    def end(
        self, pod: str, code: int, reason: str = "", message: str = "", container: str = TRAINER, others: int | None = 0
    ) -> None:
        self._report(pod, pod_status.exited, code, reason, message, container, others)

    def wait(self, pod: str, reason: str, message: str = "", container: str = TRAINER) -> None:
        self._report(pod, pod_status.waiting, reason, message, container)

    def initialize(self, pod: str, container: str) -> None:
        self._report(pod, pod_status.initializing, container)

    def unmount(self, pod: str) -> None:
        self._report(pod, pod_status.unmounted)

    def cannot_place(self, pod: str, message: str) -> None:
        self._report(pod, pod_status.unschedulable, message)

    def fail_init(self, pod: str, code: int, message: str = "") -> None:
        self._report(pod, pod_status.init_failed, code, message)

    def evict(self, pod: str) -> None:
        self._report(pod, pod_status.evicted)

    def set_status(self, pod: str, status: Callable[[Manifest, datetime], Manifest]) -> None:
        self._report(pod, status)

    def disrupt(self, pod: str, reason: str, message: str = "") -> None:
        """Sets the DisruptionTarget condition and deletes the pod with its grace period."""
        self._report(pod, pod_status.disrupted, reason, message)
        self._api.delete("Pod", self._namespace, pod)

    def lose(self, node: str) -> None:
        """The node stops responding: the taint manager deletes its pods, but they stay Terminating."""
        self.lost_nodes.add(node)
        for pod in self._on(node):
            if not ended(pod["status"]):
                name = pod["metadata"]["name"]
                self._report(name, pod_status.unreachable)
                self.disrupt(name, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")

    def recover(self, node: str) -> None:
        """The kubelet of the node responds again and ends the pods that were deleted meanwhile."""
        self.lost_nodes.discard(node)

    def remove(self, node: str) -> None:
        """The node is deleted: the pod garbage collector force-deletes its pods."""
        self.lost_nodes.discard(node)
        for pod in self._on(node):
            if not ended(pod["status"]):
                self._report(pod["metadata"]["name"], pod_status.collected)
            self._remove(pod)

    def next_stop(self) -> datetime | None:
        """When the next terminating pod ends."""
        return min((due for due, _ in self._stopping()), default=None)

    def stop_due(self) -> None:
        """Ends the terminating pods whose time has come."""
        for due, pod in self._stopping():
            if due <= self._now():
                if pod["status"].get("phase") == "Running":
                    code = 137 if _grace(pod) < STOP_SECONDS else 143
                    self.end(pod["metadata"]["name"], code, others=code)
                self._remove(pod)

    def _stopping(self) -> list[tuple[datetime, Manifest]]:
        """(when it is due, pod)"""
        pods = self._api.list("Pod", self._namespace)
        going = [p for p in pods if "deletionTimestamp" in p["metadata"] and _is_bound(p)]
        there = [p for p in going if p["spec"]["nodeName"] not in self.lost_nodes]
        return [(self._asked_to_go(p) + timedelta(seconds=min(STOP_SECONDS, _grace(p))), p) for p in there]

    def _get(self, pod: str) -> Manifest:
        return self._api.get("Pod", self._namespace, pod)

    def _on(self, node: str) -> list[Manifest]:
        return [pod for pod in self._api.list("Pod", self._namespace) if pod["spec"].get("nodeName") == node]

    def _report(self, pod: str, status: Callable[..., Manifest], *how: Any) -> None:
        """`status` is a function of `pod_status`: (pod, time, `how`)."""
        change = {"status": status(self._get(pod), self._now(), *how)}
        self._api.patch("Pod", self._namespace, pod, change, "status")

    def _remove(self, pod: Manifest) -> None:
        """Removes the object, the last step of a deletion."""
        with contextlib.suppress(ApiError):
            self._api.delete("Pod", self._namespace, pod["metadata"]["name"], grace=0, uid=pod["metadata"]["uid"])


class Kubelet:
    """Binds and runs all pods (of one namespace), ends them according to `program(pod)`, and carries out deletions."""

    def __init__(
        self,
        connection: Connection,
        program: Callable[[Manifest], Program],
        *,
        namespace: str | None = None,
        nodes: int = 10,
        concurrency: int = 32,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        binds: bool = True,
    ) -> None:
        """`binds`: it assigns nodes itself, as no scheduler runs."""
        self._connection, self._program, self._namespace, self._now = connection, program, namespace, now
        self._binds = binds
        self._nodes, self._concurrency = nodes, asyncio.Semaphore(concurrency)
        self._lives: dict[str, asyncio.Task[None]] = {}
        """By UID."""
        self._deaths: dict[str, asyncio.Task[None]] = {}
        self._bound = 0
        self.started, self.exited, self.removed = 0, 0, 0
        """Number of pods that were started."""

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Runs until it is cancelled or `stop` is set."""
        tls = self._connection.ssl_context()
        connector = aiohttp.TCPConnector(ssl=tls if isinstance(tls, ssl.SSLContext) else True, limit=0)
        async with aiohttp.ClientSession(
            self._connection.url, connector=connector, headers=self._connection.headers()
        ) as self._session:
            work = [asyncio.create_task(self._follow())]
            work += [asyncio.create_task(stop.wait())] if stop else []
            try:
                done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                # Before the watch is cancelled: that would begin a TLS shutdown, and the loop ends before it completes.
                await connector.close(abort_ssl=True)
                tasks = [*work, *self._lives.values(), *self._deaths.values()]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            try:
                version = await self._relist()
                async for change in self._watch(version):
                    if change["type"] == "ERROR":
                        break
                    if change["type"] != "BOOKMARK":
                        self._saw(change["object"], gone=change["type"] == "DELETED")
            except (aiohttp.ClientError, ApiError, TimeoutError):
                await asyncio.sleep(0.2)  # the API server may become available again

    async def _relist(self) -> str:
        listed = await self._request("GET", path("Pod", self._namespace))
        for pod in listed["items"]:
            self._saw(pod)
        present = {pod["metadata"]["uid"] for pod in listed["items"]}
        for uid in self._lives.keys() - present:
            self._forget(uid)
        return str(listed["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> AsyncIterator[Manifest]:
        query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "240"}
        timeout = aiohttp.ClientTimeout(total=None, sock_read=90)
        async with self._session.get(path("Pod", self._namespace), params=query, timeout=timeout) as answer:
            rest = b""
            # Not by lines: they may be longer than aiohttp's buffer.
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)

    def _saw(self, pod: Manifest, gone: bool = False) -> None:
        uid = pod["metadata"]["uid"]
        if gone:
            self._forget(uid)
        elif "deletionTimestamp" in pod["metadata"]:
            # Without a grace period the API server removes it itself, a moment later.
            if uid not in self._deaths and _is_bound(pod) and _grace(pod):
                if life := self._lives.pop(uid, None):
                    life.cancel()
                self._deaths[uid] = asyncio.create_task(self._die(pod))
        elif uid not in self._lives and not ended(pod["status"]) and (self._binds or _is_bound(pod)):
            self._lives[uid] = asyncio.create_task(self._live(pod))

    def _forget(self, uid: str) -> None:
        """A deletion is carried out completely: the watch reports a removal before its request is answered."""
        if life := self._lives.pop(uid, None):
            life.cancel()

    async def _live(self, pod: Manifest) -> None:
        with contextlib.suppress(ApiError):  # deleted in the meantime, which the watch reports
            if not _is_bound(pod):
                self._bound += 1
                await self._request("POST", _path(pod, "binding"), binding(pod, f"fake-{self._bound % self._nodes}"))
            if pod["status"].get("phase") != "Running":
                status = pod_status.scheduled(pod, self._now())
                pod = await self._report(pod, pod_status.running({**pod, "status": status}, self._now()))
                self.started += 1
            program = self._program(pod)
            if program.seconds is not None:
                await asyncio.sleep(program.seconds)
                ending = pod_status.exited(pod, self._now(), program.code, program.reason, program.message)
                await self._report(pod, ending)
                self.exited += 1

    async def _die(self, pod: Manifest) -> None:
        seconds, grace = self._program(pod).stop_seconds, _grace(pod)
        await asyncio.sleep(grace if seconds is None else min(seconds, grace))
        code = 137 if seconds is None or seconds > grace else 143
        with contextlib.suppress(ApiError):
            if not ended(pod["status"]):
                await self._report(pod, pod_status.exited(pod, self._now(), code, others=code))
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
            await self._request("DELETE", _path(pod), options)
            self.removed += 1
        del self._deaths[pod["metadata"]["uid"]]

    async def _report(self, pod: Manifest, status: Manifest) -> Manifest:
        # By UID: another pod may have the same name.
        change = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        return await self._request("PATCH", _path(pod, "status"), change, "application/merge-patch+json")

    async def _request(
        self, method: str, target: str, body: Manifest | None = None, content_type: str = "application/json"
    ) -> Manifest:
        """Retries while the API server is unavailable, as a kubelet does. Raises ApiError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type}
        while True:
            try:
                async with self._concurrency, self._session.request(method, target, data=data, headers=headers) as got:
                    text = await got.read()
                    if got.status < 400:
                        return json.loads(text)
                    if got.status not in (429, 500, 503, 504):
                        raise ApiError(got.status, got.reason or "", text.decode(errors="replace"))
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(0.2)


def binding(pod: Manifest, node: str) -> Manifest:
    metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


def _path(pod: Manifest, subresource: str = "") -> str:
    return path("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"], subresource)


def _is_bound(pod: Manifest) -> bool:
    return "nodeName" in pod["spec"]


def _grace(pod: Manifest) -> float:
    return float(pod["metadata"].get("deletionGracePeriodSeconds", GRACE_SECONDS))


def main() -> None:
    parser = argparse.ArgumentParser(description="A fake kubelet: it pretends that pods run. A test tool.")
    parser.add_argument("--kubeconfig", type=Path, required=True, help="never taken from the environment")
    parser.add_argument("--namespace", help="pods of this one only (default: all)")
    parser.add_argument("--run-seconds", type=float, help="how long programs run (default: until they are deleted)")
    parser.add_argument("--exit-code", type=int, default=0)
    parser.add_argument("--stop-seconds", type=float, default=STOP_SECONDS)
    parser.add_argument("--concurrency", type=int, default=32, help="requests at the same time")
    asked = parser.parse_args()
    program = Program(seconds=asked.run_seconds, code=asked.exit_code, stop_seconds=asked.stop_seconds)
    kubelet = Kubelet(
        connect(str(asked.kubeconfig)), lambda pod: program, namespace=asked.namespace, concurrency=asked.concurrency
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(kubelet.run())
    print(f"pods started {kubelet.started}, exited {kubelet.exited}, removed {kubelet.removed}")


if __name__ == "__main__":
    main()
