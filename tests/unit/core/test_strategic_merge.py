"""Merging of pod templates, as by a Kubernetes strategic merge patch."""

from __future__ import annotations

import copy

from allranks.core.facts.strategic_merge import merge
from support.builders import table

# Sentence, base, override, result.
CASES = [
    ("an empty override changes nothing", {"a": 1}, {}, {"a": 1}),
    ("an override of an empty map is the result", {}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ("a value overrides a value", {"a": 1}, {"a": 2}, {"a": 2}),
    ("maps merge by key", {"a": {"b": 1, "c": 2}}, {"a": {"c": 3, "d": 4}}, {"a": {"b": 1, "c": 3, "d": 4}}),
    ("a map replaces a value", {"a": 1}, {"a": {"b": 2}}, {"a": {"b": 2}}),
    ("a value replaces a map", {"a": {"b": 2}}, {"a": 1}, {"a": 1}),
    ("null removes", {"a": 1, "b": 2}, {"a": None}, {"b": 2}),
    ("null for an absent member changes nothing", {"b": 2}, {"a": None}, {"b": 2}),
    ("null removes inside a map", {"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
    ("null is removed from a new map", {}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
    ("a list of plain values is replaced", {"command": ["a", "b"]}, {"command": ["c"]}, {"command": ["c"]}),
    ("an empty list replaces a plain one", {"command": ["a", "b"]}, {"command": []}, {"command": []}),
    (
        "tolerations are replaced as a whole",
        {"tolerations": [{"key": "a"}]},
        {"tolerations": [{"key": "b"}]},
        {"tolerations": [{"key": "b"}]},
    ),
    (
        "containers merge by name, in the order of the base, new ones last",
        {"containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]},
        {"containers": [{"name": "c", "image": "c:1"}, {"name": "b", "tty": True}]},
        {
            "containers": [
                {"name": "a", "image": "a:1"},
                {"name": "b", "image": "b:1", "tty": True},
                {"name": "c", "image": "c:1"},
            ]
        },
    ),
    (
        "variables merge by name, inside containers that merge by name",
        {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}]},
        {"containers": [{"name": "a", "env": [{"name": "Y", "value": "3"}, {"name": "Z", "value": "4"}]}]},
        {
            "containers": [
                {
                    "name": "a",
                    "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "3"}, {"name": "Z", "value": "4"}],
                }
            ]
        },
    ),
    (
        "a variable's value replaces valueFrom",
        {"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
        {"env": [{"name": "X", "value": "1"}]},
        {"env": [{"name": "X", "value": "1"}]},
    ),
    (
        "a variable's valueFrom replaces the value",
        {"env": [{"name": "X", "value": "1"}]},
        {"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]},
        {"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]},
    ),
    (
        "volume mounts merge by their path, not by their name",
        {"volumeMounts": [{"name": "a", "mountPath": "/data"}, {"name": "a", "mountPath": "/more"}]},
        {"volumeMounts": [{"name": "b", "mountPath": "/data"}]},
        {"volumeMounts": [{"name": "b", "mountPath": "/data"}, {"name": "a", "mountPath": "/more"}]},
    ),
    (
        "ports merge by number",
        {"ports": [{"containerPort": 80, "name": "web"}]},
        {"ports": [{"containerPort": 80, "protocol": "UDP"}, {"containerPort": 81}]},
        {"ports": [{"containerPort": 80, "name": "web", "protocol": "UDP"}, {"containerPort": 81}]},
    ),
    (
        "volumes merge by name",
        {"volumes": [{"name": "a", "emptyDir": {}}]},
        {"volumes": [{"name": "b", "emptyDir": {}}]},
        {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}]},
    ),
    (
        "a volume has one source: that of the override",
        {"volumes": [{"name": "a", "emptyDir": {}}]},
        {"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "c"}}]},
        {"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "c"}}]},
    ),
    (
        "fields of the same volume source are merged",
        {"volumes": [{"name": "a", "emptyDir": {"medium": "Memory"}}]},
        {"volumes": [{"name": "a", "emptyDir": {"sizeLimit": "1Gi"}}]},
        {"volumes": [{"name": "a", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]},
    ),
    (
        "image pull secrets merge by name",
        {"imagePullSecrets": [{"name": "a"}]},
        {"imagePullSecrets": [{"name": "a"}, {"name": "b"}]},
        {"imagePullSecrets": [{"name": "a"}, {"name": "b"}]},
    ),
    (
        "a security context merges by field",
        {"securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}},
        {"securityContext": {"runAsNonRoot": False, "fsGroup": 1000}},
        {"securityContext": {"runAsNonRoot": False, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}}},
    ),
]


@table(*CASES)
def test_merge(case):
    under, over, result = case
    before = copy.deepcopy((under, over))
    assert merge(under, over) == result
    assert (under, over) == before, "neither is changed"


@table(*CASES)
def test_merging_the_same_override_again_changes_nothing(case):
    under, over, result = case
    assert merge(merge(under, over), over) == result
