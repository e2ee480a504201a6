"""Stores: older versions never replace newer ones, also when responses and watch events cross."""

from __future__ import annotations

from allranks.kube.store import Store, differences


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def store(clock: Clock | None = None) -> Store[str, int]:
    """A store whose objects are their versions."""
    return Store(lambda version: version, 10.0, clock or Clock())


def test_only_newer_versions_replace_an_object():
    pods = store()
    assert [pods.put("a", version) for version in (5, 4, 5, 6)] == [True, False, False, True]
    assert (pods.get("a"), list(pods), "b" in pods) == (6, ["a"], False)


def test_a_late_response_does_not_bring_a_deleted_object_back_until_the_tombstone_is_removed():
    clock = Clock()
    pods = store(clock)
    pods.put("a", 5)
    assert [pods.delete("a", version) for version in (4, 7, 7)] == [False, True, False]
    assert [pods.put("a", 6), pods.put("a", 7)] == [False, False]
    assert pods.put("a", 8)
    clock.now = 11.0
    pods.delete("b", 9)
    assert pods.tombstones == 1


def test_an_object_that_the_server_does_not_find_returns_only_in_a_newer_version():
    pods = store()
    pods.put("a", 5)
    assert (pods.forget("a"), pods.forget("a")) == (5, None)
    assert [pods.put("a", 5), pods.put("a", 6)] == [False, True]


def test_objects_that_are_missing_from_a_list_are_not_newer_than_it():
    pods = store()
    for key, version in (("a", 1), ("b", 5), ("c", 9), ("other", 1)):
        pods.put(key, version)
    assert pods.missing_from({"a"}, 7, lambda key: key != "other") == [("b", 5)]


def test_a_dropped_object_may_return():
    pods = store()
    pods.put("a", 5)
    pods.drop("a")
    assert pods.put("a", 5)


def test_differences_of_two_lists():
    before, after = {"a": 1, "b": 2, "c": 3}, {"b": 2, "c": 4, "d": 5}
    assert list(differences(before, after, lambda version: version)) == [("deleted", 1), ("changed", 4), ("added", 5)]
