"""Prints the number of nodes of the Ray cluster at RAY_ADDRESS whenever it changes: `python3 ray_nodes.py`.

A process of its own, which `ray_node.py` ends, so that Ray stays loaded only as long as the head waits for workers.
"""

from __future__ import annotations

import os
import sys
import time

POLL_SECONDS = 0.5
CALL_SECONDS = 30


def main() -> int:
    """Never returns, unless this Ray cannot be asked."""
    from ray._raylet import GcsClient  # type: ignore[import-not-found,import-untyped,unused-ignore]

    client, shown = GcsClient(address=os.environ["RAY_ADDRESS"]), -1
    alive = 0  # GcsNodeInfo.GcsNodeState.ALIVE
    while True:
        try:
            nodes = client.get_all_node_info(timeout=CALL_SECONDS).values()
        except RuntimeError:  # RpcError: the GCS is busy
            nodes = ()
        count = sum(node.state == alive for node in nodes)
        if count != shown:
            print(count, flush=True)
            shown = count
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
