"""XGBoostJob (kubeflow.org/v1 and earlier, training.kubedl.io)."""

from __future__ import annotations

from allranks.authoring.convert import training_operator
from allranks.authoring.convert.draft import Draft, Fields

_ROLES = {"Master": "master", "Worker": "worker"}


def convert(source: Fields) -> Draft:
    draft = Draft.begin(source, "XGBoostJob")
    text = "MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE are set as before, and the master has rank 0."
    draft.framework("spmd", text)
    spec = source.child("spec")
    training_operator.read_run_policy(draft, spec)
    specs = spec.child("xgbReplicaSpecs")
    parts, policies = training_operator.read_roles(spec, specs, _ROLES, ["xgboost"], "xgboostjob-port", "Never")
    training_operator.spmd(draft, parts)
    draft.drop("WORKER_ADDRS, WORKER_PORT", "the hosts are in the file that ALLRANKS_HOSTS_WORKER names")
    training_operator.set_restart(draft, policies, training_operator.backoff_limit(spec))
    return draft.finish()
