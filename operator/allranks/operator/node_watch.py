"""Watches what monitors of node health say about nodes: conditions and taints that the settings name.

Conditions that the default lists name, from the documentation of the monitors:

- NVSentinel: https://docs.nvidia.com/nvsentinel/getting-started/integrations (conditions of fatal errors only; taints
  have the keys that its administrator chooses, of which the page recommends those below)
- node-problem-detector: https://github.com/kubernetes/node-problem-detector/tree/master/config (kernel-monitor.json)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.decoding import ObjectMeta, decoder
from allranks.kube.watch import PAGE_OF_LARGE_OBJECTS, Watch
from allranks.operator.settings import Settings

logger = logging.getLogger(__name__)

_MESSAGE = 256
"""Characters of a condition's message that are kept."""


class _Taint(msgspec.Struct):
    key: str = ""


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    message: str = ""


class _Spec(msgspec.Struct):
    taints: list[_Taint] = []


class _Status(msgspec.Struct):
    conditions: list[_Condition] = []


class _Node(msgspec.Struct):
    metadata: ObjectMeta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


_node = decoder(_Node)


class NodeHealth(NamedTuple):
    """What monitors report about a node; no problem is an empty text."""

    name: str
    problem: str


class NodeProblems:
    """The nodes with problems. Calls `changed(node)` when the problem of a node begins, changes or ends."""

    def __init__(self, client: Client, settings: Settings, changed: Callable[[str], None]) -> None:
        self.by_node: dict[str, str] = {}
        self._conditions, self._taints = settings.node_conditions, settings.node_taints
        self._changed = changed
        self.synced = asyncio.Event()
        self.watch: Watch[NodeHealth] | None = None
        if not self._conditions and not self._taints:
            self.synced.set()
            return
        self.watch = Watch(
            client,
            paths.core_path(None, "nodes"),
            self._decode,
            listed=self._listed,
            changed=self._upsert,
            renewed_after=settings.watch_timeout,
            forbidden=self._forbidden,
            page=PAGE_OF_LARGE_OBJECTS,
        )

    async def run(self) -> None:
        """Run forever."""
        await (self.watch.run() if self.watch else asyncio.Event().wait())

    def _decode(self, data: msgspec.Raw) -> NodeHealth:
        node = _node(data)
        return NodeHealth(node.metadata.name, "; ".join(self._problems(node)))

    def _problems(self, node: _Node) -> Iterable[str]:
        for condition in node.status.conditions:
            if any(_matches(condition, pattern) for pattern in self._conditions):
                message = f" ({condition.message[:_MESSAGE]})" if condition.message else ""
                yield f"condition {condition.type}={condition.status}{message}"
        for taint in node.spec.taints:
            if any(fnmatchcase(taint.key, pattern) for pattern in self._taints):
                yield f"taint {taint.key}"

    def _listed(self, nodes: Sequence[NodeHealth], _: int) -> None:
        self.synced.set()
        self._replace({node.name: node.problem for node in nodes if node.problem})

    def _upsert(self, node: NodeHealth, deleted: bool) -> None:
        before = self.by_node.get(node.name, "")
        problem = "" if deleted else node.problem
        if problem:
            self.by_node[node.name] = problem
        else:
            self.by_node.pop(node.name, None)
        if problem != before:
            self._changed(node.name)

    def _forbidden(self, message: str) -> None:
        """Go on without the health of nodes: no job depends on it."""
        if not self.synced.is_set():
            logger.warning(
                "the health of nodes cannot be read: the operator needs the right to list and watch Nodes (%s)", message
            )
        self.synced.set()
        self._replace({})

    def _replace(self, problems: Mapping[str, str]) -> None:
        before, self.by_node = self.by_node, dict(problems)
        for name in before.keys() | self.by_node.keys():
            if before.get(name) != self.by_node.get(name):
                self._changed(name)


def _matches(condition: _Condition, pattern: str) -> bool:
    """Return whether the condition has the type and the status (default True) of a pattern such as
    `StorageReady=False`."""
    kind, _, status = pattern.partition("=")
    return condition.status == (status or "True") and fnmatchcase(condition.type, kind)
