"""Prints for how many seconds nothing has used the Ray cluster at RAY_ADDRESS, again and again: `python3 ray_idle.py`.

A driver uses it, and so do the actors that a driver left behind, such as those of Ray Serve: for Ray, their nodes are
not idle. A process of its own, as `ray_nodes.py`.
"""

from __future__ import annotations

import os
import sys
import time

POLL_SECONDS = 2.0
CALL_SECONDS = 30
INTERNAL = "_ray_internal_"
"""Beginning of the namespaces of Ray's own drivers, which do not count. Its dashboard has one."""


def main() -> int:
    """Never returns, unless this Ray cannot be asked."""
    from ray._raylet import GcsClient  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from ray.core.generated import autoscaler_pb2  # type: ignore[import-not-found,import-untyped,unused-ignore]

    client = GcsClient(address=os.environ["RAY_ADDRESS"])
    while True:
        try:
            jobs = client.get_all_job_info(timeout=CALL_SECONDS).values()
            reply = autoscaler_pb2.GetClusterResourceStateReply()
            reply.ParseFromString(client.get_cluster_resource_state())
        except RuntimeError:  # RpcError: the GCS is busy
            jobs, nodes = (), []
        else:
            nodes = [node for node in reply.cluster_resource_state.node_states if node.status != autoscaler_pb2.DEAD]
        driven = any(not job.is_dead and not job.config.ray_namespace.startswith(INTERNAL) for job in jobs)
        idle = 0 if driven else min((node.idle_duration_ms for node in nodes), default=0)
        print(idle // 1000, flush=True)
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
