"""The memory that lists need while they arrive, whatever tenants write into their objects."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from allranks.api import validation
from support.builders import manifest
from support.scripted import Scripted, threaded_server

TESTS = Path(__file__).parents[2]

_PROGRAM = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from unit.operator import listing

asyncio.run(listing.main(*sys.argv[1:]))
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


def _peak(mirror: str, url: str) -> float:
    """Return the largest resident set of a process that lists everything, in MB."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(tests=str(TESTS)), mirror, url],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1]) / 1024


@contextmanager
def _listing(count: int, example: dict[str, Any]) -> Iterator[Scripted]:
    """Serve that many copies of an object, in pages of the size that the client asks for."""
    parts = json.dumps(example, separators=(",", ":")).encode().split(b"@@")

    async def answer(request: web.Request) -> web.StreamResponse:
        begin = int(request.query.get("continue") or 0)
        end = min(count, begin + int(request.query["limit"]))
        items = b",".join((b"%06d" % number).join(parts) for number in range(begin, end))
        position = json.dumps({"resourceVersion": "9", "continue": str(end) if end < count else ""}).encode()
        body = io.BytesIO(b'{"metadata":%s,"items":[%s]}' % (position, items))
        return web.Response(body=body, content_type="application/json")

    with threaded_server(answer) as server:
        yield server


OWNER = {"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining", "name": "demo", "controller": True}
OWNED = {"ownerReferences": [{**OWNER, "uid": "u"}]}


def _metadata(**more: Any) -> dict[str, Any]:
    metadata = {"name": "demo-@@", "namespace": "ns", "uid": "u-@@", "resourceVersion": "8", "generation": 1, **OWNED}
    return {**metadata, **more, "labels": {"allranks.dev/job-name": "demo", **more.get("labels", {})}}


def _template(size: int) -> dict[str, Any]:
    """Return a template of that many bytes, with as many labels and as small parts as possible."""
    texts = {f"k{number:03}": "x" * 500 for number in range(validation.MAX_LABELS)}
    labels = {f"l{number:03}": "x" * 60 for number in range(validation.MAX_LABELS)}
    rest = (size - 45_000) // len('{"name":"c00000","image":"x"},')
    containers = [{"name": f"c{number:05}", "image": "x"} for number in range(rest)]
    return {"metadata": {"labels": labels, "annotations": texts}, "spec": {"containers": containers}}


LARGEST = _template(validation.MAX_TEMPLATE_BYTES)
MANY = {f"k{number:05}": "" for number in range(85_000)}
FEWER = dict(list(MANY.items())[:18_000])


def test_the_template_of_these_tests_is_the_largest_that_is_accepted() -> None:
    assert validation.parse(manifest(template=LARGEST))
    assert len(json.dumps(LARGEST, separators=(",", ":"))) > 0.95 * validation.MAX_TEMPLATE_BYTES


SMALL_POD = {"metadata": _metadata(), "spec": {"containers": [{"name": "trainer"}]}, "status": {"phase": "Pending"}}
LARGEST_POD = {**SMALL_POD, "metadata": _metadata(**LARGEST["metadata"]), "spec": LARGEST["spec"]}
SMALL_JOB = {"metadata": _metadata(), "spec": manifest()["spec"], "status": {"phase": "Suspended"}}
GROUP = {"metadata": _metadata(), "spec": {"minMember": 2}}


def _with(example: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {**example, "metadata": _metadata(**metadata)}


OWNERS = [{"kind": "Job", "name": "x", "uid": f"{number:05}"} for number in range(20_000)]
NIGHTLY = pytest.mark.nightly
CASES: list[Any] = [
    pytest.param("pods", 1000, SMALL_POD, LARGEST_POD, id="1000 pods of the largest template"),
    pytest.param("pods", 150, SMALL_POD, _with(SMALL_POD, labels=FEWER), id="pods, labels", marks=NIGHTLY),
    pytest.param("pods", 150, SMALL_POD, _with(SMALL_POD, finalizers=[*MANY]), id="pods, finalizers", marks=NIGHTLY),
    pytest.param("pods", 150, SMALL_POD, _with(SMALL_POD, ownerReferences=OWNERS), id="pods, owners", marks=NIGHTLY),
    pytest.param("archived_pods", 150, SMALL_POD, LARGEST_POD, id="pods in the archiver", marks=NIGHTLY),
    pytest.param("jobs", 150, SMALL_JOB, _with(SMALL_JOB, labels=MANY), id="jobs, labels"),
    pytest.param("jobs", 150, SMALL_JOB, _with(SMALL_JOB, annotations=MANY), id="jobs, annotations", marks=NIGHTLY),
    pytest.param("jobs", 150, SMALL_JOB, _with(SMALL_JOB, ownerReferences=OWNERS), id="jobs, owners", marks=NIGHTLY),
    pytest.param("sweeps", 150, SMALL_JOB, _with(SMALL_JOB, labels=MANY), id="sweeps, labels", marks=NIGHTLY),
    pytest.param("pod_groups", 150, GROUP, _with(GROUP, labels=MANY), id="PodGroups, labels", marks=NIGHTLY),
    pytest.param("pools", 150, SMALL_JOB, _with(SMALL_JOB, labels=MANY), id="pools, labels", marks=NIGHTLY),
    pytest.param("nodes", 150, GROUP, _with(GROUP, labels=MANY), id="nodes, labels"),
]


@pytest.mark.parametrize(("mirror", "count", "ordinary", "hostile"), CASES)
def test_a_list_takes_little_more_memory_than_its_largest_page(
    mirror: str, count: int, ordinary: dict[str, Any], hostile: dict[str, Any]
) -> None:
    """The chart's limit is 512 MiB."""
    with _listing(count, ordinary) as server:
        usual = _peak(mirror, server.url)
    with _listing(count, hostile) as server:
        most = _peak(mirror, server.url)
    assert most < usual + 160
    assert most < 256
