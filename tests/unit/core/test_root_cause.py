"""Which failure was the first, and what is told of it: `status.lastFailure`."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from allranks.api.status import Failure, ReplicaRestarts, Status
from allranks.core import root_cause, topology
from allranks.core.model import Disruption, Exit
from allranks.frameworks.base import RootCause
from allranks.frameworks.pytorch import read_torchrun_report
from support.builders import NOW, at, failed, job, pod, preempted, succeeded, table

LOGS = Path(__file__).parent / "fixtures"
GROUP = {"roles": {"master": 1, "worker": 2}}
PS_JOB = {"framework": "tensorflow", "roles": {"chief": 1, "worker": 1, "ps": 2}}


def first(of, *pods, status=None, missing=()):
    return root_cause.first_failure(of, status or Status(), pods, missing, at(300))


def oom(index, after):
    return failed("worker", index, after=after, code=137, reason="OOMKilled")


# Sentence, pods that failed, the one that is the cause.
CAUSES = [
    ("the earliest failure is the cause", [failed(index=0, after=61), failed(index=1, after=60)], "worker-1"),
    (
        "the order in which pods are seen does not matter",
        [failed(index=1, after=60), failed(index=0, after=61)],
        "worker-1",
    ),
    (
        "of failures of one second, OOMKilled comes before its peers' exits",
        [failed("master", after=60), oom(1, after=60)],
        "worker-1",
    ),
    (
        "of failures of one second, a kill comes before its peers' exits",
        [failed("master", after=60), failed(index=1, after=60, code=137)],
        "worker-1",
    ),
    (
        "of failures of one second, an exit comes before the SIGTERM that its launcher sent",
        [failed("master", after=60, code=143), failed(index=1, after=60, code=1)],
        "worker-1",
    ),
    (
        "of failures of one second, an exit comes before a watchdog's SIGABRT",
        [failed("master", after=60, code=134), failed(index=1, after=60, code=1)],
        "worker-1",
    ),
    (
        "of failures of one second, a disruption comes before its peers' exits",
        [failed("master", after=60), preempted(index=1, after=60)],
        "worker-1",
    ),
    (
        "DisruptionTarget comes before the exit of a peer that missed it",
        [failed("master", after=62), preempted(index=1, after=60, phase="Failed", exit=Exit(143, at(70)))],
        "worker-1",
    ),
    (
        "a pod deleted by someone comes before the exit of a peer that missed it",
        [failed("master", after=62), pod(index=1, deleted_at=at(60))],
        "worker-1",
    ),
    (
        "a pod deleted after its peer's exit is not the cause",
        [failed("master", after=60), pod(index=1, deleted_at=at(62))],
        "master-0",
    ),
    (
        "of equal failures of one second the lowest replica is named, always the same",
        [failed(index=1, after=60), failed(index=0, after=60)],
        "worker-0",
    ),
]


@table(*CAUSES)
def test_cause(case):
    pods, cause = case
    found = first(job(**GROUP), *pods)
    assert f"{found.role}-{found.index}" == cause


def told(**fields) -> Failure:
    known = {
        "attempt": 0,
        "role": "worker",
        "index": 1,
        "rank": 2,
        "pod": "job-worker-1-0",
        "node": "node-1",
        "exit_code": 1,
        "signal": None,
        "reason": "Error",
        "message": "",
        "time": at(60),
        "ran_seconds": 58.0,
    }
    return Failure(**known | fields)


LONG = "\n".join(f"line {number}" for number in range(40))

# Sentence, the pod, what lastFailure says.
DESCRIPTIONS = [
    (
        "an exit is told with its code, reason, node and last lines",
        failed(index=1, message="ValueError: no data\n"),
        told(message="ValueError: no data"),
    ),
    ("a signal is told with its number", failed(index=1, code=139), told(exit_code=139, signal=11)),
    ("exit 255 is no signal", failed(index=1, code=255), told(exit_code=255)),
    (
        "OOMKilled is the reason where kubelet says so",
        failed(index=1, code=137, reason="OOMKilled"),
        told(exit_code=137, signal=9, reason="OOMKilled"),
    ),
    (
        "of a long message the last 20 lines are kept",
        failed(index=1, message=LONG),
        told(message="\n".join(LONG.splitlines()[-20:])),
    ),
    ("of a long line the last 2048 characters are kept", failed(index=1, message="x" * 5000), told(message="x" * 2048)),
    (
        "preemption is told with the scheduler's message, and has no exit code",
        preempted(index=1),
        told(exit_code=None, reason="Preempted", message="preempted by team/urgent"),
    ),
    (
        "the program's end after it was preempted is not told: it was asked to end",
        preempted(index=1, phase="Failed", exit=Exit(143, at(65), "Error", "stopping")),
        told(exit_code=None, reason="Preempted", message="preempted by team/urgent"),
    ),
    (
        "a program that failed before its pod was preempted has failed by itself",
        failed(index=1, message="ValueError: no data", disruption=Disruption("PreemptionByScheduler", at(90))),
        told(message="ValueError: no data"),
    ),
    (
        "a program that failed before its pod was deleted has failed by itself",
        failed(index=1, deleted_at=at(61)),
        told(),
    ),
    (
        "a pod deleted by someone is told as that",
        pod(index=1, deleted_at=at(60)),
        told(exit_code=None, reason="Deleted", message="the pod was deleted by someone"),
    ),
    (
        "a program that ended because its pod was deleted did not fail by itself",
        failed(index=1, code=143, after=70, deleted_at=at(60)),
        told(exit_code=None, reason="Deleted", message="the pod was deleted by someone"),
    ),
    (
        "a pod that kubelet refused is told with kubelet's words",
        pod(
            index=1,
            phase="Failed",
            started_at=None,
            waiting_reason="UnexpectedAdmissionError",
            waiting_message="Allocate failed due to no healthy devices",
        ),
        told(
            exit_code=None,
            reason="UnexpectedAdmissionError",
            message="Allocate failed due to no healthy devices",
            time=at(300),
            ran_seconds=0.0,
        ),
    ),
]


@table(*DESCRIPTIONS)
def test_description(case):
    seen, failure = case
    assert first(job(**GROUP), seen) == failure


@pytest.mark.parametrize(
    ("kubernetes", "ours"),
    [
        ("PreemptionByScheduler", "Preempted"),
        ("DeletionByTaintManager", "NodeLost"),
        ("DeletionByPodGC", "NodeLost"),
        ("EvictionByEvictionAPI", "Evicted"),
        ("TerminationByKubelet", "Evicted"),
        ("SomethingNew", "Disrupted"),
    ],
)
def test_every_reason_of_DisruptionTarget_has_one_of_ours(kubernetes, ours):
    found = first(job(**GROUP), pod(index=1, disruption=Disruption(kubernetes, at(60))))
    assert (found.reason, found.reason in root_cause.UNCOUNTED) == (ours, True)


def test_a_pod_that_is_gone_without_a_trace_was_deleted_by_someone():
    of = job(**GROUP)
    gone = topology.replicas(of, Status())[2]
    assert first(of, missing=[gone]) == told(
        node=None,
        exit_code=None,
        reason="Deleted",
        message="the pod was deleted by someone",
        time=at(300),
        ran_seconds=None,
    )


def test_of_a_replica_restarted_alone_the_newest_pod_is_named():
    of = job(**PS_JOB)
    status = Status(replica_restarts={"ps-1": ReplicaRestarts(count=2, restart_time=NOW)})
    gone = topology.replicas(of, status)[3]
    assert (first(of, status=status, missing=[gone]).pod, gone.role) == ("job-ps-1-0-2", "ps")


# Sentence, job, failed pod, its rank.
RANKS = [
    ("the master is rank 0", GROUP, failed("master"), 0),
    ("ranks go on with the workers", GROUP, failed("worker", 1), 2),
    ("a parameter server has no rank", PS_JOB, failed("ps"), None),
    (
        "where 8 processes run in a pod, its index is no rank",
        {"pytorch": {"processesPerNode": 8}},
        failed("worker", 1),
        None,
    ),
    (
        "where each pod has 2 Horovod slots, its index is no rank",
        {"framework": "horovod", "horovod": {"slotsPerWorker": 2}},
        failed("worker", 1),
        None,
    ),
]


@table(*RANKS)
def test_rank_is_told_where_it_is_known(case):
    fields, seen, rank = case
    assert first(job(**fields), seen).rank == rank


@pytest.mark.parametrize(
    ("seen", "over"),
    [
        (pod(), False),
        (succeeded(), False),
        (failed(), True),
        (preempted(), True),
        (pod(deleted_at=at(5)), True),
        (pod(exit=Exit(0, at(5), "Completed")), False),
        (pod(phase="Unknown"), False),
    ],
    ids=[
        "a pod that runs has not failed",
        "a pod that succeeded has not failed",
        "a pod that failed has",
        "a pod that is being preempted will not end well",
        "a pod that is being deleted will not end well",
        "a trainer that is done has not failed, though a sidecar still runs",
        "a node that does not answer is not yet a failure",
    ],
)
def test_failed(seen, over):
    assert root_cause.failed(seen) is over


# --- torchrun turns every worker's exit code into 1; its report at the end of the log says the truth ------------------


def log(name: str) -> str:
    return (LOGS / f"torchrun-{name}.log").read_text()


def as_kubelet(text: str, size: int = 2048) -> str:
    """FallbackToLogsOnError: the last 80 lines, of these the last 2048 bytes."""
    return "".join(text.splitlines(keepends=True)[-80:]).encode()[-size:].decode(errors="ignore")


ERROR = "ValueError: learning rate must not be negative: -0.1"
STEP = "rank 0 step 2 loss 0.333"

# Log, exit code, signal, last line of the message: of the whole log, and of what kubelet keeps of it.
REPORTS = [
    ("raise-1", 0, 1, None, ERROR, ERROR),
    ("raise-2", 1, 1, None, STEP, STEP),
    ("record-1", 0, 1, None, ERROR, ERROR),
    ("record-2", 1, 1, None, ERROR, ERROR),
    ("exit-1", 0, 3, None, STEP, STEP),
    ("exit-2", 1, 3, None, STEP, STEP),
    ("kill-1", 0, 137, 9, STEP, STEP),
    ("kill-2", 1, 137, 9, STEP, STEP),
]


@pytest.mark.parametrize("cut", [False, True], ids=["the whole log", "what kubelet keeps"])
@pytest.mark.parametrize("case", REPORTS, ids=[case[0] for case in REPORTS])
def test_torchruns_report_names_the_rank_that_failed_first(case, cut):
    name, rank, code, signal, last, last_of_cut = case
    text = as_kubelet(log(name)) if cut else log(name)
    report = read_torchrun_report(text)
    assert report is not None
    lines = (report.message or "").splitlines()
    assert (report.rank, report.exit_code, report.signal) == (rank, code, signal)
    assert lines[-1] == (last_of_cut if cut else last)


CHATTER = ("====", "----", "ChildFailedError", "closing signal", "/torchrun", "error_file", "no error file")
CHATTER += ("/torch/distributed/run.py", "/torch/distributed/launcher", "OMP_NUM_THREADS")


@pytest.mark.parametrize("name", [case[0] for case in REPORTS])
def test_nothing_of_torchruns_own_chatter_is_taken_for_the_programs_words(name):
    """Wherever kubelet cuts: with longer paths, less is left of the head."""
    cut = (as_kubelet(log(name).replace("/opt/venv", "/opt/venv" + "x" * longer)) for longer in range(90))
    for text in (log(name), *cut):
        report = read_torchrun_report(text)
        assert report is not None
        assert report.message
        assert not [line for line in report.message.splitlines() if any(word in line for word in CHATTER)]


def test_where_nothing_of_the_program_is_left_the_report_says_what_happened():
    assert read_torchrun_report(as_kubelet(log("exit-1"), 700)) == RootCause(
        rank=0, exit_code=3, signal=None, message="rank 0 exited with code 3", time=datetime(2026, 11, 21, 12, 11, 37)
    )
    assert read_torchrun_report(as_kubelet(log("kill-1"), 700)) == RootCause(
        rank=0,
        exit_code=137,
        signal=9,
        message="rank 0 was ended by signal 9",
        time=datetime(2026, 11, 21, 12, 11, 24),
    )


@pytest.mark.parametrize(
    "text",
    ["", "ValueError: no data\n", "Root Cause (first observed failure):\n", log("raise-1")[:1500]],
    ids=["an empty message", "a program without torchrun", "a title alone", "a report that was cut short"],
)
def test_a_message_without_a_report_is_left_as_it_is(text):
    assert read_torchrun_report(text) is None


def test_the_report_replaces_torchruns_own_exit_code():
    of = job(pytorch={"processesPerNode": 2})
    ended = datetime.fromisoformat("2026-11-21T12:11:40+00:00")
    report = log("kill-2")
    seen = replace(failed(index=1), exit=Exit(1, ended, "Error", as_kubelet(report)))
    found = first(of, seen)
    assert (found.rank, found.exit_code, found.signal, found.reason) == (1, 137, 9, "Error")


def reporting(index: int, ended: datetime, reported: str) -> object:
    """A pod whose torchrun ended at `ended`, and reports its worker's end at `reported` (its own local time)."""
    text = log("raise-1")
    known = next(line for line in text.splitlines() if line.startswith("  time      :"))
    return replace(failed(index=index), exit=Exit(1, ended, "Error", text.replace(known, f"  time      : {reported}")))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2026-03-04_10:00:01", "2026-03-04_10:00:03"),
        ("2026-03-04_15:30:01", "2026-03-04_15:30:03"),
        ("2026-03-03_23:00:01", "2026-03-03_23:00:03"),
    ],
    ids=["UTC", "a time zone of half hours", "yesterday in another time zone"],
)
def test_the_earliest_is_by_torchruns_report_as_it_waits_for_its_other_workers_before_it_ends(one, other):
    """Worker 0 failed first, but its torchrun needed 30 s to end the other processes."""
    pods = reporting(0, at(31), one), reporting(1, at(5), other)
    found = first(job(), *pods)
    assert (found.index, found.time) == (0, at(1))


def test_two_different_errors_under_torchrun_are_not_the_same_failure():
    other = log("raise-1").replace("learning rate must not be negative: -0.1", "no such file: penguins.csv")
    one, two = (first(job(), failed(message=as_kubelet(text))) for text in (log("raise-1"), other))
    assert not root_cause.same_way(one, two)


def test_one_error_in_two_attempts_under_torchrun_is_the_same_failure():
    again = log("raise-1").replace("961", "17").replace("12:11:14", "12:12:33")
    one, two = (first(job(), failed(message=as_kubelet(text))) for text in (log("raise-1"), again))
    assert root_cause.same_way(one, two)


@pytest.mark.parametrize(
    ("code", "told_code"), [(300, 300), (-1073741510, -1073741510), (2**31, None)], ids=["300", "Windows", "no int32"]
)
def test_an_exit_code_of_any_size_is_a_failure_like_others(code, told_code):
    assert first(job(), replace(failed(index=0), exit=Exit(code, at(5)))).exit_code == told_code


def test_a_log_that_claims_what_cannot_be_is_not_believed():
    text = log("kill-2").replace("  rank      : ", "  rank      : 99999999999")
    failure = first(job(), replace(failed(index=0), exit=Exit(1, at(5), "Error", as_kubelet(text))))
    assert failure.rank is None
