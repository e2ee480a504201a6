"""What a submission changes."""

from __future__ import annotations

from allranks.client.submission import difference


def test_difference_removes_fields_of_jobs_but_not_of_other_objects():
    there = {"kind": "DistributedTraining", "spec": {"a": 1, "b": {"c": 1, "d": 2}}, "metadata": {}}
    wanted = {"kind": "DistributedTraining", "spec": {"b": {"c": 1}}, "metadata": {}}
    assert difference(there, wanted) == {"spec": {"a": None, "b": {"d": None}}}
    assert difference(there | {"kind": "ConfigMap"}, wanted | {"kind": "ConfigMap"}) == {}
    assert difference(there, there) == {}
