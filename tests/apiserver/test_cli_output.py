"""`-o json` and `-o yaml` of the commands for a cluster: one form, only objects on stdout, messages on stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml

from support.builders import manifest
from support.commands import JobOnCluster, failure, kubeconfig_of_service_account, stamp, text
from support.live import eventually


def named(name: str, **metadata: object) -> dict[str, object]:
    document = manifest(name=name)
    document["metadata"] = {"name": name, **metadata}
    return document


def test_commands_that_change_a_job_print_it_as_it_is_afterwards(allranks, job):
    job.status()
    suspended = allranks("suspend", "penguins", "-o", "json")
    assert (suspended.exit_code, suspended.stderr) == (0, "")
    found = json.loads(suspended.stdout)
    assert (found["kind"], found["metadata"]["uid"], found["spec"]["suspend"]) == (
        *("DistributedTraining", job.uid),
        True,
    )
    assert "managedFields" not in found["metadata"]
    assert yaml.safe_load(allranks("resume", "penguins", "-o", "yaml").stdout)["spec"]["suspend"] is False
    scaled = json.loads(allranks("scale", "penguins", "--replicas", "5", "-o", "json").stdout)
    assert scaled["spec"]["roles"]["worker"]["replicas"] == 5
    assert allranks("suspend", "penguins", "-o", "name").stdout == "distributedtraining.allranks.dev/penguins\n"
    deleted = json.loads(allranks("delete", "penguins", "-o", "json").stdout)
    assert deleted["metadata"]["uid"] == job.uid


def test_several_jobs_are_a_list_and_a_missing_one_is_an_error_on_stderr(allranks, control_plane, namespace):
    for name in ("a", "b"):
        JobOnCluster(control_plane.api, namespace, name)
    result = allranks("suspend", "a", "missing", "b", "-o", "json")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: there is no job missing in namespace")
    found = json.loads(result.stdout)
    assert (found["kind"], [item["metadata"]["name"] for item in found["items"]]) == ("List", ["a", "b"])
    alone = allranks("suspend", "missing", "-o", "json")
    assert (alone.exit_code, alone.stdout) == (1, "")
    none = allranks("delete", "-l", "team=none", "-o", "json")
    assert (none.exit_code, json.loads(none.stdout)["items"]) == (0, [])


def test_submit_prints_one_object_or_a_list(allranks):
    one = allranks("submit", "-", "-o", "json", stdin=text(named("a")))
    assert json.loads(one.stdout)["metadata"]["name"] == "a"
    for output, load in (("json", json.loads), ("yaml", yaml.safe_load)):
        both = load(allranks("submit", "-", "-o", output, stdin=text(named("a"), named("b"))).stdout)
        assert (both["kind"], [item["metadata"]["name"] for item in both["items"]]) == ("List", ["a", "b"])


def test_wait_prints_the_job_at_the_end_also_after_a_failure_and_a_timeout(allranks, job):
    job.status(phase="Running")
    late = allranks("wait", "penguins", "--timeout", "1s", "-o", "json")
    assert late.exit_code == 124
    assert json.loads(late.stdout)["status"]["phase"] == "Running"
    assert "timed out: penguins is still Running" in late.stderr
    job.status(phase="Failed", completionTime=stamp(), lastFailure=failure())
    failed = allranks("wait", "penguins", "-o", "yaml")
    assert failed.exit_code == 1
    assert yaml.safe_load(failed.stdout)["status"]["phase"] == "Failed"
    assert "penguins Failed after" in failed.stderr


def test_describe_prints_the_job_its_pods_and_its_events(allranks, job, control_plane, namespace, tmp_path):
    (first, *_) = job.pods(node="node-7")
    job.run(first)
    other = JobOnCluster(control_plane.api, namespace, "penguins-8")
    other.pods()
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": namespace},
        "involvedObject": {"kind": "Pod", "namespace": namespace, "name": first},
        "reason": "Pulled",
    }
    control_plane.api.create(event)
    result = allranks("describe", "penguins", "-o", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert found["job"]["metadata"]["uid"] == job.uid
    assert [pod["metadata"]["name"] for pod in found["pods"]] == [
        f"penguins-{replica}-0" for replica in ("master-0", "worker-0", "worker-1")
    ]
    assert found["pods"][0]["spec"]["nodeName"] == "node-7"
    assert "Pulled" in [event["reason"] for event in found["events"]]
    assert found["errors"] == []
    assert yaml.safe_load(allranks("describe", "penguins", "-o", "yaml").stdout)["job"] == found["job"]


def test_top_prints_yaml(allranks, job):
    job.status(phase="Running", ready="3/3")
    assert yaml.safe_load(allranks("top", "penguins", "-o", "yaml").stdout)["name"] == "penguins"
    assert [one["name"] for one in json.loads(allranks("top", "-o", "json").stdout)["jobs"]] == ["penguins"]


def test_a_shell_completes_names_of_jobs_and_namespaces(control_plane, job, namespace, tmp_path):
    def completed(line: str, kubeconfig: object = control_plane.kubeconfig) -> subprocess.CompletedProcess[str]:
        words = f"allranks {line.replace('CONFIG', str(kubeconfig))}"
        env = {**os.environ, "_ALLRANKS_COMPLETE": "bash_complete", "COMP_WORDS": words}
        env["COMP_CWORD"] = str(len(words.split(" ")) - 1)
        command = [sys.executable, "-m", "allranks"]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)

    def answers(line: str, expected: str) -> bool:
        """Tries again: on a busy machine an answer may take longer than a user waits."""
        done = completed(line)
        assert done.stderr == ""
        return expected in done.stdout.splitlines()

    eventually(lambda: answers(f"describe --kubeconfig CONFIG -n {namespace} pen", "plain,penguins"))
    eventually(lambda: answers("get --kubeconfig CONFIG -n test-", f"plain,{namespace}"))
    config = kubeconfig_of_service_account(control_plane, namespace, tmp_path)
    denied = completed(f"describe --kubeconfig CONFIG -n {namespace} pen", config)
    assert (denied.stdout.strip(), denied.stderr) == ("", "")


@pytest.mark.parametrize("command", ["describe", "wait", "suspend", "resume", "delete"])
def test_an_error_prints_no_object(allranks, namespace, command):
    result = allranks(command, "missing", "-o", "json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: there is no job missing in namespace {namespace}")
