"""The largest status that the operator can write: all fields, lists and texts at their bounds."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

from allranks.api import crd
from allranks.api.status import Failure, ReplicaRestarts, Status
from allranks.core.facts import restarts
from allranks.core.facts.model import Manifest
from allranks.core.facts.status_summary import LONGEST_MESSAGE
from allranks.kube import job_codec
from support.builders import NOW, at

REPLICAS = 10_000
ESCAPED = "<"
"""The API server stores six bytes for this character."""


def stored_size(status: Status) -> int:
    """Bytes in etcd. Go's JSON encoder escapes more than Python's."""
    text = json.dumps(job_codec.encode(status), separators=(",", ":"), ensure_ascii=False)
    return len(text.replace(ESCAPED, "\\u003c").encode())


def failure_of(index: int, seconds: float, **fields: Any) -> Failure:
    return Failure(
        attempt=9_999,
        role="worker",
        index=index,
        rank=index,
        pod=f"{'j' * 42}-worker-{index}-9999-9999",
        node="n" * 253,
        exit_code=255,
        signal=127,
        reason="R" * 128,
        message=ESCAPED * 1024,
        time=at(seconds + 0.123456),
        ran_seconds=123456.789012,
        **fields,
    )


def all_restarted(dice: random.Random) -> Status:
    """All replicas were restarted, each a different number of times, with failures, and every second one waits."""
    entries = {
        f"worker-{index}": ReplicaRestarts(
            count=index,
            in_pod=2 if 2 <= index < 2 + restarts.MAX_DETAILED else None,
            launched=bool(index % 2),
            counted=dice.random() < 0.5,
            restart_time=at(dice.randrange(300) if index % 2 else -1),
            failure=failure_of(index, -dice.randrange(90)),
            without_progress=dice.randrange(1, 300),
        )
        for index in range(REPLICAS)
    }
    ignored = [f"worker-{index}" for index in range(REPLICAS)]
    return restarts.drop_details(Status(replica_restarts=entries, ignored=ignored), NOW)


def _largest(schema: Manifest, name: str = "") -> Any:
    """A value with all fields and the longest texts and lists that the schema admits."""
    if "enum" in schema:
        return max(schema["enum"], key=len)
    match schema["type"]:
        case "string" if schema.get("format") == "date-time":
            return "2026-03-04T10:00:00.123456Z"
        case "string":
            # Messages hold any text, the others names and words of the API.
            # "a" is also a digit of a hash.
            return (ESCAPED if name == "message" else "a") * schema["maxLength"]
        case "integer":
            return schema.get("maximum", 10**9)
        case "number":
            return schema.get("maximum", 1.2345678901234567e100)
        case "boolean":
            return False
        case "array":
            return [_largest(schema["items"])] * schema["maxItems"]
        case _ if "additionalProperties" in schema:
            keys = [f"{number:0>128}" for number in range(schema["maxProperties"])]
            return {key: _largest(schema["additionalProperties"]) for key in keys}
        case _:
            return {key: _largest(part, key) for key, part in schema["properties"].items()}


def largest_status() -> Status:
    """All replicas were restarted alone and then ignored, and everything else is at the bounds of the schema."""
    schema = crd.crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    # No replica is both ignored and done, and its entry in `ignored` is longer than that in `done`.
    of_replicas = {"replicaRestarts", "restartedIndexes", "ignored", "done"}
    rest = {key: part for key, part in schema["properties"].items() if key not in of_replicas}
    found = _largest({**schema, "properties": rest})
    for past in found["history"]:
        past["failure"]["message"] = past["failure"]["message"][:1024]  # the last line only
    for condition in found["conditions"]:
        condition["message"] = condition["message"][:LONGEST_MESSAGE]
    restarted = all_restarted(random.Random(1))
    return replace(
        job_codec.status({"status": found}), replica_restarts=restarted.replica_restarts, ignored=restarted.ignored
    )
