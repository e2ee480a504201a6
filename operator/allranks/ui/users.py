"""The users of a server in the cluster: each sees and changes what the API server allows with the user's own token.

The server has no token of its own. A user's jobs are watched while the user has an open page or sends requests. Once a
minute the API server is asked whether it accepts the token, and whether the user may list the jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Request, Response

from allranks.api.job import GROUP, PLURAL
from allranks.errors import ClusterError
from allranks.kube.auth import Connection
from allranks.kube.cluster import Cluster, user_client
from allranks.local.sweep_files import StoredSweep
from allranks.shares import Share, Turns, largest_share
from allranks.ui.archive import AllowedArchive, Right, SharedArchive
from allranks.ui.changes import Hub
from allranks.ui.cluster_jobs import MOST_JOB_BYTES, ClusterJobs, JobRoom, SharedReads
from allranks.ui.entries import Entry
from allranks.ui.logs import LogRoom
from allranks.ui.problems import Problem
from allranks.ui.runs import Runs
from allranks.ui.state import State

CHECK_SECONDS = 60.0
RIGHTS_SECONDS = 30.0
"""Time in which an answer about a right in an archive is reused."""
IDLE_SECONDS = 600.0
"""Stop the watch of a user after this many seconds without a request."""
CLOSE_SECONDS = 5.0
MOST_USERS = 200
"""Tokens of users who are signed in."""
MOST_SCOPES = 64
"""Watches of jobs, of all users together: each holds the jobs that it watches in memory."""
MOST_REQUESTS, MOST_REQUESTS_OF_ONE = 1024, 128
"""Requests that are answered at the same time, streams included: of all accounts, and of one."""
PAGES_OF_LISTS = 2
"""Pages of lists that are in memory at the same time: 50 objects each, of any size."""
CHECKS_AT_ONCE, SIGN_IN_SECONDS = 16, 15.0
"""New tokens that are checked at the same time, and the time in which one is."""
NAMESPACE_COOKIE = "allranks-namespace"
"""Name of the cookie with the last namespace, for pages whose address names none."""
_LIST = Right("list", GROUP, PLURAL)
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_TOKEN = re.compile(r"[\x21-\x7e]{1,32768}")
REJECTED = "the API server does not accept the token: sign in with a new one"
FULL = "too many users look at jobs at the same time: try again later"
BUSY = "{} has too many open pages and requests, or all users together have: close some, or try again later"
SLOW = "the API server has not said in time whose token this is: try again"
T = TypeVar("T")
USER_HEADER = "allranks.user"
"""Key of the user of a request in its ASGI scope."""


class ChooseNamespace(Problem):
    """The user may not see the jobs of the namespace, or of all: the page asks for another namespace."""


class NoRuns(Runs):
    """A server in the cluster has no runs of a machine."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(Path(), hub)

    async def all(self) -> list[Entry]:
        return []

    async def trials(self, sweep: str = "") -> list[Entry]:
        return []

    def sweeps(self) -> list[StoredSweep]:
        return []

    async def get(self, job: str, time: str) -> Entry:
        raise Problem(404, f"there is no run {job}/{time} here: `allranks ui` on the machine of a run shows it")


@dataclass
class _Scope:
    """The jobs of one namespace, or of all, for one user."""

    state: State
    watch: asyncio.Task[None]
    used: float = field(default_factory=time.monotonic)

    async def close(self) -> None:
        self.state.hub.close()
        self.watch.cancel()
        await asyncio.gather(self.watch, return_exceptions=True)
        assert self.state.jobs
        await self.state.jobs.close()


class User:
    """A user whose token the API server accepts, with watches of jobs in the user's name."""

    def __init__(self, cluster: Cluster, name: str, suggested: Sequence[str], room: Share | None = None) -> None:
        """`room`: the place for requests that all users share."""
        self.cluster, self.name = cluster, name
        self.account = account_of(name)
        """The owner of a share of the server."""
        self.scopes: dict[str | None, _Scope] = {}
        self.used = time.monotonic()
        self.requests = 0
        """Number of requests that are being answered, streams included."""
        self._suggested, self._room = tuple(suggested), room or Share(MOST_REQUESTS, MOST_REQUESTS_OF_ONE)
        self._lock = asyncio.Lock()
        self._rights = SharedReads(RIGHTS_SECONDS)
        self._every: bool | None = None
        """True if the user may list the jobs of all namespaces; None until the API server was asked."""

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Count a request of the user while it is answered. Raises Problem if there are too many."""
        if not self._room.take(self.account):
            raise Problem(429, BUSY.format(self.name))
        self.requests += 1
        try:
            yield
        finally:
            self._room.give(self.account)
            self.requests -= 1
            self.used = time.monotonic()

    @property
    def idle(self) -> bool:
        return not self.requests and time.monotonic() - self.used > IDLE_SECONDS

    async def state(self, namespace: str | None, users: Users) -> State:
        """Return the jobs of the namespace, or of all if the user may list them. Raises Problem and ClusterError."""
        async with self._lock:
            if self._every is None:
                self._every = await self.may_list(None)
            if self._every:
                namespace = None
            elif namespace is None:
                raise ChooseNamespace(403, f"{self.name} may not list the jobs of all namespaces: choose a namespace")
            scope = self.scopes.get(namespace)
            if scope is None:
                if namespace is not None and not await self.may_list(namespace):
                    raise ChooseNamespace(
                        403,
                        f"{self.name} may not list {PLURAL}.{GROUP} in namespace {namespace}: ask its admin for the "
                        "role view, or choose another namespace",
                    )
                await users.make_room_for_watch(self.account)
                scope = self.scopes[namespace] = self._open(namespace, users)
            scope.used = time.monotonic()
            return scope.state

    def _open(self, namespace: str | None, users: Users) -> _Scope:
        hub = Hub()
        cluster = replace(self.cluster, namespace=namespace or self.cluster.namespace)
        room = JobRoom(users.jobs, self.account)
        jobs = ClusterJobs(cluster, namespace, hub, lambda: users.lists.turn(self.account), room)
        state = State(
            hub,
            NoRuns(hub),
            jobs,
            choices=self._suggested,
            log_room=users.log_room,
            computations=users.computations,
            account=self.account,
        )
        if users.archive:
            state.archive = AllowedArchive(users.archive, namespace, self.may, self.name)
        return _Scope(state, asyncio.create_task(jobs.run()))

    async def may_list(self, namespace: str | None) -> bool:
        """Return whether the user may list jobs now, without a cache. Raises ClusterError."""
        return await self._ask(_LIST, namespace)

    async def may(self, right: Right, namespace: str | None) -> bool:
        """Return the API server's answer of the last RIGHTS_SECONDS. Raises ClusterError."""
        return await self._rights.get((right, namespace), lambda: self._ask(right, namespace))

    async def _ask(self, right: Right, namespace: str | None) -> bool:
        attributes = {key: value for key, value in right._asdict().items() if value}
        if namespace is not None:
            attributes["namespace"] = namespace
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = await self.cluster.request("POST", path, None, review)
        return bool((answer.get("status") or {}).get("allowed"))

    async def check(self) -> None:
        """End watches of jobs that the user may no longer see, or did not request for IDLE_SECONDS.

        Raises ClusterError, with status 401 if the token has ended.
        """
        await name_of(self.cluster)
        async with self._lock:
            if self._every is not None:
                self._every = await self.may_list(None)
            for namespace, scope in list(self.scopes.items()):
                idle = self.idle or (not scope.state.hub.viewers and time.monotonic() - scope.used > IDLE_SECONDS)
                allowed = self._every if namespace is None else await self.may_list(namespace)
                if idle or not allowed:
                    self.scopes.pop(namespace, None)
                    await scope.close()

    async def close(self) -> None:
        """End streams first: the connection serves them."""
        await self._rights.close()
        for scope in self.scopes.values():
            scope.state.hub.close()
        until = time.monotonic() + CLOSE_SECONDS
        while self.requests and time.monotonic() < until:
            await asyncio.sleep(0.05)
        # The loop may end next. A watch that is cancelled first would begin a TLS handshake, which takes longer.
        await self.cluster.client.transport.close(abort=True)
        while self.scopes:
            await self.scopes.popitem()[1].close()


def account_of(name: str) -> str:
    """Return the owner of a user's share: the namespace of a ServiceAccount, because its users can create any number.

    A user can get any number of tokens, so they do not count.
    """
    prefix, separator, account = name.rpartition(":")
    return prefix if separator and account and name.startswith("system:serviceaccount:") else name


async def name_of(cluster: Cluster) -> str:
    """Return the user's name. Raises ClusterError, with status 401 if the API server rejects the token."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await cluster.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", None, review)
    return str(((answer.get("status") or {}).get("userInfo") or {}).get("username") or "")


class Users:
    """The users of the server, by their tokens."""

    def __init__(self, api: Connection, namespaces: Sequence[str] = (), archive: SharedArchive | None = None) -> None:
        """`api`: the API server, without credentials. `namespaces`: suggestions for users who must choose one."""
        self._api, self._suggested, self.archive = api, namespaces, archive
        self._users: dict[str, User] = {}
        self._room, self.log_room = Share(MOST_REQUESTS, MOST_REQUESTS_OF_ONE), LogRoom()
        self.jobs = Share(MOST_JOB_BYTES)
        self._openings, self._checks, self.lists = SharedReads(), Turns(CHECKS_AT_ONCE), Turns(PAGES_OF_LISTS)
        self.computations = Turns()
        self._closing: set[asyncio.Task[None]] = set()

    def cached(self, token: str) -> User | None:
        """Return the user of a token that the API server has accepted, and that has not ended."""
        user = self._users.get(_key(token))
        if user is not None:
            user.used = time.monotonic()
        return user

    async def signed_in(self, token: str, peer: str = "") -> User:
        """Return the user of a token. Raises Problem (401) if the API server does not accept it, and ClusterError.

        `peer`: the address that sent it. Addresses have turns.
        """
        if not _TOKEN.fullmatch(token):
            raise Problem(401, REJECTED)
        key = _key(token)

        async def sign_in() -> User:
            if key not in self._users:
                async with self._checks.turn(peer):
                    opened = await self._open(token)
                try:
                    self._make_room_for_token(opened.account)
                except Problem:
                    await opened.close()
                    raise
                self._users[key] = opened
            return self._users[key]

        user = self.cached(token)
        if user is not None:
            return user
        try:
            async with asyncio.timeout(SIGN_IN_SECONDS):
                return await self._openings.get(key, sign_in)
        except TimeoutError:
            raise Problem(503, SLOW) from None

    async def _open(self, token: str) -> User:
        client = user_client(replace(self._api, token=token))
        cluster = Cluster(client, "default")
        try:
            return User(cluster, await name_of(cluster), self._suggested, self._room)
        except ClusterError as error:
            await client.transport.close(abort=True)
            if error.status == 401:
                raise Problem(401, REJECTED) from error
            raise
        except BaseException:
            await client.transport.close(abort=True)
            raise

    async def state(self, request: Request) -> State:
        """Return the data that the user of a request may see. Raises Problem and ClusterError."""
        user: User = request.scope[USER_HEADER]
        return await user.state(requested_namespace(request), self)

    async def make_room_for_watch(self, account: str) -> None:
        """End the watch that was not used for the longest time, if there are too many: one of the account that has
        most. Raises Problem."""
        scopes = [(user, key, scope) for user in self._users.values() for key, scope in user.scopes.items()]
        if len(scopes) < MOST_SCOPES:
            return
        user, key, scope = _least_used(scopes, account, lambda item: item[0], lambda item: item[2].used)
        del user.scopes[key]
        await scope.close()

    def _make_room_for_token(self, account: str) -> None:
        """End the token that was not used for the longest time, if there are too many: one of the account that has
        most. Raises Problem."""
        if len(self._users) >= MOST_USERS:
            key, user = _least_used(self._users.items(), account, lambda item: item[1], lambda item: item[1].used)
            self._end(key, user)

    def _end(self, key: str, user: User) -> None:
        del self._users[key]
        closing = asyncio.create_task(user.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def run(self) -> None:
        """Check tokens and rights until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self.check()

    async def check(self) -> None:
        """Check all users. Without an answer of the API server everything stays as it is."""
        for key, user in list(self._users.items()):
            try:
                await user.check()
                ended = user.idle
            except ClusterError as error:
                ended = error.status == 401
            if ended and self._users.get(key) is user:
                self._end(key, user)

    def close_streams(self) -> None:
        for user in self._users.values():
            for scope in user.scopes.values():
                scope.state.hub.close()

    async def close(self) -> None:
        await self._openings.close()
        ending: list[Any] = [user.close() for user in self._users.values()]
        self._users = {}
        await asyncio.gather(*ending, *self._closing, return_exceptions=True)


def _key(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _least_used(items: Collection[T], newcomer: str, user_of: Callable[[T], User], used: Callable[[T], float]) -> T:
    """Return what makes room for an account: an item of the account that has most, also while it is in use.

    If every account has only one, an item that is not in use. Raises Problem if there is none.
    """
    largest = largest_share(items, lambda item: user_of(item).account, newcomer)
    if len(largest) == 1:
        largest = [item for item in items if not user_of(item).requests]
    if not largest:
        raise Problem(503, FULL)
    return min(largest, key=lambda item: (user_of(item).requests > 0, used(item)))


def requested_namespace(request: Request) -> str | None:
    """Return the namespace that the address names, else the one of the last page. Raises Problem."""
    path, query = request.path_params, request.query_params
    namespace = path.get("namespace") or query.get("namespace")
    if path.get("source", query.get("source", "jobs")) in ("jobs", "archive"):
        namespace = path.get("group") or namespace or query.get("group")
    if namespace and not is_namespace(namespace):
        raise Problem(422, f"namespace: {namespace!r} is not the name of a namespace")
    remembered = request.cookies.get(NAMESPACE_COOKIE, "")
    return namespace or (remembered if is_namespace(remembered) else None)


def is_namespace(text: str) -> bool:
    return _NAMESPACE.fullmatch(text) is not None


def remember_namespace(page: Response, namespace: str) -> None:
    """Make the first page show this namespace again, when its address names none."""
    if is_namespace(namespace):
        year = 365 * 24 * 3600
        page.set_cookie(NAMESPACE_COOKIE, namespace, max_age=year, path="/", httponly=True, samesite="lax")
