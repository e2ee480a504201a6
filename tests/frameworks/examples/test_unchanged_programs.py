"""Programs of Hugging Face, Lightning and Keras without a line about allranks, with real ranks under `allranks run`:
progress is in the status of the job."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from support.fake_nccl_ras import all_reduces, fake_ras

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]

TIMEOUT = 600
PATH = os.environ.get("PYTHONPATH", "")
"""The import path without what allranks adds."""

WITHOUT_SHUTDOWN = """
import atexit, os, sys

def leave():
    if complete:
        sys.stdout.flush()
        os._exit(0)

complete = []
atexit.register(leave)
"""
"""Before a program of PyTorch, which COMPLETE ends. After all other exit handlers the process ends without the
shutdown of the interpreter. During that, a thread of gloo sometimes aborts the process (`terminate called without an
active exception`), also after `destroy_process_group`."""
COMPLETE = "complete.append(True)\n"

TRANSFORMERS = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.arange(index, index + 16) % 64
        return {"input_ids": tokens, "labels": tokens}

small = {"vocab_size": 64, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(**small, bos_token_id=0, eos_token_id=0))
arguments = TrainingArguments(
    output_dir="out", max_steps=24, per_device_train_batch_size=4, use_cpu=True, logging_steps=6, save_steps=12,
    disable_tqdm=True, dataloader_pin_memory=False,
)
Trainer(model=model, args=arguments, train_dataset=Data()).train()
"""

TRL = """
from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from tokenizers import Tokenizer, models, pre_tokenizers
from trl import SFTConfig, SFTTrainer

words = {word: number for number, word in enumerate(["<pad>", "<end>", "a", "b", "c", "d"])}
plain = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<end>")
small = {"vocab_size": 6, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(**small, bos_token_id=1, eos_token_id=1, pad_token_id=0))
arguments = SFTConfig(
    output_dir="out", max_steps=24, per_device_train_batch_size=4, use_cpu=True, logging_steps=6, save_strategy="no",
    disable_tqdm=True, dataloader_pin_memory=False, max_length=16, bf16=False,
)
data = Dataset.from_dict({"text": ["a b c d a b c d", "d c b a d c b a"] * 32})
SFTTrainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer).train()
"""

LIGHTNING = """
import os
import torch
from lightning import LightningModule, Trainer

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

data = torch.utils.data.DataLoader(torch.ones(96, 4), batch_size=4)
trainer = Trainer(
    accelerator="cpu", devices=1, num_nodes=2, max_epochs=2, logger=False, enable_progress_bar=False,
    enable_model_summary=False, log_every_n_steps=1, default_root_dir="out",
)
trainer.fit(Model(), data)
"""

KERAS = """
import numpy, tensorflow as tf
from tensorflow import keras

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    net = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    net.compile("sgd", loss="mse")
data = tf.data.Dataset.from_tensor_slices((numpy.ones((96, 4), "float32"), numpy.zeros((96, 1), "float32"))).batch(8)
net.fit(data, epochs=2, verbose=0)
"""

KERAS_3 = """
import tensorflow as tf
import keras

assert keras.__version__.startswith("3.")
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    net = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD()
    optimizer.build(net.trainable_variables)

@tf.function
def step(x):
    def of_replica(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(net(x) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
    strategy.run(of_replica, args=(x,))

for _ in range(3):
    step(tf.ones((8, 4)))
print("Keras 3 on", strategy.num_replicas_in_sync, "replicas", flush=True)
"""

RAY_KERAS = """
def train(config):
    import numpy, tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        net = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(2)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        net.compile("sgd", loss, metrics=["accuracy"])
    data = numpy.ones((96, 4), "float32"), numpy.ones(96, "int64")
    net.fit(tf.data.Dataset.from_tensor_slices(data).repeat().batch(8), epochs=2, steps_per_epoch=6, verbose=0)

from ray.train import ScalingConfig
from ray.train.tensorflow import TensorflowTrainer

TensorflowTrainer(train, scaling_config=ScalingConfig(num_workers=2)).fit()
"""
QUIET = [{"name": "TF_CPP_MIN_LOG_LEVEL", "value": "2"}]


def manifest(folder: Path, program: str, framework: str = "pytorch", **spec: Any) -> Path:
    text = WITHOUT_SHUTDOWN + program + COMPLETE if framework == "pytorch" else program
    (folder / "train.py").write_text(text)
    start = ["torchrun"] if framework == "pytorch" else ["python"]
    job = {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "DistributedTraining",
        "metadata": {"name": "unchanged"},
        "spec": {
            "framework": framework,
            "image": "none",
            "command": [*start, str(folder / "train.py")],
            "workingDir": str(folder),
            "roles": {"worker": {"replicas": 2}},
            "restart": {"maxRestarts": 0},
            **spec,
        },
    }
    (folder / "job.yaml").write_text(json.dumps(job))
    return folder / "job.yaml"


def finished(run: Any) -> dict[str, Any]:
    """The progress of a job that succeeded."""
    run.finish(TIMEOUT)
    assert run.code == 0, run.output
    progress = run.status["progress"]
    assert isinstance(progress, dict), run.status
    assert "allranks:" not in run.output, run.output
    return progress


@pytest.mark.parametrize("program", [pytest.param(TRANSFORMERS, id="Trainer"), pytest.param(TRL, id="TRL")])
def test_a_trainer_of_hugging_face_shows_all_ranks(run_job, libraries, tmp_path: Path, program: str) -> None:
    progress = finished(run_job(manifest(tmp_path, program)))
    assert (progress["step"], progress["totalSteps"], progress["summary"]) == (24, 24, "24/24 100%")
    assert 0 < progress["metrics"]["loss"] < 10
    assert [(rank["rank"], rank["step"]) for rank in progress["ranks"]] == [(0, 24), (1, 24)]
    assert progress["firstStepTime"]
    if program == TRANSFORMERS:
        assert progress["checkpointStep"] == 24


def test_transformers_alone_reports_to_the_address_of_kubeflow_trainer(run_job, libraries, tmp_path: Path) -> None:
    """Nothing of allranks is on the import path: as in an image whose entrypoint starts the program."""
    check = "import importlib.util\nassert importlib.util.find_spec('allranks') is None\n"
    job = manifest(tmp_path, check + TRANSFORMERS, env=[{"name": "PYTHONPATH", "value": PATH}])
    progress = finished(run_job(job))
    assert (progress["step"], progress["totalSteps"], progress["summary"]) == (24, 24, "24/24 100%")
    assert 0 < progress["metrics"]["loss"] < 10
    assert [(rank["rank"], rank["step"]) for rank in progress["ranks"]] == [(0, 24)]


def test_progress_automatic_false_turns_both_off(run_job, libraries, tmp_path: Path) -> None:
    run = run_job(manifest(tmp_path, TRANSFORMERS, progress={"automatic": False})).finish(TIMEOUT)
    assert run.code == 0, run.output
    assert run.status.get("progress") is None


HANGS = TRANSFORMERS.replace(
    "    def __getitem__(self, index):\n",
    """    count = 0

    def __getitem__(self, index):
        import os, time
        self.count += 1
        time.sleep(10_000 if self.count == 40 and os.environ["RANK"] == "1" else 0.3)  # statuses have a gap of 5 s
""",
)


def test_a_trainer_that_hangs_is_found_with_the_stacks_of_all_ranks(run_job, libraries, tmp_path: Path) -> None:
    job = manifest(tmp_path, HANGS, hang={"timeoutSeconds": 20, "action": "Fail"})
    run = run_job(job).finish(TIMEOUT)
    assert run.code == 1, run.output
    assert run.status["lastFailure"]["reason"] == "Hang"
    assert "no rank has completed a step since" in run.status["lastFailure"]["message"]
    logs = run.logs()
    assert "in __getitem__" in logs["unchanged-worker-1-0"]
    for rank in range(2):
        assert "stacks, asked for because the job makes no progress" in logs[f"unchanged-worker-{rank}-0"]


def test_transformers_alone_is_watched_for_hangs(run_job, libraries, tmp_path: Path) -> None:
    # The helper starts the programs of jobs with `hang`. `env` removes what it has added to the import path.
    command = ["env", f"PYTHONPATH={PATH}", "torchrun", str(tmp_path / "train.py")]
    job = manifest(tmp_path, HANGS, hang={"timeoutSeconds": 20, "action": "Fail"}, command=command)
    run = run_job(job).finish(TIMEOUT)
    assert run.code == 1, run.output
    assert run.status["lastFailure"]["reason"] == "Hang"
    assert "the trainer of rank 0 (worker-0" in run.status["lastFailure"]["message"]


STUCK = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
print("rank", dist.get_rank(), "has PID", os.getpid(), flush=True)
time.sleep(10_000)
"""


def test_a_program_that_reports_nothing_tells_by_nccl_who_is_behind(run_job, tmp_path: Path) -> None:
    """NCCL needs GPUs, so what answers for it is a fake. The ranks are real, and say nothing of allranks."""
    with fake_ras({}) as ras:
        env = [{"name": "NCCL_RAS_ADDR", "value": ras.address}]
        run = run_job(manifest(tmp_path, STUCK, env=env, hang={"timeoutSeconds": 20}))
        ras.content = all_reduces(8, 7, pid=int(run.wait_for(r"rank 0 has PID (\d+)")[1]))
        run.wait_for(
            r"no rank has launched a collective since \S+ UTC; "
            r"NCCL: rank 1 of 2 has not launched AllReduce 8, which others have"
        )
        run.process.send_signal(signal.SIGINT)
        run.finish(TIMEOUT)
    assert run.status["restarts"]["counted"] == 0


def test_fit_of_lightning_shows_all_ranks(run_job, libraries, tmp_path: Path) -> None:
    progress = finished(run_job(manifest(tmp_path, LIGHTNING)))
    assert (progress["step"], progress["totalSteps"], progress["epoch"]) == (24, 24, 2)
    assert progress["metrics"]["loss"] >= 0
    assert [(rank["rank"], rank["step"]) for rank in progress["ranks"]] == [(0, 24), (1, 24)]
    assert progress["checkpointStep"] == 24


FABRIC = """
from lightning.fabric import Fabric

fabric = Fabric(accelerator="cpu", devices=1, num_nodes=NODES)
fabric.launch()
print("group of", fabric.world_size, flush=True)
"""


@pytest.mark.parametrize("program", [LIGHTNING, FABRIC.replace("NODES", "2")], ids=["Trainer", "Fabric"])
def test_ranks_of_lightning_without_num_nodes_are_independent_copies(run_job, libraries, tmp_path: Path, program: str):
    run = run_job(manifest(tmp_path, program.replace("num_nodes=2", "num_nodes=1"))).finish(TIMEOUT)
    assert run.code == 0, run.output
    copies = "worker-0 and worker-1 have a rank 0 each: they are 2 independent copies that do not train together"
    assert run.status["progress"]["copies"] == copies
    assert copies in run.output


def test_ranks_of_fabric_that_form_a_group_are_no_copies(run_job, libraries, tmp_path: Path) -> None:
    run = run_job(manifest(tmp_path, FABRIC.replace("NODES", "2"))).finish(TIMEOUT)
    assert run.code == 0, run.output
    assert "group of 2" in run.output
    assert "copies" not in run.status.get("progress", {})


def test_fit_of_keras_shows_all_ranks(run_job, tmp_path: Path) -> None:
    progress = finished(run_job(manifest(tmp_path, KERAS, "tensorflow", env=QUIET)))
    assert (progress["step"], progress["totalSteps"], progress["epoch"]) == (24, 24, 2)
    assert progress["metrics"]["loss"] >= 0
    assert [(rank["rank"], rank["step"]) for rank in progress["ranks"]] == [(0, 24), (1, 24)]


def test_a_program_that_imports_keras_3_trains_in_a_job_of_several_tasks(run_job, tmp_path: Path) -> None:
    run = run_job(manifest(tmp_path, KERAS_3, "tensorflow", env=QUIET)).finish(TIMEOUT)
    assert run.code == 0, run.output
    assert sorted(re.findall(r"Keras 3 on (\d) replicas", run.output)) == ["2", "2"]


def test_a_job_that_chooses_keras_3_gets_it_as_tf_keras(run_job, tmp_path: Path) -> None:
    env = [*QUIET, {"name": "TF_USE_LEGACY_KERAS", "value": "0"}]
    program = KERAS_3.replace("import keras\n", "keras = tf.keras\n")
    run = run_job(manifest(tmp_path, program, "tensorflow", env=env)).finish(TIMEOUT)
    assert run.code == 0, run.output


def test_fit_in_a_trainer_of_ray_needs_no_variable(run_job, tmp_path: Path) -> None:
    roles = {"head": {"replicas": 1}, "worker": {"replicas": 2}}
    run = run_job(manifest(tmp_path, RAY_KERAS, "ray", env=QUIET, roles=roles))
    metrics = finished(run)["metrics"]
    assert 0 <= metrics["accuracy"] <= 1
