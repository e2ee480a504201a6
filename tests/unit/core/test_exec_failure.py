"""Programs that could not be executed: what is not found is named, with the cure, and the job fails at once."""

from __future__ import annotations

import pytest

from allranks.api.status import ProgressStatus, Status
from allranks.core.diagnosis.exec_failure import explain
from allranks.core.diagnosis.restart_policy import RestartDecision, decide_restart
from allranks.core.facts.model import Platform
from support.builders import at, failure, job, table

RUNC = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
RUNC += "unable to start container process: "
START = {"reason": "StartError", "exit_code": 128, "ran_seconds": 0.0}
IMAGE = "image example.org/train:1"

# Sentence, failure, why on a cluster.
CASES = [
    (
        "containerd with runc",
        failure(**START, message=RUNC + 'exec: "torchrn": executable file not found in $PATH: unknown'),
        f"torchrn is not on PATH of {IMAGE}",
    ),
    (
        "cri-dockerd",
        failure(
            reason="ContainerCannotRun",
            exit_code=127,
            message='OCI runtime create failed: exec: "torchrn": executable file not found in $PATH: unknown',
        ),
        f"torchrn is not on PATH of {IMAGE}",
    ),
    (
        "CRI-O with crun",
        failure(**START, message="executable file `torchrn` not found in $PATH: No such file or directory"),
        f"torchrn is not on PATH of {IMAGE}",
    ),
    (
        "a file that does not exist",
        failure(**START, message=RUNC + 'exec: "/opt/run.sh": stat /opt/run.sh: no such file or directory: unknown'),
        f"/opt/run.sh does not exist in {IMAGE}",
    ),
    (
        "a file that is not executable",
        failure(**START, message=RUNC + 'exec: "./run.sh": permission denied: unknown'),
        f"./run.sh cannot be executed in {IMAGE}: make it executable (chmod +x)",
    ),
    (
        "a program of another processor",
        failure(**START, message=RUNC + 'exec: "/train": exec format error'),
        f"/train cannot be executed in {IMAGE}: it is built for another processor, or is a script without a #! line",
    ),
    (
        "a working directory that does not exist",
        failure(**START, message=RUNC + 'chdir to cwd ("/code") set in config.json failed: no such file or directory'),
        f"the working directory /code does not exist in {IMAGE}",
    ),
    (
        "a GPU that the node does not have is no fault of the image",
        failure(**START, message=RUNC + "error running prestart hook: nvidia-container-cli: device error"),
        None,
    ),
    ("bash", failure(exit_code=127, message="bash: line 1: torchrn: command not found"), "torchrn is not on PATH"),
    ("dash", failure(exit_code=127, message="loading\nsh: 1: torchrn: not found"), "torchrn is not on PATH"),
    ("zsh", failure(exit_code=127, message="zsh:1: command not found: torchrn"), "torchrn is not on PATH"),
    ("busybox", failure(exit_code=127, message="sh: torchrn: not found"), "torchrn is not on PATH"),
    (
        "env",
        failure(exit_code=127, message="env: \u2018torchrn\u2019: No such file or directory"),
        "torchrn is not on PATH",
    ),
    (
        "the helper in the pod",
        failure(exit_code=127, message="allranks: cannot start torchrn: No such file or directory"),
        "torchrn is not on PATH",
    ),
    (
        "the helper in the pod, with a path",
        failure(exit_code=127, message="allranks: cannot start ./run.sh: No such file or directory"),
        "./run.sh does not exist",
    ),
    (
        "a shell and a path",
        failure(exit_code=127, message="bash: ./run.sh: No such file or directory"),
        "./run.sh does not exist",
    ),
    (
        "a shell and a file that is not executable",
        failure(exit_code=126, message="sh: 1: ./run.sh: Permission denied"),
        "./run.sh cannot be executed",
    ),
    (
        "exit code 127 with other words",
        failure(exit_code=127, message="error while loading shared libraries: libcudnn.so.9: cannot open"),
        f"a command or a library was not found in {IMAGE} (exit code 127)",
    ),
    (
        "exit code 126 with other words",
        failure(exit_code=126, message=""),
        f"a command cannot be executed in {IMAGE} (exit code 126)",
    ),
    ("another exit code", failure(exit_code=1, message="sh: 1: torchrn: not found"), None),
]


@table(*CASES)
def test_the_message_names_what_was_not_found_and_where(case):
    ended, why = case
    found = explain(job(image="example.org/train:1"), ended, local=False)
    assert found.sentence.startswith(why) if why else found is None


@pytest.mark.parametrize(
    ("local", "why"),
    [
        (True, "torchrn is not on PATH of this machine: is your environment active?"),
        (False, f"torchrn is not on PATH of {IMAGE}"),
    ],
)
@pytest.mark.parametrize(
    "ended",
    [
        failure(**START, message='exec: "torchrn": executable file not found in $PATH'),
        failure(exit_code=127, message="sh: 1: torchrn: not found"),
    ],
    ids=["StartError", "exit code 127"],
)
def test_a_program_that_is_not_found_fails_the_job_at_once(local, why, ended):
    """Not even a restart that is asked for would find it."""
    of = job(image="example.org/train:1", restart={"maxRestarts": 3})
    assert decide_restart(of, Status(), ended, Platform("", local=local)) == RestartDecision(
        "Fail", why, ended.reason, names_cause=True
    )


TRAINED = [
    ("a rank reported a step", Status(progress=ProgressStatus(step=7))),
    ("all pods ran two minutes ago", Status(first_running_time=at(-61))),
]


@table(*TRAINED)
def test_after_progress_a_program_that_is_not_found_is_a_failure_as_any_other(case):
    (status,) = case
    ended = failure(exit_code=127, message="sh: 1: evaluate: not found", time=at(60))
    assert decide_restart(job(), status, ended) == RestartDecision("Restart", "the program failed", "Error")
