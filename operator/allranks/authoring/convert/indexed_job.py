"""Job (batch/v1) with completionMode Indexed."""

from __future__ import annotations

import json
import re

from allranks.authoring.convert import pod_parts, training_operator
from allranks.authoring.convert.draft import Draft, Fields, NotConvertible, Row
from allranks.authoring.convert.pod_parts import Part
from allranks.frameworks import FRAMEWORKS

_ROWS: tuple[Row, ...] = (
    ("ttlSecondsAfterFinished", "ttlSecondsAfterFinished", ""),
    ("activeDeadlineSeconds", "activeDeadlineSeconds", ""),
    ("suspend", "suspend", ""),
    ("managedBy", "managedBy", ""),
)
_DROPPED = {
    "successPolicy": "success names a role, not indexes",
    "backoffLimitPerIndex": "a failure restarts all ranks, whatever its index",
    "maxFailedIndexes": "a failure restarts all ranks, whatever its index",
}
_IGNORED = ("completionMode", "selector", "manualSelector", "podReplacementPolicy")
_ACTIONS = {"FailJob": "Fail", "FailIndex": "Fail", "Ignore": "RestartUncounted", "Count": "Restart"}
INDEX = "JOB_COMPLETION_INDEX"


def convert(source: Fields) -> Draft:
    draft = Draft.begin(source, "Job")
    spec = source.child("spec")
    if spec.take("completionMode") != "Indexed":
        text = "must be Indexed: the pods of any other Job have no ranks"
        raise NotConvertible("spec.completionMode", text)
    pods = spec.number("completions", spec.number("parallelism", 1))
    if spec.number("parallelism", pods) < pods:
        raise NotConvertible("spec.parallelism", "must be completions: ranks run at the same time")
    for name in _IGNORED:
        spec.take(name)
    part = pod_parts.read("worker", pods, spec.take("template"), "spec.template", ["trainer"])
    ranks(draft, part)
    draft.move(spec, _ROWS)
    draft.drop_all(spec, _DROPPED)
    _restart(draft, spec)
    training_operator.comment_on_queue(draft, draft.document["metadata"].get("labels") or {})
    return draft.finish()


def ranks(draft: Draft, part: Part) -> None:
    """Set the framework and the pods of a job whose pods are ranks: pytorch if they run torchrun, else spmd."""
    starts = training_operator.without_rendezvous(draft, [part])
    if starts[0].used:
        draft.framework("pytorch")
        training_operator.processes_per_node(draft, [part], starts, training_operator.count_of_variable([part]) or "1")
        if draft.get("pytorch.processesPerNode") == 1 and not starts[0].processes:
            text = "torchrun starts one process without --nproc-per-node; Auto starts one for each GPU."
            draft.comment(("spec", "pytorch", "processesPerNode"), text)
    else:
        draft.framework("spmd", "The variables of SPMD programs connect the ranks; the command is not torchrun.")
        draft.set("spmd.processesPerPod", 1)
    _add_index(draft, part)
    pod_parts.assemble(draft, [part])


def _add_index(draft: Draft, part: Part) -> None:
    """Give programs that read the index of a Job the rank of the pod."""
    env = list(part.fields.get("env") or ())
    uses = re.search(rf"\b{INDEX}\b", json.dumps([part.command_line, env]))
    numbered = "NODE_RANK" in FRAMEWORKS[draft.spec["framework"]].reserved_env
    if uses and numbered:
        others = [variable for variable in env if variable.get("name") != INDEX]
        part.fields["env"] = [{"name": INDEX, "value": "$(NODE_RANK)"}, *others]
        draft.comment(("spec", "env"), f"{INDEX} is the rank of the pod. The program may read NODE_RANK instead.")


def _restart(draft: Draft, spec: Fields) -> None:
    limit = spec.number("backoffLimit", 6)
    text = "backoffLimit restarted single pods; here a failure of a rank restarts all ranks, from their checkpoint."
    draft.set("restart.maxRestarts", limit, text)
    rules = []
    for rule in spec.child("podFailurePolicy").children("rules"):
        action = _ACTIONS.get(str(rule.take("action")))
        codes, conditions = rule.child("onExitCodes"), rule.take("onPodConditions")
        codes.take("containerName")
        if codes and action:
            values = [int(value) for value in codes.take("values") or ()]
            if codes.take("operator") == "NotIn":
                values = [value for value in range(1, 256) if value not in values]
            rules.append({"exitCodes": values, "action": action})
        elif not _is_default(action, conditions):
            draft.drop(rule.path, "conditions of pods have no counterpart; disruptions are never counted")
    if rules:
        draft.set("restart.rules", rules)


def _is_default(action: str | None, conditions: object) -> bool:
    """Return whether a rule only says that disruptions are not counted, which is the default of allranks."""
    conditions = conditions if isinstance(conditions, list) else []
    types = {condition.get("type") for condition in conditions if isinstance(condition, dict)}
    return action == "RestartUncounted" and types == {"DisruptionTarget"}
