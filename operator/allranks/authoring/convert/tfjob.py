"""TFJob (kubeflow.org/v1)."""

from __future__ import annotations

from allranks.authoring.convert import pod_parts, run_policy
from allranks.authoring.convert.draft import Draft
from allranks.authoring.convert.source import Fields, NotConvertible

_ROLES = {"Chief": "chief", "Master": "chief", "Worker": "worker", "PS": "ps", "Evaluator": "evaluator"}
_PORT = "tfjob-port"


def convert(source: Fields) -> Draft:
    draft = Draft.of(source, "TFJob")
    draft.framework("tensorflow")
    spec = source.child("spec")
    run_policy.read(draft, spec)
    specs = spec.child("tfReplicaSpecs")
    parts, policies = run_policy.roles(draft, specs, _ROLES, ["tensorflow"], _PORT, "Never")
    roles = [part.role for part in parts]
    if roles.count("chief") > 1:
        raise NotConvertible(specs.path, "has both a Chief and a Master: remove one of them")
    if ports := {part.ports[_PORT] for part in parts if _PORT in part.ports}:
        text = "" if len(ports) == 1 else f"One port for all roles; they had {', '.join(map(str, sorted(ports)))}."
        draft.set("tensorflow.port", min(ports), text)
    pod_parts.assemble(draft, parts)
    if any(name.lower() == "master" for name in specs.names()):
        text = "The role Master is chief here, also as the type of the task in TF_CONFIG."
        draft.comment(("spec", "roles", "chief"), text)
    if "evaluator" in roles:
        text = "The evaluator is in TF_CONFIG's cluster only of itself, so that the others do not wait for it."
        draft.comment(("spec", "roles", "evaluator"), text)
    _success(draft, spec, roles)
    draft.drop_all(spec, {"enableDynamicWorker": "every worker has the addresses of all workers in TF_CONFIG"})
    run_policy.restart(draft, policies, spec.child("runPolicy").take("backoffLimit"))
    if "ps" in roles:
        draft.comment(("spec", "roles", "ps"), "A parameter server that fails restarts alone, and is counted.")
    return draft.finish()


def _success(draft: Draft, spec: Fields, roles: list[str]) -> None:
    """The chief decides in both; without one worker 0, or all workers with AllWorkers."""
    if spec.take("successPolicy") == "AllWorkers" and "chief" not in roles:
        draft.set("success", "worker")
