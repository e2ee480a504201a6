"""Jobs that are a script for each node, as batch systems and clouds start them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from allranks.authoring.convert import pod_parts, training_operator
from allranks.authoring.convert.draft import Draft
from allranks.authoring.convert.pod_parts import Part

GPU = "nvidia.com/gpu"
_AMD = re.compile(r"(?:amd:)?MI\d", re.IGNORECASE)


def resource_of(gpu: Any) -> str:
    """Return the extended resource of a GPU by its name, such as `H100:8` or `MI300X`."""
    return "amd.com/gpu" if _AMD.match(str(gpu)) else GPU


def set_ranks(
    draft: Draft,
    command: Sequence[str],
    nodes: int,
    env: Mapping[str, Any],
    fields: Mapping[str, Any],
    processes: int | None = None,
) -> None:
    """Set framework, roles and pods of a job whose command runs in each of `nodes` pods.

    `fields`: image, resources and workingDir, as far as they are determined. `processes`: ranks in each pod that the
    other system starts; None if it runs the command once in each pod.
    """
    part = Part("worker", nodes, {}, {name: value for name, value in fields.items() if value}, "the script")
    part.fields["command"] = list(command)
    if env:
        part.fields["env"] = [{"name": str(name), "value": str(value)} for name, value in env.items()]
    starts = training_operator.without_rendezvous(draft, [part])
    if starts[0].used:
        draft.framework("pytorch")
        training_operator.processes_per_node(draft, [part], starts, "1")
    else:
        text = "MASTER_ADDR, MASTER_PORT, RANK, LOCAL_RANK and WORLD_SIZE connect the ranks."
        draft.framework("spmd", text)
        draft.set("spmd.processesPerPod", processes or 1)
    pod_parts.assemble(draft, [part])


def name_of(text: str) -> str:
    """Return the name of a job, made of a text."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (name if name[:1].isalpha() else f"job-{name}")[:_LONGEST_NAME].strip("-")


_LONGEST_NAME = 42


def memory(text: str) -> str:
    """Return a Kubernetes quantity for a size such as `64G`, `64GB+` or `64000` (MiB); empty if there is none."""
    match = re.match(r"(\d+)(?:\.\d+)?\s*([KMGT]?)i?B?", str(text), re.IGNORECASE)
    return f"{match[1]}{match[2].upper() or 'M'}i" if match and int(match[1]) else ""


def gpu_count(text: Any) -> int | None:
    """Return the number of GPUs in `8`, `A100:8` or `A100:40GB:8`; one for a name alone; None if there is a range."""
    parts = str(text).split(":")
    last = parts[-1].strip()
    if last.isdigit():
        return int(last)
    return None if re.search(r"\d\s*(\.\.|\+)", last) else 1
