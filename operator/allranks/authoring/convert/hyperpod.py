"""HyperPodPyTorchJob (sagemaker.amazonaws.com) of Amazon SageMaker HyperPod."""

from __future__ import annotations

from allranks.authoring.convert import pod_parts, training_operator
from allranks.authoring.convert.draft import Draft, Fields, NotConvertible
from allranks.authoring.convert.pod_parts import Part
from allranks.frameworks.command_line import basename

_LAUNCHER = "hyperpodrun"
_ROLES = {"master": "master", "worker": "worker"}
_DROPPED = {
    "logMonitoringConfiguration": "progress.logPattern reads steps from the output, and hangs are found by reports",
    "hyperPodElasticAgentConfig": "allranks restarts the ranks itself",
    "elasticPolicy": "set elastic.minReplicas and elastic.maxReplicas",
}
_RESTARTS = (
    "One number of restarts: each restarts all ranks from their checkpoint, in their pods where that is possible."
)


def convert(source: Fields) -> Draft:
    draft = Draft.begin(source, "HyperPodPyTorchJob")
    draft.framework("pytorch")
    spec = source.child("spec")
    policy = spec.child("runPolicy")
    limit = policy.take("jobMaxRetryCount")
    training_operator.read_run_policy(draft, spec)
    parts = _parts(draft, spec)
    processes = spec.take("nprocPerNode")
    for part in parts:
        _replace_launcher(draft, part)
    starts = training_operator.without_rendezvous(draft, parts, processes)
    training_operator.processes_per_node(draft, parts, starts, processes)
    pod_parts.assemble(draft, parts)
    restart = policy.child("restartPolicy")
    counts = {name: restart.take(name) for name in restart.names()}
    limit = limit if limit is not None else counts.get("numRestartBeforeFullJobRestart", 3)
    draft.set("restart.maxRestarts", int(limit), _RESTARTS)
    draft.drop_all(spec, _DROPPED)
    return draft.finish()


def _parts(draft: Draft, spec: Fields) -> list[Part]:
    parts: list[Part] = []
    for group in spec.children("replicaSpecs"):
        name = str(group.take("name") or "")
        role = _ROLES.get(name.lower(), "worker")
        if any(part.role == role for part in parts):
            raise NotConvertible(group.place("name"), "a job has one group of workers: join the groups")
        replicas = group.number("replicas", 1)
        draft.drop_all(group, {"spares": "a pod that is lost is replaced by a new one: keep spare nodes instead"})
        group.take("maxReplicas")
        parts.append(pod_parts.read(role, replicas, group.take("template"), group.place("template")))
    if not parts:
        raise NotConvertible("spec.replicaSpecs", "is needed: it has the pods")
    return sorted(parts, key=lambda part: part.role)


def _replace_launcher(draft: Draft, part: Part) -> None:
    """Start torchrun in place of hyperpodrun, which has its options and some of its own."""
    for name in ("command", "args"):
        texts = [str(text) for text in part.fields.get(name) or ()]
        if not any(_LAUNCHER in text for text in texts):
            continue
        changed = [
            text[: -len(_LAUNCHER)] + "torchrun" if basename(text) == _LAUNCHER else text.replace(_LAUNCHER, "torchrun")
            for text in texts
        ]
        part.fields[name] = changed
        draft.comment(("spec", "command"), "torchrun in place of hyperpodrun.")
        options = sorted(
            {word.partition("=")[0] for text in texts for word in text.split() if word.startswith(_OPTIONS)}
        )
        if options:
            draft.remark(("spec", "command"), f"torchrun has no {', '.join(options)}: remove this.")


_OPTIONS = ("--server-", "--server_", "--inprocess", "--pre-train", "--post-train", "--pre_train", "--post_train")
