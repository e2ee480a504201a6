"""The cache of sweeps keeps the newest version, and forgets what a list no longer has."""

from __future__ import annotations

from typing import Any

from allranks.operator.sweep_cache import SweepCache


def sweep(name: str = "search", version: int = 1) -> dict[str, Any]:
    metadata = {"namespace": "team", "name": name, "resourceVersion": str(version), "managedFields": [{"manager": "x"}]}
    return {"metadata": metadata, "spec": {}}


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
