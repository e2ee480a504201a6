"""JAXJob (kubeflow.org/v1)."""

from __future__ import annotations

from allranks.authoring.convert import pod_parts, run_policy
from allranks.authoring.convert.draft import Draft
from allranks.authoring.convert.source import Fields

_PORT = "jaxjob-port"


def convert(source: Fields) -> Draft:
    draft = Draft.of(source, "JAXJob")
    spec = source.child("spec")
    text = (
        "jax.distributed.initialize() needs no arguments here. JAXJob's COORDINATOR_ADDRESS, COORDINATOR_PORT, "
        "NUM_PROCESSES and PROCESS_ID are set as well."
    )
    draft.framework("jax", text)
    run_policy.read(draft, spec)
    specs = spec.child("jaxReplicaSpecs")
    parts, policies = run_policy.roles(draft, specs, {"Worker": "worker"}, ["jax"], _PORT, "Never")
    if ports := [part.ports[_PORT] for part in parts if _PORT in part.ports]:
        draft.set("jax.port", ports[0])
    pod_parts.assemble(draft, parts)
    run_policy.restart(draft, policies, spec.child("runPolicy").take("backoffLimit"))
    return draft.finish()
