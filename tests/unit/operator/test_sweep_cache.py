"""The cache of sweeps keeps the newest version, and forgets what a list no longer has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from allranks.api import validation
from allranks.api.sweep import Sweep
from allranks.kube import sweep_codec
from allranks.kube.job_codec import DecodeError
from allranks.kube.pod_codec import to_cached_pod
from allranks.kube.sweep_codec import MAX_SPEC_BYTES, RawSweep
from allranks.operator import sweep_controller
from allranks.operator.pod_watch import pod_watch
from allranks.operator.sweep_controller import DecodedSweeps, SweepCache
from support import floods

TESTS = Path(__file__).parents[2]
KEY = ("team", "search")


def sweep(name: str = "search", version: int = 1, spec: Any = None, status: Any = None) -> RawSweep:
    metadata = {"namespace": "team", "name": name, "resourceVersion": str(version), "managedFields": [{"manager": "x"}]}
    return sweep_codec.raw_sweep(json.dumps({"metadata": metadata, "spec": spec or {}, "status": status}))


class World:
    def __init__(self) -> None:
        self.changed: list[str] = []
        client: Any = None
        self.cache = SweepCache(client, (None,), 60, lambda key: self.changed.append(key[1]))
        [self.watch] = self.cache.watches.values()


def test_an_older_version_does_not_replace_a_newer_one():
    world = World()
    world.cache.upsert(sweep(version=5))
    world.cache.upsert(sweep(version=4))
    found = world.cache.get(("team", "search"))
    assert found is not None
    assert found["metadata"] == {"namespace": "team", "name": "search", "resourceVersion": "5"}
    assert found["kind"] == "TrainingSweep"
    assert world.changed == ["search"]


def test_a_deletion_is_a_change():
    world = World()
    world.cache.upsert(sweep(version=5))
    world.cache.upsert(sweep(version=6), deleted=True)
    assert world.cache.get(("team", "search")) is None
    assert world.changed == ["search", "search"]


def test_a_list_forgets_what_it_does_not_have_unless_it_is_newer():
    world = World()
    world.cache.upsert(sweep("gone", 3))
    world.cache.upsert(sweep("new", 9))
    world.watch._listed([sweep("there", 5)], 7)
    assert sorted(name for _, name in world.cache) == ["new", "there"]


def test_a_sweep_that_is_too_large_is_kept_without_its_spec_and_is_invalid():
    world = World()
    world.cache.upsert(sweep(spec={"parameters": "x" * MAX_SPEC_BYTES}, status={"phase": "Running"}))
    found = world.cache.get(KEY)
    assert found is not None
    assert (found["spec"], found["status"], world.cache.size(KEY)) == (None, {"phase": "Running"}, 4)
    with pytest.raises(DecodeError, match="spec: has more than 256 KiB as JSON"):
        sweep_codec.sweep(found)


def test_a_sweep_that_is_nested_too_deeply_is_invalid_alone():
    world = World()
    deep: Any = {}
    for _ in range(500):
        deep = [deep]
    world.cache.upsert(sweep(spec={"template": {"spec": deep}}))
    found = world.cache.get(KEY)
    assert found is not None
    with pytest.raises(DecodeError):
        sweep_codec.sweep(found)


def test_a_stored_sweep_is_decoded_without_the_rules_that_the_api_server_evaluated(monkeypatch: pytest.MonkeyPatch):
    """For the largest sweep they take seconds, in which the operator does nothing else."""

    def evaluated(*_: Any) -> bool:
        raise AssertionError

    monkeypatch.setattr(validation, "_holds", evaluated)
    document = floods.KINDS["sweeps with the largest template"]("search")
    assert sweep_codec.sweep(document).name == "search"
    document["spec"]["template"]["spec"]["template"] = {"spec": {"containers": "x"}}
    with pytest.raises(DecodeError, match=r"spec.template.spec.template.spec.containers: must be a list"):
        sweep_codec.sweep(document)


def test_the_bytes_of_pods_and_sweeps_count_for_their_namespace():
    received: list[tuple[str, int]] = []
    client, nothing = cast("Any", None), cast("Any", None)
    [sweeps] = SweepCache(client, (None,), 60, lambda key: None, lambda *of: received.append(of)).watches.values()
    pods = pod_watch(
        *(client, None, nothing, nothing, set()),
        decode=to_cached_pod,
        renewed_after=60,
        received=lambda *of: received.append(of),
    )
    data = json.dumps({"metadata": {"namespace": "team", "name": "x", "uid": "u"}, "spec": {"more": "x" * 1000}})
    for watch in (sweeps, pods):
        assert watch._decode(msgspec.Raw(data)) is not None
    assert received == [("team", len(data))] * 2


def test_decoded_sweeps_are_kept_up_to_a_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sweep_controller, "MAX_DECODED_BYTES", 100)
    kept, some = DecodedSweeps(), Sweep.__new__(Sweep)
    for name in ("a", "b"):
        kept.keep(("team", name), "uid", 1, 40, some)
    assert kept.get(("team", "a"), "uid", 1) is some
    kept.keep(("team", "c"), "uid", 1, 40, some)
    assert kept.get(("team", "b"), "uid", 1) is None, "it was not used for the longest time"
    assert kept.get(("team", "a"), "uid", 1) is some
    assert kept.get(("team", "a"), "uid", 2) is None, "another generation"
    assert kept.get(("team", "a"), "other", 1) is None, "another sweep of the same name"
    kept.keep(("team", "a"), "uid", 2, 90, some)
    assert len(kept) == 1
    kept.keep(("team", "d"), "uid", 1, 101, some)
    assert len(kept) == 0


_PROGRAM = """
import gc, json, sys
sys.path.insert(0, {tests!r})
from unit.operator.test_sweep_cache import World, sweep

def resident():
    gc.collect()
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1]) * 1024

spec, world = json.load(sys.stdin), World()
world.cache.upsert(sweep(spec=spec))
before = resident()
for number in range(20):
    world.cache.upsert(sweep(f"search-{{number}}", 2, spec))
    world.cache.get(("team", f"search-{{number}}"))
print((resident() - before) / 20)
"""


@pytest.mark.parametrize(("items", "most"), [(60_000, 1_000_000), (320_000, 400_000)], ids=["allowed", "too large"])
def test_a_sweep_takes_little_memory_whatever_its_template(items: int, most: int) -> None:
    """As Python objects, the larger one takes 45 MB."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(tests=str(TESTS))],
        input=json.dumps({"template": {"spec": {"template": {"x": [{}] * items}}}}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < most
