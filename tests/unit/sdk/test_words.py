"""Errors of the commands in the words of Python."""

from __future__ import annotations

import pytest
import yaml

import allranks
from allranks.sdk.words import in_python
from support.some_api import SomeApi

JOB = {"metadata": {"name": "birds", "namespace": "team", "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}}


@pytest.mark.parametrize(
    ("command", "python"),
    [
        ("it failed (--restarts 3 restarts it)", "it failed (restarts=3 restarts it)"),
        ("choose another place with --run-dir", "choose another place with run_dir="),
        ("log in again, or choose another --context", "log in again, or choose another context="),
        ("give --kubeconfig FILE, or set KUBECONFIG", "give kubeconfig=FILE, or set KUBECONFIG"),
        ("--kubeconfig /none: there is no such file", "kubeconfig=/none: there is no such file"),
        ("choose another with -n, or kubectl create", "choose another with namespace=, or kubectl create"),
        ("kubectl apply --server-side -f crds", "kubectl apply --server-side -f crds"),
        ("raise the limit (ulimit -n)", "raise the limit (ulimit -n)"),
        ("train-n is not a-name --contextual", "train-n is not a-name --contextual"),
    ],
)
def test_options_are_parameters(command, python):
    assert in_python(command) == python


def test_a_job_that_does_not_exist_is_looked_for_in_the_words_of_python(tmp_path):
    with SomeApi(tmp_path, JOB) as api:
        where = {"kubeconfig": str(api.kubeconfig)}
        with pytest.raises(allranks.ClusterError, match="did you mean birds"):
            allranks.job("brids", **where)
        with pytest.raises(
            allranks.ClusterError, match=r"no job x in namespace team: allranks.jobs\(\) lists the jobs"
        ):
            allranks.job("x", **where)


def test_a_missing_cluster_and_a_wrong_context_are_reported_in_the_words_of_python(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(allranks.ClusterError, match=r"allranks.run\(..., ranks=-2\) runs two ranks on this machine"):
        allranks.jobs()
    with SomeApi(tmp_path) as api:
        config = yaml.safe_load(api.kubeconfig.read_text())
        api.kubeconfig.write_text(yaml.safe_dump(config | {"current-context": "missing"}))
        with pytest.raises(allranks.ClusterError, match="choose one with context=, or kubectl config use-context NAME"):
            allranks.jobs(kubeconfig=str(api.kubeconfig))
