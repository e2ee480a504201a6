"""Programs that could not be executed. The same image fails in the same way in each attempt, so they end the job."""

from __future__ import annotations

import re
from dataclasses import dataclass

from allranks.api.job import Job
from allranks.api.status import Failure
from allranks.core.diagnosis.reasons import CANNOT_START
from allranks.core.facts import pod_template
from allranks.core.facts.model import ANY_PLATFORM

_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
"""Exit codes of POSIX shells, env, nohup and the helper in the pod."""


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
