"""The start-up code that adds callbacks to programs: real processes, with small fakes of the frameworks (named so).

The tests with the real frameworks are in `tests/unit/report/test_frameworks.py` and, with ranks,
`tests/frameworks/examples/test_unchanged_programs.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from allranks.pod_bundle import copy
from support.builders import table
from support.fake_report_server import FakeReportServer
from unit.inpod.conftest import Run

FAKE_TRANSFORMERS = {
    "transformers/__init__.py": "",
    "transformers/trainer_callback.py": "class TrainerCallback: ...\n",
    "transformers/trainer.py": "class Default: ...\nDEFAULT_CALLBACKS = [Default]\n",
}
FAKE_KERAS = {
    "keras/__init__.py": "",
    "keras/src/__init__.py": "",
    "keras/src/callbacks/__init__.py": "from keras.src.callbacks.callback_list import Callback, CallbackList\n",
    "keras/src/callbacks/callback_list.py": """
class Callback:
    def set_model(self, model): self.model = model
class CallbackList:
    def __init__(self, callbacks=None, add_history=False, add_progbar=False, model=None, **params):
        self.callbacks = list(callbacks or ())
        for callback in self.callbacks:
            callback.set_model(model)
            callback.params = params
""",
}


TRAINER = """
from types import SimpleNamespace as Bag
from transformers import trainer
names = [kind.__name__ for kind in trainer.DEFAULT_CALLBACKS]
print(names)
args = Bag(train_batch_size=4, gradient_accumulation_steps=2, save_strategy="steps", should_save=True)
for kind in trainer.DEFAULT_CALLBACKS[1:]:
    callback, state = kind(), Bag(global_step=0, max_steps=3, epoch=0.0)
    callback.on_train_begin(args, state, None)
    for step in range(1, 4):
        state.global_step, state.epoch = step, step / 2
        callback.on_step_end(args, state, None)
        callback.on_log(args, state, None, logs={"loss": 1 / step, "epoch": step / 2, "text": "x"})
    callback.on_save(args, state, None)
    callback.on_epoch_end(args, state, None)
    callback.on_train_end(args, state, None)
"""


def test_a_trainer_of_hugging_face_reports_steps_epochs_checkpoints_and_what_it_logs(run: Run, hub: FakeReportServer):
    done = run(TRAINER, FAKE_TRANSFORMERS)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "['Default', 'AutomaticCallback']\n"
    last = hub.messages[-1]
    assert [last[key] for key in ("rank", "step", "totalSteps", "epoch", "done")] == [0, 3, 3, 2, True]
    assert last["metrics"] == {"loss": 1 / 3}
    assert last["checkpoint"]["step"] == 3


FAKE_MPI4PY = {
    "mpi4py/__init__.py": "",
    "mpi4py/MPI.py": """
class COMM_WORLD:
    Abort = staticmethod(lambda code: print("aborts with", code))

Is_initialized, Is_finalized = lambda: True, lambda: False
""",
}


@table(
    ("an exception", "raise ValueError('sample 4711 is broken')", "step\naborts with 1\n"),
    ("an exception that is handled", "try: 1 / 0\nexcept ZeroDivisionError: pass", "step\n"),
    ("an exit", "raise SystemExit(1)", "step\n"),
    ("success", "", "step\n"),
)
def test_a_rank_of_mpi4py_aborts_all_ranks_only_after_an_exception_that_ends_it(case, run: Run):
    end, output = case
    done = run(f"from mpi4py import MPI\nprint('step')\n{end}\n", FAKE_MPI4PY, OMPI_COMM_WORLD_RANK="1")
    assert done.stdout == output, done.stderr


FAKE_TORCH = {"torch/__init__.py": "", "torch/distributed/__init__.py": ""}
NCCL = """
import threading, torch.distributed
print([thread.name for thread in threading.enumerate() if "allranks" in thread.name])
"""


def test_a_program_of_pytorch_asks_nccl_in_rank_0_of_a_job_with_hang(run: Run):
    done = run(NCCL, FAKE_TORCH, ALLRANKS_HANG_SECONDS="60")
    assert (done.returncode, done.stdout, done.stderr) == (0, "['allranks-nccl']\n", "")


@table(
    ("by the field progress.automatic", {"DISABLE_ALLRANKS_INTEGRATION": "TRUE"}),
    ("a job without hang", {"ALLRANKS_HANG_SECONDS": ""}),
    ("another rank", {"RANK": "1"}),
)
def test_nccl_is_not_asked_by(case, run: Run):
    [environment] = case
    done = run(NCCL, FAKE_TORCH, **({"ALLRANKS_HANG_SECONDS": "60"} | environment))
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


@table(
    ("by a variable", {"DISABLE_ALLRANKS_INTEGRATION": "true"}),
    ("outside a job", {"ALLRANKS_REPORT_URL": ""}),
    ("without a token", {"ALLRANKS_REPORT_TOKEN_FILE": ""}),
    ("a pattern for the output says what is reported", {"ALLRANKS_LOG_PATTERN": r"step (?P<step>\d+)"}),
)
def test_nothing_is_added_when_it_is_turned_off(case, run: Run):
    [environment] = case
    done = run(TRAINER, FAKE_TRANSFORMERS, **environment)
    assert (done.returncode, done.stdout) == (0, "['Default']\n"), done.stderr


FIT = """
from keras.src.callbacks import CallbackList
from types import SimpleNamespace as Bag
model = Bag(optimizer=Bag(iterations=0))
lists = [CallbackList({mine}, add_history=True, model=model, steps=2, epochs=2), CallbackList()]
print([len(each.callbacks) for each in lists])
mine, = lists[0].callbacks[-1:]
mine.on_train_begin()
for epoch in range(2):
    mine.on_epoch_begin(epoch)
    for batch in (0, 1, 0):  # the last one is late
        mine.on_train_batch_end(batch, {{"loss": 0.5}})
    mine.on_epoch_end(epoch, {{"loss": 0.5}})
"""


@pytest.mark.parametrize("mine", ["None", "[]"])
def test_fit_of_keras_reports_steps_and_epochs_and_other_lists_of_callbacks_are_not_changed(
    run: Run, hub: FakeReportServer, mine: str
):
    done = run(FIT.format(mine=mine), FAKE_KERAS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 0]\n", "")
    last = hub.messages[-1]
    assert [last[key] for key in ("step", "totalSteps", "epoch", "metrics")] == [4, 4, 2, {"loss": 0.5}]


BOTH = """
from allranks.report import report, report_automatically
report_automatically(step=5, total_steps=10, samples=4, loss=0.5)
report(reward=2)
report_automatically(step=6)
report(step=1, total_steps=3)
report_automatically(step=7, total_steps=10, loss=9.0)
"""


def test_once_the_program_itself_reports_a_step_automatic_reports_end(run: Run, hub: FakeReportServer):
    done = run(BOTH)
    assert (done.returncode, done.stderr) == (0, "")
    last = hub.messages[-1]
    assert (last["step"], last["totalSteps"], last["metrics"]) == (1, 3, {"loss": 0.5, "reward": 2.0})


@table(
    ("another list of callbacks", {"transformers/trainer.py": "DEFAULT_CALLBACKS = None\n"}, "AttributeError"),
    ("no list of callbacks", {"transformers/trainer.py": ""}, "AttributeError"),
    ("no base class", {"transformers/trainer_callback.py": ""}, "ImportError"),
)
def test_a_framework_of_another_version_works_without_reports_and_with_one_line(case, run: Run):
    modules, error = case
    done = run("import transformers.trainer\nprint('trained')", {**FAKE_TRANSFORMERS, **modules})
    assert (done.returncode, done.stdout) == (0, "trained\n")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"allranks: transformers.trainer is used without allranks: {error}: ")


def test_a_hook_that_fails_in_a_training_is_one_line(run: Run):
    done = run(
        "from transformers import trainer\ncallback = trainer.DEFAULT_CALLBACKS[1]()\n"
        "for _ in range(3): callback.on_step_end(None, None, None)\nprint('trained')",
        FAKE_TRANSFORMERS,
    )
    assert (done.returncode, done.stdout) == (0, "trained\n")
    [line] = done.stderr.splitlines()
    assert line.startswith("allranks: AutomaticCallback.on_step_end failed: AttributeError: ")


def test_an_error_of_the_framework_itself_is_that_of_the_program(run: Run):
    modules = {**FAKE_TRANSFORMERS, "transformers/trainer.py": "raise RuntimeError('no GPU')\n"}
    done = run("import transformers.trainer", modules)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "RuntimeError: no GPU"


def test_looking_for_a_framework_does_not_import_it_and_its_loader_stays(run: Run):
    done = run(
        "import importlib.util, inspect, sys\n"
        "print(importlib.util.find_spec('transformers.trainer').name, 'transformers.trainer' in sys.modules)\n"
        "from transformers import trainer\n"
        "print(len(trainer.DEFAULT_CALLBACKS), type(trainer.__loader__).__name__, vars(trainer.__loader__).keys())\n"
        "print('DEFAULT_CALLBACKS' in inspect.getsource(trainer))",
        FAKE_TRANSFORMERS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("transformers.trainer False\n2 SourceFileLoader dict_keys(['name', 'path'])\nTrue\n")


def test_the_environments_own_sitecustomize_runs_once_also_below_two_copies_of_ours(
    run: Run, helpers: Path, tmp_path: Path
):
    copy(tmp_path / "again")
    path = os.pathsep.join([str(tmp_path / "again" / "startup"), str(tmp_path / "site")])
    done = run("print('trained')", {"sitecustomize.py": "print('site')\n"}, PYTHONPATH=path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "site\ntrained\n", "")


def test_lightning_finds_the_callback_by_its_entry_points(run: Run):
    fake = {
        "torch/__init__.py": "class nn:\n    Module = object\nTensor = optim = object\n",
        "pytorch_lightning/__init__.py": "class Callback: ...\n",
    }
    load = """
import pytorch_lightning
from importlib.metadata import entry_points
for package in ("lightning.pytorch", "pytorch_lightning"):
    for entry in entry_points(group=f"{package}.callbacks_factory"):
        print(package, [type(each).__name__ for each in entry.load()()])
"""
    done = run(load, fake)
    both = "lightning.pytorch ['AutomaticCallback']\npytorch_lightning ['AutomaticCallback']\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, both, "")
    off = run(load, fake, DISABLE_ALLRANKS_INTEGRATION="TRUE")
    assert off.stdout == "lightning.pytorch []\npytorch_lightning []\n"
    (broken,) = [run(load, {**fake, "pytorch_lightning/__init__.py": ""})]
    assert (broken.returncode, broken.stdout) == (0, "lightning.pytorch []\npytorch_lightning []\n")
    assert "allranks: Lightning is used without reports: ImportError" in broken.stderr
