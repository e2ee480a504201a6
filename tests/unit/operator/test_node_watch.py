"""The health of nodes, from the conditions and taints of monitors."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from allranks.operator.node_watch import NodeHealth, NodeProblems
from allranks.operator.settings import Settings
from support.builders import table
from support.scripted import Answer, client_of, says, status


def read(answer: Answer, settings: Settings | None = None) -> NodeProblems:
    """The nodes after the first list."""

    async def scenario() -> NodeProblems:
        async with client_of(answer, retry_timeout=0.0) as (client, _), asyncio.timeout(60):
            nodes = NodeProblems(client, settings or Settings(), lambda node: None)
            run = asyncio.create_task(nodes.run())
            await nodes.synced.wait()
            run.cancel()
            return nodes

    return asyncio.run(scenario())


def node(name: str = "gpu-1", taints: tuple[str, ...] = (), **conditions: str) -> dict[str, Any]:
    """A node with taints of these keys, and conditions of these types with a status."""
    return {
        "metadata": {"name": name, "resourceVersion": "5"},
        "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]},
        "status": {"conditions": [{"type": kind, "status": state} for kind, state in conditions.items()]},
    }


def listed(*nodes: dict[str, Any]) -> Answer:
    return says({"metadata": {"resourceVersion": "7"}, "items": list(nodes)})


@table(
    ("NVSentinel: memory of a GPU", node(GpuMemWatch="True", Ready="True"), "condition GpuMemWatch=True"),
    ("NVSentinel: the component is healthy", node(GpuMemWatch="False"), None),
    ("NVSentinel: a GPU is gone", node(SysLogsGPUFallenOff="True"), "condition SysLogsGPUFallenOff=True"),
    ("NVSentinel: a taint", node(taints=("nvidia.com/gpu-xid-error",)), "taint nvidia.com/gpu-xid-error"),
    ("the usual taint of nodes with GPUs", node(taints=("nvidia.com/gpu",)), None),
    ("node-problem-detector: a disk", node(ReadonlyFilesystem="True"), "condition ReadonlyFilesystem=True"),
    ("the kubelet's own condition", node(MemoryPressure="True", Ready="False"), None),
    (
        "several",
        node(KernelDeadlock="True", XfsShutdown="True"),
        "condition KernelDeadlock=True; condition XfsShutdown=True",
    ),
)
def test_nodes_are_unhealthy_by_the_conditions_and_taints_of_monitors(case):
    manifest, problem = case
    assert read(listed(manifest)).by_node == ({"gpu-1": problem} if problem else {})


def test_a_condition_may_be_a_problem_with_status_false():
    settings = Settings(node_conditions="StorageReady=False", node_taints="")
    nodes = [node("a", StorageReady="False"), node("b", StorageReady="True", GpuMemWatch="True")]
    assert read(listed(*nodes), settings).by_node == {"a": "condition StorageReady=False"}


def test_without_the_right_to_read_nodes_none_is_unhealthy():
    assert read(status(403, message="no such right")).by_node == {}


def test_without_conditions_and_taints_nodes_are_not_watched():
    assert read(status(500), Settings(node_conditions="", node_taints="")).watch is None


def test_only_changes_of_problems_are_reported():
    changes: list[str] = []
    nodes = NodeProblems(None, Settings(), changes.append)  # type: ignore[arg-type]  # it sends nothing
    healthy, bad = (_decoded(nodes, node(GpuMemWatch=state)) for state in ("False", "True"))
    for observation in (healthy, bad, bad, healthy):
        nodes._upsert(observation, False)
    assert changes == ["gpu-1", "gpu-1"]
    nodes._upsert(bad, False)
    nodes._upsert(bad, True)
    assert (changes, nodes.by_node) == (["gpu-1"] * 4, {})
    nodes._listed([bad], 8)
    nodes._listed([bad], 9)
    nodes._listed([], 10)
    assert (changes, nodes.by_node) == (["gpu-1"] * 6, {})


def _decoded(nodes: NodeProblems, manifest: dict[str, Any]) -> NodeHealth:
    return nodes._decode(msgspec.Raw(msgspec.json.encode(manifest)))
