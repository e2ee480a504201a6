"""`allranks usage`, and the admission policy of the example that records users, on a real API server."""

from __future__ import annotations

import json

import yaml

from support.builders import manifest
from support.environment import ROOT
from support.live import eventually
from support.sweep_samples import a_sweep

FILE = ROOT / "examples/usage/record-users.yaml"
USER = "allranks.dev/user"


def test_usage_groups_jobs_by_the_user_that_the_policy_records(allranks, control_plane, job, namespace):
    job.status(phase="Running", cost={"gpus": 8, "gpuSeconds": {"productive": 7200}, "summary": "2.0 GPUh"})
    assert [group["name"] for group in json.loads(allranks("usage", "--by", "user", "-o", "json").stdout)] == [
        "(unknown)"
    ]
    api = control_plane.api
    policies = list(yaml.safe_load_all(FILE.read_text()))
    applied = control_plane.kubectl("apply", "--server-side", "-f", str(FILE))
    assert applied.returncode == 0, applied.stderr
    try:
        forged = manifest("pytorch", {"worker": 1}, "whales")
        forged["metadata"] |= {"namespace": namespace}
        forged["metadata"]["annotations"] = {USER: "somebody else", "note": "kept"}

        def recorded() -> str:
            answer = api.request(
                "POST", f"/apis/allranks.dev/v1alpha1/namespaces/{namespace}/distributedtrainings?dryRun=All", forged
            )
            return str(answer["metadata"]["annotations"][USER])

        eventually(lambda: recorded() != "somebody else", what="the policy")
        user = recorded()
        assert user
        assert api.create(forged, namespace)["metadata"]["annotations"] == {USER: user, "note": "kept"}
        change = {"metadata": {"annotations": {USER: "somebody else"}}}
        assert api.patch("DistributedTraining", namespace, "whales", change)["metadata"]["annotations"][USER] == user
        groups = json.loads(allranks("usage", "--by", "user", "-o", "json").stdout)
        assert {(group["name"], group["jobs"]) for group in groups} == {(user, 1), ("(unknown)", 1)}
        sweep = a_sweep("search")
        sweep["metadata"] = {"name": "search", "namespace": namespace}
        sweep.pop("status", None)
        template = api.create(sweep, namespace)["spec"]["template"]
        assert template["metadata"]["annotations"][USER] == user
    finally:
        for policy in reversed(policies):
            control_plane.kubectl("delete", policy["kind"].lower(), policy["metadata"]["name"])
