"""Nodes on which hardware failed an attempt of a job, from its status."""

from __future__ import annotations

from allranks.api.status import Because, Status

BY_PLATFORM: tuple[Because, ...] = ("DeviceUnhealthy", "NodeUnhealthy")
"""Evidence of the platform: a failure for such a cause does not count."""
OF_NODE: tuple[Because, ...] = (
    "DeviceError",
    "PreflightFailed",
    "InitContainer",
    "InitContainerOfNode",
    *BY_PLATFORM,
)
"""Evidence about the node of a pod, which later attempts avoid."""
NO_OTHER_NODES = "NoOtherNodes"
"""Reason of an attempt whose pods found no room outside of the excluded nodes."""


def excluded_nodes(status: Status) -> list[str]:
    """Return the nodes on which no pod of the attempt may run: their hardware failed an earlier one.

    A preference for others is too weak here. The pods on the bad node end first, so while pods on healthy nodes
    still end, it is the node with the most room. Nodes are not excluded any more after an attempt that found no others,
    and an init container that fails on several nodes excludes none of them: the fault may be its own.
    """
    if any(past.reason == NO_OTHER_NODES for past in status.history):
        return []
    failures = [past.failure for past in reversed(status.history) if past.failure and past.failure.node]
    of_hardware = [f for f in failures if f.because in OF_NODE and f.node in status.avoided_nodes]
    everywhere = len({f.node for f in of_hardware if f.because == "InitContainer"}) > 1
    return list(
        dict.fromkeys(f.node for f in of_hardware if f.node and not (everywhere and f.because == "InitContainer"))
    )
