"""Pods whose program did not run: it could not be executed, an init container could not fetch an input, or the kubelet
rejected the pod.

The same image fails in the same way in each attempt, so a program that cannot be executed ends the job."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from allranks.api.job import Job
from allranks.api.status import Failure
from allranks.core.facts import pod_template
from allranks.core.facts.model import (
    ANY_PLATFORM,
    FETCH_FAILED,
    FETCH_RETRYING,
    FETCHING,
    INIT_FAILED,
    INPUT_FAILED,
    InitContainer,
    Pod,
)
from allranks.core.facts.naming import FETCH_CONTAINER
from allranks.core.facts.restarts import MAX_IDLE_RESTARTS
from allranks.core.facts.uploads import result_in

CANNOT_START = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of container runtimes: the container was created, and its program was not executed. Its exit code, mostly
128, is the runtime's."""
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
"""Exit codes of POSIX shells, env, nohup and the helper in the pod."""


REJECTIONS = frozenset(
    {"NodeShutdown", "UnexpectedAdmissionError", "NodeAffinity", "NodeName", "NodePorts", "TaintToleration"}
    | {"TopologyAffinityError", "SMTAlignmentError", "InvalidNodeInfo", "VolumeAttachmentLimitExceeded"}
)
"""`status.reason` of pods that the kubelet of their node rejects, besides OutOf... (OutOfcpu, OutOfnvidia.com/gpu)."""


def is_rejection(reason: str) -> bool:
    """Return whether the kubelet rejected the pod at admission."""
    return reason in REJECTIONS or reason.startswith("OutOf")


@dataclass(frozen=True, slots=True)
class ExecFailure:
    """The reason why a program was not executed, as a sentence with the cure."""

    sentence: str
    named: bool
    """The sentence names the program, so that the last line of the log adds nothing."""


def explain(job: Job, failure: Failure, local: bool) -> ExecFailure | None:
    """Return the reason why a program could not be executed.

    None if it was executed, or if its container could not be started for another reason, such as a missing device.
    """
    if failure.reason in CANNOT_START:
        patterns = _RUNTIME
    elif failure.reason == "Error" and failure.exit_code in (_NOT_EXECUTABLE, _NOT_FOUND):
        patterns = _SHELL
    else:
        return None
    place = "this machine" if local else f"image {_image(job, failure.role)}"
    where = f"{'on' if local else 'in'} {place}"
    for line in reversed(failure.message.splitlines()):
        for pattern, sentence in patterns:
            if match := pattern.search(line.strip()):
                cure = ": is your environment active?" if local and sentence is _NOT_ON_PATH else ""
                return ExecFailure(sentence.format(name=match[1], place=place, where=where) + cure, named=True)
    if failure.exit_code == _NOT_FOUND and patterns is _SHELL:
        return ExecFailure(f"a command or a library was not found {where} (exit code 127)", named=False)
    if failure.exit_code == _NOT_EXECUTABLE and patterns is _SHELL:
        return ExecFailure(f"a command cannot be executed {where} (exit code 126)", named=False)
    return None


def _image(job: Job, role: str) -> str:
    templates = pod_template.role_templates(job, ANY_PLATFORM)
    return str(pod_template.trainer(templates[role]).get("image", "")) if role in templates else "of the job"


_NOT_ON_PATH = "{name} is not on PATH of {place}"
_NO_FILE = "{name} does not exist {where}"
_REFUSED = "{name} cannot be executed {where}: make it executable (chmod +x)"
_FORMAT = "{name} cannot be executed {where}: it is built for another processor, or is a script without a #! line"
_DIRECTORY = "the working directory {name} does not exist {where}"

_Patterns = tuple[tuple[re.Pattern[str], str], ...]

_RUNTIME: _Patterns = (
    # runc and `allranks run`; crun.
    (re.compile(r'exec: "([^"]+)": executable file not found in \$PATH'), _NOT_ON_PATH),
    (re.compile(r"executable file `([^`]+)` not found in \$PATH"), _NOT_ON_PATH),
    (re.compile(r'exec: "([^"]+)":.*(?:not found|no such file or directory)'), _NO_FILE),
    (re.compile(r"executable file `([^`]+)` not found"), _NO_FILE),
    (re.compile(r'exec: "([^"]+)":.*(?:permission denied|is a directory)'), _REFUSED),
    (re.compile(r'exec: "([^"]+)":.*exec format error'), _FORMAT),
    (re.compile(r'chdir to cwd \("([^"]+)"\).*no such file or directory'), _DIRECTORY),
    (re.compile(r"the working directory (.+) does not exist"), _DIRECTORY),
)
_SHELL: _Patterns = (
    # bash, dash, busybox, ksh: `sh: 1: torchrn: not found`; zsh; env; the helper in the pod (inpod/watch.py).
    (re.compile(r": ([^\s:/]+): (?:command )?not found$"), _NOT_ON_PATH),
    (re.compile(r"command not found: ([^\s/]+)$"), _NOT_ON_PATH),
    (re.compile(r"^(?:\S*/)?env: [^\w./-]?([\w.+-]+)[^\w./-]?: No such file or directory$"), _NOT_ON_PATH),
    (re.compile(r"cannot start ([^\s/:]+): No such file or directory$"), _NOT_ON_PATH),
    (re.compile(r"cannot start (.+): (?:Permission denied|Is a directory)$"), _REFUSED),
    (re.compile(r"cannot start (.+): Exec format error$"), _FORMAT),
    (re.compile(r": ([^\s:]*/[^\s:]+): (?:No such file or directory|not found)$"), _NO_FILE),
    (re.compile(r"cannot start (.+): No such file or directory$"), _NO_FILE),
    (re.compile(r": ([^\s:]+): (?:Permission denied|Is a directory)$"), _REFUSED),
    (re.compile(r": ([^\s:]+): (?:cannot execute binary file: )?Exec format error$"), _FORMAT),
)


def judge_fetches(job: Job, pod: Pod) -> Pod:
    """Return the pod with the result of its fetches as its reason and message.

    Such a pod failed for its own reason: FetchFailed does not count, because the program did not run, and InputFailed
    ends the job.
    """
    if not job.spec.sources or pod.exit or pod.phase == "Running":
        return pod
    if pod.init is None or not pod.init.name.startswith(FETCH_CONTAINER):
        return pod
    name = pod.init.name.removeprefix(FETCH_CONTAINER)
    if pod.last_exit and pod.last_exit.reason == INIT_FAILED:
        # The pod has restartPolicy OnFailure, so its kubelet tries again for ever.
        if result := _fetch_result(job, name, pod.init):
            error, final = result
            if pod.container_restarts >= MAX_IDLE_RESTARTS:
                error, final = f"{error}; {pod.container_restarts} tries have failed", True
            if final:
                return replace(pod, phase="Failed", waiting_reason=INPUT_FAILED, waiting_message=error, last_exit=None)
            text = f"{error}; try {pod.container_restarts + 1} follows"
            return replace(pod, waiting_reason=FETCH_RETRYING, waiting_message=text, last_exit=None)
    elif pod.phase == "Failed" and pod.waiting_reason == INIT_FAILED:
        if result := _fetch_result(job, name, pod.init):
            error, final = result
            return replace(pod, waiting_reason=INPUT_FAILED if final else FETCH_FAILED, waiting_message=error)
    elif pod.init.exit_code is None and not pod.start_error:
        source = next((spec.source for spec in job.spec.sources if spec.name == name), "")
        return replace(pod, waiting_reason=FETCHING, waiting_message=f"inputs are fetched: {name} from {source}")
    return pod


def _fetch_result(job: Job, name: str, container: InitContainer) -> tuple[str, bool] | None:
    """Return (error with the path of the field, whether it is final); None if the kernel killed the program, for
    example."""
    result = result_in(container.message)
    if not isinstance(result, dict) or not result.get("error"):
        return None
    return f"{job.spec.field_of(name)}: {result['error']}", result.get("final") is True
