"""The variables by which the hosts of a TPU slice find each other, as GKE sets them for its own kinds of jobs.

JAX, PyTorch/XLA and libtpu, also below TensorFlow, read them. Which replica is which host depends on the resources of
the pods and not on the framework, so they are added to the wiring of every framework.
"""

from __future__ import annotations

from dataclasses import replace

from allranks.core.facts.quantity import amount
from allranks.frameworks.base import AttemptContext, Framework, Replica, Shared, Wire, Wiring

RESOURCE = "google.com/tpu"
HOSTNAMES = "ALLRANKS_TPU_HOSTNAMES"
"""The host names of all pods with TPUs, in the order of TPU_WORKER_ID. TPU_WORKER_HOSTNAMES refers to it."""


def has_tpu(resources: dict[str, object] | None) -> bool:
    """Return whether a container with these `resources` requests TPUs."""
    return amount(resources, RESOURCE) > 0


def wire(framework: Framework, context: AttemptContext) -> Wire:
    """Return `framework.wire`, which also places the replicas of a slice of several hosts."""
    of_framework, numbers = framework.wire(context), {host: number for number, host in enumerate(_hosts(context))}

    def wiring(replica: Replica) -> Wiring:
        added = of_framework(replica)
        if replica not in numbers:
            return added
        variables = {"TPU_WORKER_ID": str(numbers[replica]), "TPU_WORKER_HOSTNAMES": f"$({HOSTNAMES})"}
        return replace(added, shared_env=(*added.shared_env, HOSTNAMES), defaults={**added.defaults, **variables})

    return wiring


def shared(framework: Framework, context: AttemptContext) -> Shared:
    """Return `framework.shared` with the host names of the slice."""
    of_framework, hosts = framework.shared(context), _hosts(context)
    if not hosts:
        return of_framework
    names = ",".join(f"{host.hostname}.{context.job}.{context.namespace}.svc" for host in hosts)
    return replace(of_framework, variables={**of_framework.variables, HOSTNAMES: names})


def _hosts(context: AttemptContext) -> tuple[Replica, ...]:
    """Return the replicas with TPUs. One alone needs no variables; on this machine they are those of its user."""
    hosts = () if context.local else context.in_roles(*context.tpus)
    return hosts if len(hosts) > 1 else ()
