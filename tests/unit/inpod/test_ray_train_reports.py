"""Reports of the ranks of Ray Train: real processes, with a small fake of Ray Train that has the names it needs.

The test with Ray itself is in `tests/frameworks/examples/test_ray_cluster.py`.
"""

from __future__ import annotations

import subprocess

from support.builders import table
from support.fake_report_server import FakeReportServer, ok
from unit.inpod.conftest import Run

EXECUTION = "ray/train/v2/_internal/execution"
RANKS = f"{EXECUTION}/worker_group/worker.py"
V2 = "ray/train/__init__.py"
"""Only Ray Train V2 has this class there."""
FAKE_RAY = {
    **{f"{folder}/__init__.py": "" for folder in ("ray", "ray/train/v2", "ray/train/v2/_internal")},
    V2: "class UserCallback: ...\n",
    **{f"{EXECUTION}/{folder}__init__.py": "" for folder in ("", "worker_group/")},
    f"{EXECUTION}/callback.py": """
class WorkerCallback:
    def after_init_train_context(self): ...
    def before_worker_shutdown(self): ...
""",
    f"{EXECUTION}/context.py": """
import time

class TrainContext:
    def __init__(self, rank, reported):
        self.rank = rank
        self.current_report_index = self.report_call_index = reported
    def get_world_rank(self): return self.rank
    def get_local_rank(self): return self.rank + 1
    def report(self, metrics, checkpoint=None, checkpoint_dir_name=None, upload="SYNC"):
        self.report_call_index += 1
        time.sleep(0.2)  # the other ranks
        if upload == "SYNC":
            self.current_report_index += 1

def get_train_context(): return current
""",
    RANKS: """
from ray.train.v2._internal.execution import context

class RayTrainWorker:
    def init_train_context(self, rank, worker_callbacks, reported=0):
        self.callbacks = worker_callbacks
        self.context = context.current = context.TrainContext(rank, reported)
        for callback in self.callbacks: callback.after_init_train_context()
    def shutdown(self):
        for callback in self.callbacks: callback.before_worker_shutdown()
""",
}
START = """
import os, time
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker
worker = RayTrainWorker()
worker.init_train_context(rank=1, worker_callbacks=[], reported=2)
print([type(each).__name__ for each in worker.callbacks], flush=True)
report = worker.context.report
"""
END = """
from allranks import report as library
if client := library._client:
    post = client._transport.post
    client._transport.post = lambda message, timeout: post(message, 60)  # the machine of the tests may be busy
worker.shutdown()
if client:
    client._over.wait(60)
os._exit(0)
"""


def passed(done: subprocess.CompletedProcess[str], *names: str) -> None:
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{list(names)}\n", "")


TRAIN = """
for epoch in range(1, 4):
    time.sleep(0.05)
    report({"epoch": epoch, "loss": 1 / epoch, "total_steps": 5, "name": "x", "good": True}, object())
"""


def test_each_rank_of_ray_train_reports_its_metrics_checkpoints_and_own_work(run: Run, hub: FakeReportServer):
    """The number of steps continues after a restart of the ranks. `RANK` is not set by every backend of Ray Train."""
    passed(run(START + TRAIN + END, FAKE_RAY, RANK=""), "ReportCallback")
    last = hub.messages[-1]
    assert [last[key] for key in ("rank", "localRank", "step", "totalSteps", "epoch")] == [1, 2, 5, 5, 3]
    assert (last["metrics"], last["checkpoint"]["step"], last["done"]) == ({"loss": 1 / 3}, 5, True)
    assert last["busySeconds"] >= 0.05


def test_the_metric_step_is_the_step_and_own_work_is_divided_by_the_steps(run: Run, hub: FakeReportServer):
    hub.answers = [ok(interval=300)]  # only the first and the last message, so the means are of the same steps
    train = "for step in (10, 20, 30):\n    time.sleep(0.5)\n    report({'step': step})\n"
    passed(run(START + train + END, FAKE_RAY), "ReportCallback")
    last = hub.messages[-1]
    assert (last["step"], last["checkpoint"]) == (30, None)
    # A busy machine makes both longer, but not shorter. A step takes 0.02 s more: the report of ten steps waits 0.2 s.
    assert last["busySeconds"] >= 0.05
    assert last["stepSeconds"] >= last["busySeconds"] + 0.02


def test_a_checkpoint_that_is_uploaded_in_the_background_counts_when_it_is_stored(run: Run, hub: FakeReportServer):
    train = """
report({}, object(), None, "ASYNC")
report({}, object(), None, "ASYNC")
worker.context.current_report_index = 3  # the first one of the two
report({}, None, None, "ASYNC")
"""
    passed(run(START + train + END, FAKE_RAY), "ReportCallback")
    assert hub.messages[-1]["checkpoint"] is None, "the second one is not stored, and the first one was not the last"
    passed(run(START + train + "worker.context.current_report_index = 4\n" + END, FAKE_RAY), "ReportCallback")
    assert hub.messages[-1]["checkpoint"]["step"] == 5


def test_what_the_function_of_the_ranks_reports_itself_takes_precedence(run: Run, hub: FakeReportServer):
    train = "from allranks.report import report as own\nown(step=7, loss=1.0)\nreport({'loss': 9.0, 'step': 8})\n"
    passed(run(START + train + END, FAKE_RAY), "ReportCallback")
    last = hub.messages[-1]
    assert (last["step"], last["metrics"], last["waiting"], last["done"]) == (7, {"loss": 1.0}, None, True)


def test_a_callback_in_the_rank_that_reports_its_steps_counts_them(run: Run, hub: FakeReportServer):
    train = """
from allranks.report import report_automatically as keras
for epoch in (1, 2):
    keras(step=10 * epoch)
    report({"loss": 1 / epoch, "epoch": epoch + 0.5})
"""
    passed(run(START + train + END, FAKE_RAY), "ReportCallback")
    last = hub.messages[-1]
    assert (last["step"], last["epoch"], last["metrics"]) == (20, 2, {"loss": 0.5})
    assert (last["busySeconds"], last["waiting"]) == (None, None)


def test_a_callback_of_the_program_replaces_the_added_one(run: Run, hub: FakeReportServer):
    given = "from allranks.report.ray import ReportCallback\n" + START.replace(
        "=[]", "=[ReportCallback(total_steps=9)]"
    )
    passed(run(given + TRAIN.replace('"total_steps": 5, ', "") + END, FAKE_RAY), "ReportCallback")
    assert hub.messages[-1]["totalSteps"] == 9


def test_nothing_is_added_to_ray_train_when_it_is_turned_off(run: Run):
    passed(run(START + END, FAKE_RAY, DISABLE_ALLRANKS_INTEGRATION="TRUE"))


OWN = "from allranks.report.ray import ReportCallback\nReportCallback()\n"
"""What a program does for `RunConfig`."""


@table(
    ("the class of callbacks", {f"{EXECUTION}/callback.py": "WorkerCallback"}),
    ("the context", {f"{EXECUTION}/context.py": "get_train_context"}),
    ("all classes", {f"{EXECUTION}/callback.py": "WorkerCallback", V2: "UserCallback"}),
)
def test_a_version_of_ray_train_with_other_names_trains_without_reports_and_with_one_line(
    case: tuple[dict[str, str]], run: Run, hub: FakeReportServer
):
    [names] = case
    renamed = FAKE_RAY | {file: FAKE_RAY[file].replace(name, "Other") for file, name in names.items()}
    for program, printed in ((START + TRAIN + END, "[]\n"), (OWN + "print('continues')", "continues\n")):
        done = run(program, renamed, RAY_RAYLET_PID="1")
        assert (done.returncode, done.stdout) == (0, printed), done.stderr
        [line] = done.stderr.splitlines()
        assert line.startswith("allranks: this version of Ray Train is not supported (cannot import name ")
        assert line.endswith("): its ranks report nothing by themselves")
    assert hub.messages == []


@table(
    ("the module moved", {RANKS: ""}, "this version of Ray Train is not supported (it has no ray.train.v2._internal."),
    ("Ray Train V1", {V2: ""}, "ranks of Ray Train V1 report nothing by themselves"),
)
def test_a_program_whose_ranks_cannot_report_says_so_once(case: tuple[dict[str, str], str], run: Run):
    changed, beginning = case
    files = FAKE_RAY | changed
    if RANKS in changed:
        files[RANKS.replace("worker.py", "ranks.py")] = files.pop(RANKS)
    done = run("import ray.train\nprint('continues')", files)
    assert (done.returncode, done.stdout) == (0, "continues\n")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"allranks: {beginning}")
    in_rank = run("import ray.train", files, RAY_RAYLET_PID="1")
    assert in_rank.stderr == "", "Ray started this process: the program has said it"


def test_ranks_of_another_version_of_ray_train_report_nothing_and_train(run: Run):
    context = FAKE_RAY[f"{EXECUTION}/context.py"].replace("report_call_index", "calls")
    done = run(START + "report({})\n" + END, {**FAKE_RAY, f"{EXECUTION}/context.py": context})
    assert (done.returncode, done.stdout) == (0, "['ReportCallback']\n")
    assert "failed: AttributeError" in done.stderr
