"""What PyTorchJob, TFJob, JAXJob and MPIJob have in common: `runPolicy`, and `restartPolicy` of each role."""

from __future__ import annotations

from collections.abc import Sequence

from allranks.authoring.convert import pod_parts
from allranks.authoring.convert.draft import Draft, Row
from allranks.authoring.convert.pod_parts import Part
from allranks.authoring.convert.source import Fields, NotConvertible

_ROWS: tuple[Row, ...] = (
    ("cleanPodPolicy", "cleanPodPolicy", ""),
    ("ttlSecondsAfterFinished", "ttlSecondsAfterFinished", ""),
    ("activeDeadlineSeconds", "activeDeadlineSeconds", "Time in which the job is suspended does not count here."),
    ("suspend", "suspend", ""),
)
_NO_GANG = "the operator makes the PodGroup; scheduling.gang can name the gang scheduler"
_SCHEDULING = {
    "queue": "set the annotation scheduling.volcano.sh/queue-name of the template",
    "minAvailable": "all pods start together, or elastic.minReplicas of them",
    "minResources": _NO_GANG,
    "scheduleTimeoutSeconds": "set scheduling.gangTimeoutSeconds",
}
OWN_MANAGERS = ("kubeflow.org/training-operator", "kubeflow.org/mpi-operator")


def read(draft: Draft, spec: Fields) -> None:
    """Sets the fields of `spec.runPolicy`, except backoffLimit."""
    policy = spec.child("runPolicy")
    draft.move(policy, _ROWS)
    if "cleanPodPolicy" not in draft.spec and "cleanPodPolicy" in spec:  # MPIJob v1 has it here
        draft.set("cleanPodPolicy", spec.take("cleanPodPolicy"))
    manager = policy.take("managedBy")
    if manager and manager not in OWN_MANAGERS:
        draft.set("managedBy", manager, f"{manager} has to support DistributedTraining, or nothing starts the job.")
    scheduling = policy.child("schedulingPolicy")
    draft.move(scheduling, [("priorityClass", "scheduling.priorityClassName", "")])
    draft.drop_all(scheduling, _SCHEDULING)
    labels = draft.document["metadata"].get("labels") or {}
    comment_on_queue(draft, labels)


QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def comment_on_queue(draft: Draft, labels: dict[str, str]) -> None:
    if QUEUE_LABEL in labels:
        text = "Kueue admits a DistributedTraining only if it is configured for this kind; see its documentation."
        draft.comment(("metadata", "labels", QUEUE_LABEL), text)


ROLE_FIELDS = ("replicas", "restartPolicy", "template")


def roles(
    draft: Draft,
    specs: Fields,
    names: dict[str, str],
    containers: Sequence[str],
    port: str,
    default_policy: str = "",
) -> tuple[list[Part], dict[str, str]]:
    """The parts of the roles, and role -> restartPolicy. `names`: the source's name -> role; it ignores case, as the
    operators do."""
    parts: list[Part] = []
    policies: dict[str, str] = {}
    lower = {name.lower(): role for name, role in names.items()}
    for name in specs.names():
        role = lower.get(name.lower())
        if role is None:
            continue
        own = specs.child(name)
        replicas = own.number("replicas", 1)
        policies[role] = str(own.take("restartPolicy", default_policy))
        path = own.place("template")
        parts.append(pod_parts.read(role, replicas, own.take("template"), path, containers, [port]))
    if not parts:
        raise NotConvertible(specs.path, f"has none of the roles {', '.join(names)}")
    order = list(names.values())
    parts.sort(key=lambda part: order.index(part.role))
    return parts, policies


PERMANENT = {"exitCodes": list(range(1, 128)), "action": "Fail"}
"""restartPolicy ExitCode: these are errors of the program, all others may be retried."""


def restart(draft: Draft, policies: dict[str, str], limit: int | None) -> None:
    """`limit`: backoffLimit, or another number of restarts of the source."""
    kinds = set(policies.values())
    listed = ", ".join(sorted(kinds))
    lost = "The loss of a node or a preemption restarts the job all the same, and is not counted."
    together = "here a failure of a rank restarts all ranks, from their checkpoint"
    if kinds == {"Never"}:
        draft.set("restart.maxRestarts", 0, f"restartPolicy Never: a failure of the program ends the job. {lost}")
        return
    if "ExitCode" in kinds:
        text = "restartPolicy ExitCode: exit codes of 1 to 127 are permanent errors."
        others = kinds - {"ExitCode"}
        draft.set("restart.rules", [PERMANENT], f"{text} Here it applies to all roles." if others else text)
    unlimited = "" if limit is not None else " without a limit, 3 is the default here"
    before = f"restartPolicy {listed} restarted single pods or containers{unlimited};"
    draft.set("restart.maxRestarts", 3 if limit is None else limit, f"{before} {together}.")
