"""PaddleJob (kubeflow.org/v1)."""

from __future__ import annotations

from allranks.authoring.convert import training_operator
from allranks.authoring.convert.draft import Draft, Fields

_ROLES = {"Master": "master", "Worker": "worker"}
_LAUNCHER = "paddle.distributed.launch"
_VARIABLES = {
    "PADDLE_MASTER": "$(MASTER_ADDR):$(MASTER_PORT)",
    "PADDLE_NNODES": "$(NNODES)",
    "PADDLE_JOB_ID": "$(ALLRANKS_JOB)",
}
"""What the operator sets in Collective mode, by the variables of SPMD programs."""


def convert(source: Fields) -> Draft:
    draft = Draft.begin(source, "PaddleJob")
    draft.framework("spmd", f"{_LAUNCHER} in each pod starts its processes, and finds the other pods by PADDLE_MASTER.")
    spec = source.child("spec")
    training_operator.read_run_policy(draft, spec)
    draft.drop_all(spec, {"elasticPolicy": "the number of workers changes by a restart from the checkpoint: elastic"})
    specs = spec.child("paddleReplicaSpecs")
    parts, policies = training_operator.read_roles(spec, specs, _ROLES, ["paddle"], "master", "OnFailure")
    for part in parts:
        names = {variable.get("name") for variable in part.fields.get("env") or ()}
        more = [{"name": name, "value": value} for name, value in _VARIABLES.items() if name not in names]
        part.fields["env"] = [*more, *(part.fields.get("env") or ())]
        if _LAUNCHER not in " ".join(part.command_line):
            text = f"PADDLE_TRAINER_ID and PADDLE_TRAINER_ENDPOINTS are not set: {_LAUNCHER} in the command sets them."
            draft.remark(("spec", "command"), text)
    training_operator.spmd(draft, parts)
    training_operator.set_restart(draft, policies, training_operator.backoff_limit(spec))
    return draft.finish()
