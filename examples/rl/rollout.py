"""A rollout engine: draws answers to questions with the newest weights of the policy."""

import os
import threading
from pathlib import Path
from typing import Any

import torch
from policy import Policy
from services import serve

WEIGHTS = Path(os.environ["ALLRANKS_CHECKPOINT_DIR"]) / "weights.pt"

torch.set_num_threads(1)
policy = Policy()
version = -1
lock = threading.Lock()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answers to the questions of a request, and the version of the weights that drew them."""
    global version
    with lock:
        if version != request["version"]:
            weights = torch.load(WEIGHTS, weights_only=True)
            policy.load_state_dict(weights["policy"])
            version = weights["version"]
        return {"answers": policy.generate(torch.tensor(request["questions"])).tolist(), "version": version}


print("rollout engine: ready", flush=True)
serve(answer)
