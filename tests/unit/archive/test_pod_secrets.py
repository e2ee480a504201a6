"""Which Secrets the archiver asks for, and what it does without the right to read them."""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import Any

import pytest

from allranks.archive import pod_secrets
from allranks.archive.pod_secrets import Reference, SecretValues, references
from allranks.errors import ClusterError

SECRET = "correct-horse-battery"
FORBIDDEN = ClusterError("you may not get secrets", 403, "Forbidden")
GONE = ClusterError("not found", 404, "NotFound")


class Secrets:
    """A cluster with Secrets, or with errors in their places."""

    def __init__(self, **found: dict[str, str] | list[Any]) -> None:
        self.found: dict[str, Any] = found
        self.asked: list[str] = []

    async def get(self, path: str) -> dict[str, Any]:
        name = path.removeprefix("/api/v1/namespaces/team/secrets/")
        self.asked.append(name)
        answer = self.found.get(name, GONE)
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in answer.items()}}


def values(cluster: Any, *wanted: Reference, reader: SecretValues | None = None) -> set[str]:
    made = reader or SecretValues(lambda namespace: cluster if namespace == "team" else None)  # type: ignore[return-value]
    return asyncio.run(made.read("team", set(wanted)))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_secrets, "FIRST_BACKOFF_SECONDS", 0.0)


def test_references_of_variables_are_found_and_those_of_volumes_are_not():
    container = {
        "env": [
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "word", "optional": True}}},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "db", "key": "host"}}},
            {"name": "C", "value": "secretKeyRef"},
        ],
        "envFrom": [{"prefix": "S3_", "secretRef": {"name": "s3"}}, {"configMapRef": {"name": "settings"}}],
    }
    volumes = [{"secret": {"secretName": "files"}}, {"csi": {"nodePublishSecretRef": {"name": "csi"}}}]
    broken = [{"secretKeyRef": {"name": 1, "key": "x"}}, {"secretKeyRef": "x"}, {"envFrom": [1, {"secretRef": 2}]}]
    pod = {"spec": {"containers": [container], "volumes": volumes, "other": broken}}
    assert set(references(pod)) == {Reference("db", "word"), Reference("s3")}


def test_references_of_a_job_are_those_of_its_transfers_too():
    spec = {
        "inputs": [{"name": "a", "secret": "read"}, {"name": "b"}, 1],
        "outputs": [{"name": "c", "secret": "write"}],
    }
    assert set(references({"spec": spec})) == {Reference("read"), Reference("write")}


def test_only_the_keys_that_are_named_are_used_or_all_of_them():
    cluster = Secrets(db={"word": SECRET, "host": "db.example"}, s3={"id": "identity", "key": "0123456789"})
    assert values(cluster, Reference("db", "word")) == {SECRET}
    assert values(cluster, Reference("db", "missing"), Reference("s3")) == {"identity", "0123456789"}
    assert values(cluster, Reference("db"), Reference("db", "word")) == {SECRET, "db.example"}
    assert values(cluster) == set()


def test_values_that_are_no_text_are_left_out():
    class Binary:
        async def get(self, _path: str) -> dict[str, Any]:
            data = {"a": base64.b64encode(b"\xff\xfe\xfd\xfc\xfb\xfa").decode(), "b": "not base64", "c": None}
            return {"data": {**data, "d": base64.b64encode(SECRET.encode()).decode()}}

    assert values(Binary(), Reference("any")) == {SECRET}


def test_a_secret_that_may_not_be_read_is_not_asked_for_again_for_a_while(monkeypatch, caplog):
    cluster = Secrets(db=[FORBIDDEN], s3={"key": "0123456789"})
    reader = SecretValues(lambda _: cluster)  # type: ignore[arg-type,return-value]
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert values(cluster, Reference("db"), Reference("s3"), reader=reader) == {"0123456789"}
    assert cluster.asked.count("db") == 1
    assert cluster.asked.count("s3") == 3, "the right may be for one Secret alone"
    assert caplog.text.count("Secrets of namespace team may not be read") == 1
    monkeypatch.setattr(pod_secrets, "FORBIDDEN_SECONDS", -1.0)
    cluster.found["db"] = [FORBIDDEN, {"word": SECRET}]
    fresh = SecretValues(lambda _: cluster)  # type: ignore[arg-type,return-value]
    assert values(cluster, Reference("db"), reader=fresh) == set()
    assert values(cluster, Reference("db"), reader=fresh) == {SECRET}, "the right was granted meanwhile"


def test_a_secret_that_is_missing_is_left_out_and_an_error_is_tried_again(caplog):
    away = ClusterError("the API server does not answer", 0)
    assert values(Secrets(), Reference("db")) == set()
    cluster = Secrets(db=[away, ClusterError("busy", 500), {"word": SECRET}])
    assert values(cluster, Reference("db")) == {SECRET}
    assert cluster.asked == ["db"] * 3
    cluster = Secrets(db=[away])
    assert values(cluster, Reference("db")) == set()
    assert len(cluster.asked) == pod_secrets.TRIES
    assert "Secret team/db: its values are not masked" in caplog.text


@pytest.mark.parametrize("name", ["", "../pods", "a/b", "a?b", "a%2fb", "x\n"])
def test_a_name_that_leads_elsewhere_is_not_asked_for(name: str):
    cluster = Secrets()
    assert values(cluster, Reference(name)) == set()
    assert cluster.asked == []


def test_values_are_neither_kept_nor_logged(caplog):
    cluster = Secrets(db={"word": SECRET})
    reader = SecretValues(lambda _: cluster)  # type: ignore[arg-type,return-value]
    with caplog.at_level(logging.DEBUG):
        assert values(cluster, Reference("db"), reader=reader) == {SECRET}
    assert SECRET not in caplog.text
    assert SECRET not in repr(vars(reader))
