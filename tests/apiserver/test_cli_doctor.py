"""`allranks doctor` on a real API server without nodes, for an administrator and for a user without rights."""

from __future__ import annotations

import json

from support.commands import Commands, kubeconfig_of_service_account


def checks(result) -> dict[str, tuple[str, str]]:
    return {one["check"]: (one["status"], one["message"]) for one in json.loads(result.stdout)["checks"]}


def test_an_administrator_sees_what_the_cluster_needs(allranks, control_plane, namespace):
    result = allranks("doctor", "--cluster", "-o", "json")
    assert (result.exit_code, result.stderr) == (1, "")
    found = checks(result)
    assert found["api server"][0] == "ok"
    assert found["api server"][1].startswith(f"{control_plane.url} (context tests) is Kubernetes v1.")
    assert found["api server"][1].endswith(f", namespace {namespace}")
    assert found["crds"] == ("ok", "TrainingSweep has the fields of this client")
    assert found["operator"] == (
        "problem",
        "no Deployment of the operator: jobs are accepted, but nothing runs them",
    )
    assert found["rights"][0] == "ok"
    for check in ("nodes", "pools", "rdma", "storage", "dns", "kueue"):
        assert "not checked: no right" not in found[check][1], found[check]


def test_a_user_without_rights_learns_which_are_missing(control_plane, namespace, tmp_path):
    config = kubeconfig_of_service_account(control_plane, namespace, tmp_path)
    result = Commands(config, namespace)("doctor", "--cluster", "-o", "json")
    assert (result.exit_code, result.stderr) == (1, "")
    found = checks(result)
    assert found["rights"][0] == "problem"
    assert found["rights"][1].startswith(f"you have no rights for jobs in namespace {namespace}: create distributed")
    assert found["nodes"] == ("note", "not checked: no right to list nodes")
    assert found["crds"] == ("note", "not checked: no right to read customresourcedefinitions")
    assert [check for check, (status, _) in found.items() if status == "problem"] == ["rights"]
