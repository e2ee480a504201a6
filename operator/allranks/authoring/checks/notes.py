"""Advice on valid jobs: settings that probably do not do what their author expects. A note never stops a job."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from allranks.api.job import Job
from allranks.api.status import Status
from allranks.authoring.checks.problem import Problem
from allranks.core.facts import gpu_count, pod_template, pool_template, topology
from allranks.core.facts.attempt import attempt_context
from allranks.core.facts.model import ANY_PLATFORM, Platform
from allranks.core.facts.naming import TRAINER
from allranks.core.facts.pool_template import NETWORKS
from allranks.core.objects import commands, preflight
from allranks.core.objects.gangs import choice, members
from allranks.frameworks import FRAMEWORKS


def notes_of(
    job: Job,
    claim_templates: Mapping[str, Mapping[str, Any]] | None = None,
    platform: Platform = ANY_PLATFORM,
) -> list[Problem]:
    """Return all notes on a job for which `pods.problems` is empty. `warning`: probably a mistake.

    `claim_templates`: ResourceClaimTemplate -> the spec of its claims, for the templates in the files. `platform`: has
    the pools that are in the files.
    """
    about_commands = (Problem(*remark) for remark in commands.remarks(job, platform))
    claims = _about_claims(job, claim_templates or {})
    tests, networks = _about_preflight(job, platform), _about_networks(job, platform)
    schedulers = _about_schedulers(job, platform)
    return [*_about_log_pattern(job), *_about_sidecars(job), *claims, *tests, *networks, *schedulers, *about_commands]


def _about_log_pattern(job: Job) -> Iterator[Problem]:
    pattern = job.spec.progress.log_pattern if job.spec.progress else None
    if pattern and "step" not in (groups := re.compile(pattern).groupindex):
        near = difflib.get_close_matches("step", groups, n=1)
        problem = f"group {near[0]} becomes a metric, did you mean step?" if near else "no group is named step"
        without = "without the step there is no progress bar, no ETA and no hang detection"
        yield Problem("spec.progress.logPattern", f"{problem}: {without}", "warning" if near else "note")


def _about_preflight(job: Job, platform: Platform) -> Iterator[Problem]:
    """Yield notes on tests that pods cannot make, or that cannot name a node."""
    context = attempt_context(job, Status(), platform)
    tests = preflight.pod_tests(job, Status(), platform, context)
    if tests is None:
        return
    path = "spec.preflight" if job.spec.preflight else job.spec.pool_field(pool_template.first_role(job))
    for role in dict.fromkeys(replica.role for replica in context.ranked() if replica.role not in tests.roles):
        cure = "allranks cannot start the image's entrypoint after a test: set its command"
        yield Problem(path, f"preflight: pods of role {role} are not tested: {cure}", "warning")
    if "network" in tests.tests.checks and len(tests.meeting) < 3:
        ranks = f"{len(tests.meeting) or 'no'} pods with ranks start together"
        yield Problem(path, f"preflight: network names no node, because {ranks}: it needs three", "note")


_USUAL_NAMES = frozenset({"main", "train", "training", "worker", "master", "chief", "job", "app", *FRAMEWORKS})
"""Names that the training container has in pods of other operators."""


def _about_sidecars(job: Job) -> Iterator[Problem]:
    """Yield a note for each container that may be meant as the training container.

    A container is merged into the training container only if it has its name; with any other it runs beside it.
    """
    parts = [("spec", job.spec), *((f"spec.roles.{role}", part) for role, part in job.spec.roles.items())]
    templates: list[tuple[str, Any]] = [(path, part.template or {}) for path, part in parts]
    containers = [
        (f"{path}.template.spec.containers[{number}].name", str(container["name"]))
        for path, template in templates
        for number, container in enumerate((template.get("spec") or {}).get("containers") or ())
    ]
    if any(name == TRAINER for _, name in containers):
        return
    for path, name in containers:
        problem = f"container {name} runs beside the training container, which is named {TRAINER}"
        mistaken = name in _USUAL_NAMES or bool(difflib.get_close_matches(name, [TRAINER], cutoff=0.7))
        cure = f"name it {TRAINER} if it is the training program"
        yield Problem(path, f"{problem}: {cure}", "warning" if mistaken else "note")


def _about_claims(job: Job, templates: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield notes on a number of processes that cannot follow from the pod, because it claims its GPUs."""
    option = next((name for name in _PROCESSES if getattr(job.spec.options, name, None) == "Auto"), None)
    if option is None:
        return
    field = f"spec.{job.spec.framework}.{type(job.spec.options).model_fields[option].alias}"
    for role, template in pod_template.role_templates(job, ANY_PLATFORM).items():
        resources = pod_template.trainer(template).get("resources") or {}
        entries = gpu_count.claims(resources)
        if not entries or not topology.framework_of(job).roles[role].ranked:
            continue
        in_limits = gpu_count.gpus({**resources, "claims": []})
        gpus = gpu_count.of_claims(resources, template["spec"].get("resourceClaims") or (), templates)
        if gpus is None:
            if in_limits:
                continue
            problem = f"Auto counts each of the {entries} entries of resources.claims as one GPU"
            problem = problem.replace("each of the 1 entries", "the entry")
            cure = "set the number of processes if a claim has several GPUs or another device"
            yield Problem(field, f"{problem}, because a pod does not say what a claim contains: {cure}", "note")
        elif in_limits and gpus:
            more = f"the claims of a {role} have {gpus} GPUs, which Auto does not count beside those in its limits"
            yield Problem(field, f"{more}: set it to {in_limits + gpus}", "warning")
        elif not in_limits and gpus != entries:
            starts = f"Auto starts {entries}, one for each entry of resources.claims"
            yield Problem(field, f"the claims of a {role} have {gpus} GPUs, {starts}: set it to {gpus}", "warning")


_PROCESSES = ("processes_per_node", "processes_per_pod", "slots_per_worker")
"""Options of frameworks with the number of processes in each pod."""


_INTERFACE = re.compile(r"\w+_(IFNAME|IFACE|if_include|IB_HCA|NET_DEVICES)")
"""Variables that choose a network interface or card: of NCCL, gloo, tensorpipe, Horovod, Open MPI, Hydra and UCX."""


def _about_networks(job: Job, platform: Platform) -> Iterator[Problem]:
    """Yield a note if pods have a second network, and nothing says that ranks use it."""
    if pool_template.missing(job, platform):
        return  # its variables are not in the files
    paths: set[str] = set()
    for role, template in pod_template.role_templates(job, platform).items():
        if not topology.framework_of(job).roles[role].ranked or not names_no_interface(template):
            continue
        parts = {f"spec.roles.{role}.template": job.spec.roles[role].template, "spec.template": job.spec.template}
        of_pool = job.spec.pool_field(role)
        paths.add(next((path for path, part in parts.items() if _has_network(part or {})), of_pool))
    problem = f"the annotation {NETWORKS} adds a network, and no variable says which interface ranks use"
    cure = "set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, for example to net1"
    for path in sorted(paths):
        yield Problem(path, f"{problem}: {cure}", "note")


def names_no_interface(template: Mapping[str, Any]) -> bool:
    """Return whether pods of this template have a second network, and no variable says which interface ranks use."""
    names = [variable["name"] for variable in pod_template.trainer(dict(template)).get("env") or ()]
    return _has_network(template) and not any(map(_INTERFACE.fullmatch, names))


def _has_network(template: Mapping[str, Any]) -> bool:
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    return bool(annotations.get(NETWORKS))


def _about_schedulers(job: Job, platform: Platform) -> Iterator[Problem]:
    """Yield a warning if the names of schedulers leave the pods of a job without gang scheduling."""
    if job.spec.scheduling.gang not in (None, "Auto") or sum(members.min_by_role(job, Status()).values()) < 2:
        return
    if pool_template.missing(job, platform):
        return  # it may name a scheduler
    templates = pod_template.role_templates(job, platform)
    problem = choice.mismatch(templates.values(), platform)
    if not problem or any(map(members.own_gang, templates.values())):
        return
    parts: list[tuple[str, Any]] = [
        ("spec", job.spec.template),
        *((f"spec.roles.{role}", part.template) for role, part in job.spec.roles.items()),
    ]
    of_pool = next((job.spec.pool_field(role) for role, template in templates.items() if _has_scheduler(template)), "")
    named = [path for path, template in parts if _has_scheduler(template or {})]
    path = f"{named[0]}.template.spec.schedulerName" if named else of_pool
    cure = "set scheduling.gang to a kind of PodGroup that the schedulers read, or to None if this is intended"
    yield Problem(path, f"{problem}: {cure}", "warning")


def _has_scheduler(template: Mapping[str, Any]) -> bool:
    return bool((template.get("spec") or {}).get("schedulerName"))


_ROOT = "an image that runs as root does not start"


def pod_security_text(job: Job) -> str:
    """Return what the security context of the pods depends on that no manifest says; empty if it depends on nothing."""
    level = job.spec.pod_security or "Auto"
    templates = pod_template.role_templates(job, ANY_PLATFORM).values()
    contexts = [context for template in templates for context in _contexts(template["spec"])]
    if any(context.get("privileged") is True for context in contexts):
        return "a privileged container: a namespace that enforces the standard baseline or restricted refuses such pods"
    if any(context.get("runAsUser") == 0 for context in contexts):
        return "the template asks for root: a namespace that enforces the standard restricted refuses such pods"
    if all(_user(template) for template in templates):
        return ""
    if level == "Restricted":
        return f"podSecurity: Restricted: {_ROOT}, and the image is not read here"
    text = f"podSecurity: {level}: pods have the user of the image"
    if level == "Auto":
        return f"{text}; where the namespace enforces restricted pods, {_ROOT} (neither is read here)"
    return f"{text}, and a namespace that enforces restricted pods refuses them (neither is read here)"


def _contexts(pod_spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    containers = [*(pod_spec.get("initContainers") or ()), *pod_spec["containers"]]
    return [part["securityContext"] for part in (pod_spec, *containers) if part.get("securityContext")]


def _user(template: Mapping[str, Any]) -> int | None:
    """Return the user of the training container that the template names; None for the user of the image."""
    contexts = [template["spec"].get("securityContext"), pod_template.trainer(dict(template)).get("securityContext")]
    users = [context["runAsUser"] for context in contexts if context and "runAsUser" in context]
    return users[-1] if users else None
