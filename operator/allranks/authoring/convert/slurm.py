"""Scripts of Slurm's sbatch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from allranks.api.job import API_VERSION
from allranks.api.sweep import KIND as SWEEP
from allranks.authoring import templates
from allranks.authoring.convert.draft import Draft, Fields, NotConvertible
from allranks.authoring.convert.node_scripts import GPU, gpu_count, memory, name_of, set_ranks
from allranks.authoring.convert.shell_values import Values, of_command
from allranks.frameworks.command_line import Call, Word, calls, edited

KIND = "sbatch script"
SCRIPT = "sbatch"
"""The key of the document that stands for a script."""
_SHORT = {
    "N": "nodes",
    "n": "ntasks",
    "c": "cpus-per-task",
    "p": "partition",
    "t": "time",
    "J": "job-name",
    "G": "gpus",
    "a": "array",
    "D": "chdir",
    "A": "account",
    "q": "qos",
    "o": "output",
    "e": "error",
    "C": "constraint",
    "w": "nodelist",
    "x": "exclude",
    "d": "dependency",
}
_IGNORED = frozenset(
    {"output", "error", "open-mode", "exclusive", "requeue", "no-requeue", "export", "parsable", "wait"}
)
_REASONS = {
    "account": "who pays follows from the namespace",
    "qos": "set scheduling.priorityClassName, or a queue",
    "constraint": "choose nodes by pool, or by nodeSelector in template",
    "nodelist": "choose nodes by pool, or by nodeSelector in template",
    "exclude": "choose nodes by pool, or by nodeSelector in template",
    "dependency": "start the job when the other one has finished, for example by a workflow",
    "mail-type": "set notify",
    "mail-user": "set notify",
    "signal": "a pod gets SIGTERM, and terminationGracePeriodSeconds before it is killed",
}
_FLAGS = re.compile(
    r"-[luvQOXIsK]+|--(exclusive|label|unbuffered|overlap|exact|verbose|quiet|pty|no-kill|overcommit|kill-on-bad-exit"
    r"|multi-prog|resv-ports|container-writable|container-remap-root|container-mount-home|no-container-mount-home"
    r"|no-container-remap-root|no-container-entrypoint|container-readonly|preserve-env|propagate)"
)
"""Options of srun without a value."""


def is_document(document: Mapping[str, Any]) -> bool:
    return "kind" not in document and SCRIPT in document


def convert(source: Fields) -> Draft:
    draft = Draft.begin(source, KIND)
    text, file = str(source.take(SCRIPT)), str(source.take("name") or "job")
    directives = dict(_directives(text))
    draft.document["metadata"]["name"] = name_of(directives.pop("job-name", file))
    if gap := templates.gap_in(text):
        raise NotConvertible("the script", f"is a template: write a value for {gap} first")
    listed = directives.pop("nodes", "")
    nodes = _number((listed or "1").partition("-")[0], "nodes")
    tasks = _tasks(directives, nodes)
    resources = _resources(draft, directives, nodes, tasks)
    script, image, ranks = _body(draft, text, nodes)
    if ranks and tasks > 1 and not listed:
        raise NotConvertible("--nodes", f"is needed: without it Slurm chooses the nodes of {tasks} tasks")
    fields = {"image": image, "resources": resources, "workingDir": directives.pop("chdir", "")}
    _limits(draft, directives)
    array = directives.pop("array", "")
    env = {"SLURM_ARRAY_TASK_ID": "$(task)"} if array else {}
    draft.set("compatibility", ["Slurm"])
    set_ranks(draft, ["bash", "-c", script], nodes, env, fields, tasks if ranks else 1)
    if not image:
        draft.remark(("spec", "command"), "Set image: the programs and modules of the cluster are not in a container.")
    text = "The script ran in the directory that it was submitted from: ship its files with code, or mount its volume."
    draft.remark(("spec", "command"), text)
    for name, value in directives.items():
        if name not in _IGNORED:
            draft.drop(f"--{name}={value}", _REASONS.get(name, "has no counterpart"))
    draft.set("restart.maxRestarts", 0, "Slurm does not restart a job whose program fails.")
    draft.finish()
    return _sweep(draft, array) if array else draft


def _directives(text: str) -> Iterator[tuple[str, str]]:
    """Yield (long name, value) of the options of sbatch."""
    for line in re.findall(r"^#SBATCH[ \t]+(.*)$", text, re.MULTILINE):
        words = shlex.split(line, comments=True)
        while words:
            word = words.pop(0)
            if match := re.fullmatch(r"--([\w-]+)(?:=(.*))?", word):
                takes = match[2] is None and words and not words[0].startswith("-")
                yield match[1], words.pop(0) if takes else match[2] or ""
            elif match := re.fullmatch(r"-(\w)(.*)", word):
                takes = not match[2] and words and not words[0].startswith("-")
                yield _SHORT.get(match[1], match[1]), words.pop(0) if takes else match[2].lstrip("=")


def _number(text: str, name: str) -> int:
    if not text.isdigit() or not int(text):
        raise NotConvertible(f"--{name}", f"must be a whole number, not {text}")
    return int(text)


def _tasks(directives: dict[str, str], nodes: int) -> int:
    """Return the number of tasks on each node."""
    per_node, total = directives.pop("ntasks-per-node", ""), directives.pop("ntasks", "")
    if per_node:
        return _number(per_node, "ntasks-per-node")
    if total and _number(total, "ntasks") % nodes:
        raise NotConvertible("--ntasks", f"{total} tasks do not fill {nodes} nodes: set --ntasks-per-node")
    return int(total) // nodes if total else 1


def _resources(draft: Draft, directives: dict[str, str], nodes: int, tasks: int) -> dict[str, Any]:
    """Return the resources of a pod, which stands for a node of the job."""
    per_node = directives.pop("gpus-per-node", "")
    generic = [part[4:] for part in directives.pop("gres", "").split(",") if part.startswith("gpu")]
    per_task, total = directives.pop("gpus-per-task", ""), directives.pop("gpus", "")
    directives.pop("gpu-bind", "")
    count = 0
    if chosen := per_node or (generic[0] if generic else ""):
        count = gpu_count(chosen) or 0
    elif per_task:
        count = (gpu_count(per_task) or 0) * tasks
    elif total:
        count = max(1, (gpu_count(total) or 0) // nodes)
    kind = next(
        (part for part in (per_node or ":".join(generic) or per_task or total).split(":") if part[:1].isalpha()), ""
    )
    if kind:
        draft.drop(f"GPUs of the kind {kind}", "choose nodes by pool, or by nodeSelector in template")
    cpus = int(directives.pop("cpus-per-task", "0") or 0) * tasks
    size = directives.pop("mem", "")
    if of_cpu := directives.pop("mem-per-cpu", ""):
        size = _times(of_cpu, max(1, cpus))
    elif of_gpu := directives.pop("mem-per-gpu", ""):
        size = _times(of_gpu, max(1, count))
    requests = {"cpu": cpus} if cpus else {}
    limits = {**({GPU: count} if count else {}), **({"memory": memory(size)} if memory(size) else {})}
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def _times(text: str, number: int) -> str:
    match = re.match(r"(\d+)(.*)", text)
    return f"{int(match[1]) * number}{match[2]}" if match else ""


def _limits(draft: Draft, directives: dict[str, str]) -> None:
    if text := directives.pop("time", ""):
        if seconds := _seconds(text):
            draft.set("activeDeadlineSeconds", seconds, "The time in which the job waits for nodes does not count.")
        else:
            draft.drop(f"--time={text}", "it is no time, or no limit")
    if partition := directives.pop("partition", ""):
        name = name_of(partition.split(",")[0])
        draft.set("pool", name)
        draft.remark(("spec", "pool"), f"The partition {partition}: a TrainingPool of this name has to exist.")


def _seconds(text: str) -> int:
    """Return the seconds of a time such as `90` (minutes), `90:00`, `1:30:00` or `1-12:00:00`; 0 for no time."""
    days, dash, rest = text.rpartition("-")
    if not re.fullmatch(r"\d*(:\d+){0,2}", rest) or not rest or (dash and not days.isdigit()):
        return 0
    parts = [int(part or 0) for part in rest.split(":")]
    units = [3600, 60, 1] if dash or len(parts) == 3 else [60, 1]
    return int(days or 0) * 86400 + sum(part * unit for part, unit in zip(parts, units, strict=False))


# --- the script -------------------------------------------------------------------------------------------------------

_SUBSTITUTION = r"(?:\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`)"
_ADDRESS = re.compile(rf"([A-Za-z_]\w*)=(\()?\s*\"?{_SUBSTITUTION}\"?\s*\)?", re.DOTALL)
"""A variable with the output of a program."""
_ENDPOINT = re.compile(rf"((?:endpoint|addr|host|ip)[= ]\"?)({_SUBSTITUTION})", re.IGNORECASE)
"""An option with the output of a program, in a variable."""
_OF_CLUSTER = re.compile(r"\bscontrol\b|\bsrun\b|\bhostname\b")
"""Programs by which scripts find the address of the first node."""


def _with_address(script: str, word: Word) -> str:
    """Return a word that assigns a variable with the address of rank 0 where it asks the cluster for the first node.

    Slurm evaluates it on the first node, and here each pod does.
    """
    raw = script[word.begin : word.end]
    if (match := _ADDRESS.fullmatch(raw)) and _OF_CLUSTER.search(raw):
        return f"{match[1]}=($MASTER_ADDR)" if match[2] else f"{match[1]}=$MASTER_ADDR"
    return _ENDPOINT.sub(lambda m: f"{m[1]}$MASTER_ADDR" if _OF_CLUSTER.search(m[2]) else m[0], raw)


def _body(draft: Draft, text: str, nodes: int) -> tuple[str, str, bool]:
    """Return (script for each pod, image, whether srun starts the ranks)."""
    lines = [line for line in text.splitlines() if not line.startswith(("#!", "#SBATCH"))]
    script = "\n".join(lines).strip("\n") + "\n"
    of_script = calls(["bash", "-c", script])
    values = of_command(["bash", "-c", script], {})
    if not of_script and script.strip():
        raise NotConvertible("the script", "cannot be read: a quote or a parenthesis is open")
    edits: dict[Word, str] = {}
    image = ""
    modules: list[str] = []
    steps = 0
    for call in of_script:
        first = _first(call)
        name = call.words[first].text if first < len(call.words) else ""
        if name in ("module", "ml"):
            modules.append(" ".join(word.text for word in call.words))
            edits[call.words[first]] = f": {name}"
        elif name == "srun":
            steps += 1
            removed, of_container = _without_srun(draft, call, first, values)
            edits |= removed
            image = image or of_container
        for word in call.words:
            is_assigned = re.match(r"[A-Za-z_]\w*\+?=", word.text) and word not in edits
            if is_assigned and (after := _with_address(script, word)) != script[word.begin : word.end]:
                edits[word] = after
                name = word.text.partition("=")[0]
                draft.comment(("spec", "command"), f"{name} has the address of rank 0, which allranks sets.")
    if modules:
        draft.drop(", ".join(modules), "a container has no modules: the image has to have these programs")
    if steps and nodes > 1 and len(of_script) > 1:
        draft.comment(
            ("spec", "command"), "Slurm ran the commands outside of srun on the first node; here each pod does."
        )
    if steps > 1:
        draft.remark(
            ("spec", "command"), "The script has several srun: each pod runs all of them, one after the other."
        )
    return edited(["bash", "-c", script], edits)[2], image, bool(steps)


def _first(call: Call) -> int:
    """Return the index of the word that names the program of a call."""
    words = call.words
    return next((i for i, word in enumerate(words) if not re.match(r"[A-Za-z_]\w*\+?=", word.text)), len(words))


def _without_srun(draft: Draft, call: Call, place: int, values: Values) -> tuple[dict[Word, str], str]:
    """Return (edits that remove srun and its options, the image that they name)."""
    words, image = call.words, ""
    removed, unsure = [words[place]], list[Word]()
    index = place + 1
    while index < len(words):
        text = words[index].text
        expanded = values.words(text)
        if text.startswith("-"):
            removed += [*unsure, words[index]]
            unsure = []
            name, equals, value = text.partition("=")
            if not equals and not _FLAGS.fullmatch(text) and (text.startswith("--") or len(text) == 2):
                index += 1
                removed += words[index : index + 1]
                value = words[index].text if index < len(words) else ""
            if name == "--container-image":
                image = _image(draft, values.value(value) or value)
            elif reason := _OF_STEP.get(name):
                draft.drop(f"{name}={value}" if value else name, reason)
        elif expanded is not None and all(word.startswith("-") for word in expanded[:1]):
            removed.append(words[index])
        elif expanded is None and text.startswith("$") and index + 1 < len(words):
            unsure.append(words[index])
        else:
            break
        index += 1
    if unsure and index < len(words):
        removed += unsure
        listed = ", ".join(word.text for word in unsure)
        draft.remark(("spec", "command"), f"Removed after srun, as its options: {listed}.")
    return dict.fromkeys(removed, ""), image


_MOUNTS = "mount a volume in template, or ship the files with code"
_SIZE = "each pod runs the program, and spmd.processesPerPod is its number of ranks"
_OF_STEP = {
    "--container-mounts": _MOUNTS,
    "--container-workdir": "set workingDir",
    "--container-env": "a container gets the variables of the job",
    "--chdir": "set workingDir",
    "-D": "set workingDir",
    "--multi-prog": "write a role for each program",
    "-w": "choose nodes by pool, or by nodeSelector in template",
    "--nodelist": "choose nodes by pool, or by nodeSelector in template",
    **dict.fromkeys(("-N", "--nodes", "-n", "--ntasks", "--ntasks-per-node"), _SIZE),
}
"""Options of srun that mean something for the result, with the reason why they are dropped."""


def _image(draft: Draft, text: str) -> str:
    """Return the image of a container option; empty for a file, which no registry has."""
    if re.search(r"\.sqsh$|^[/.]|\$", text):
        draft.drop(f"--container-image={text}", "push this image to a registry, and set image")
        return ""
    return text.replace("#", "/").removeprefix("docker://")


# --- arrays -----------------------------------------------------------------------------------------------------------


def _sweep(draft: Draft, array: str) -> Draft:
    """Make a sweep of the job, with a trial for each index of the array."""
    indexes, _, parallel = array.partition("%")
    values: list[int] = []
    for part in indexes.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is None:
            raise NotConvertible("--array", f"must be indexes such as 0-9, not {array}")
        values += range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))
    step = values[1] - values[0] if len(values) > 1 else 1
    if values == list(range(values[0], values[-1] + 1, step)) and len(values) > 64:
        parameter: dict[str, Any] = {"whole": {"min": values[0], "max": values[-1], "step": step}}
    else:
        parameter = {"values": values}
    job = draft.document
    spec = {"parameters": {"task": parameter}, "algorithm": "Grid", "parallel": int(parallel or min(len(values), 100))}
    metadata = job["metadata"]
    sweep = {
        "apiVersion": API_VERSION,
        "kind": SWEEP,
        "metadata": metadata,
        "spec": {**spec, "template": {"spec": job["spec"]}},
    }
    draft.document = sweep
    draft.comments = [(("spec", "template", *path), text) for path, text in draft.comments]
    draft.remarks = [(("spec", "template", *path), text) for path, text in draft.remarks]
    draft.comment(
        ("spec", "parameters"), "A trial for each task of the array, which has its index in SLURM_ARRAY_TASK_ID."
    )
    return draft
