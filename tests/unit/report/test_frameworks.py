"""The helpers with real frameworks in one process; `tests/frameworks/train/test_reports.py` tests them with ranks.

Lightning is not installed: a fake trainer calls the hooks of its callback in the documented order.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest

from allranks.pod_bundle import copy
from support.fake_report_server import SOURCE, ok

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def run(frameworks, hub) -> Callable[..., subprocess.CompletedProcess[str]]:
    hub.answers = [ok(interval=0.2)]

    def one(text: str, inside: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("ALLRANKS_", "PYTHON"))}
        return subprocess.run(
            [frameworks / "bin" / "python", "-c", text],
            env=ours
            | {"PYTHONPATH": str(SOURCE), "TF_CPP_MIN_LOG_LEVEL": "3"}
            | (hub.environment if inside else {})
            | environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return one


TORCH = """
import time, torch
from allranks.report import report, waiting
from allranks.report.pytorch import instrument
torch.set_num_threads(1)
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.03)
        return gradient
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
optimizer = torch.optim.Adam(net.parameters())
optimizer.register_step_pre_hook(lambda *_: time.sleep(0.05))  # waiting for other ranks
instrument(net)
for step in range(1, 21):
    if step % 5 == 0:
        net.eval(); time.sleep(0.2); net(torch.ones(1, 4)); net.train()
    with waiting():
        time.sleep(0.04)
    time.sleep(0.02)  # loading data
    for half in range(2):
        loss = net(Slow.apply(torch.ones(1, 4, requires_grad=True))).sum()
        loss.backward()
    optimizer.step(); optimizer.zero_grad()
    report(step=step, loss=loss, grad=loss.detach() * 2)
    assert loss.grad_fn is not None
"""


def test_pytorch_busy_time(hub, run):
    """0.02 s of data and twice 0.03 s of backward pass. The last gradient is ready before `Slow` ends it."""
    done = run(TORCH)
    assert (done.returncode, done.stderr) == (0, "")
    last = hub.messages[-1]
    assert (last["step"], sorted(last["metrics"])) == (20, ["grad", "loss"])
    means = [message["busySeconds"] for message in hub.messages if message["busySeconds"]]
    # A busy machine makes some longer, but none shorter.
    assert 0.05 <= min(means) < 0.12, means
    assert last["stepSeconds"] > 0.15


@pytest.mark.nightly
def test_pytorch_outside_a_job_sets_no_hooks(run):
    done = run(
        "import torch\nfrom allranks.report.pytorch import instrument\nnet = torch.nn.Linear(2, 2)\ninstrument(net)\n"
        "assert not net._forward_hooks and not net.weight._post_accumulate_grad_hooks",
        inside=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


KERAS = """
import numpy as np, tensorflow as tf
from allranks.report.keras import ReportCallback
net = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2)])
net.compile("adam", loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
x, y = np.ones((40, 3), "float32"), np.zeros(40, "int64")
net.fit(x, y, batch_size=10, epochs=2, verbose=0, callbacks=[ReportCallback()])
net.fit(x, y, batch_size=10, epochs=5, initial_epoch=2, verbose=0, callbacks=[ReportCallback(10, checkpoints=True)])
print(tf.keras.callbacks.Callback.__module__)
"""


@pytest.mark.parametrize(
    ("legacy", "whose"),
    [
        pytest.param("0", "keras.", id="Keras 3"),
        pytest.param("1", "tf_keras.", id="legacy Keras", marks=pytest.mark.nightly),
    ],
)
def test_keras_reports_of_two_calls_of_fit(hub, run, legacy, whose):
    done = run(KERAS, TF_USE_LEGACY_KERAS=legacy)
    assert done.returncode == 0, done.stderr
    assert "allranks" not in done.stderr
    assert done.stdout.startswith(whose)
    last = hub.messages[-1]
    assert [last[key] for key in ("step", "totalSteps", "epoch", "done")] == [20, 20, 5, True]
    assert last["checkpoint"]["step"] == 20
    assert {"loss", "accuracy"} <= set(last["metrics"])


CUSTOM_LOOP = """
import time, tensorflow as tf
from allranks.report import report, waiting
from allranks.report.keras import mark_gradients_ready
v = tf.Variable(1.0)
def others():
    time.sleep(0.1)
    return 0.0
@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = v * v
    gradients = mark_gradients_ready([tape.gradient(loss, v), None])
    with tf.control_dependencies([gradients[0]]):
        waited = tf.numpy_function(others, [], tf.float64)
    with tf.control_dependencies([waited]):
        v.assign_sub(0.1 * gradients[0])
    return loss
for number in range(1, 31):
    with waiting():
        time.sleep(0.03)
    time.sleep(0.02)
    loss = step()
    report(step=number, loss=loss)
print(len([op for op in step.get_concrete_function().graph.get_operations() if "PyFunc" in op.type]))
"""


def test_tensorflow_busy_time(hub, run):
    done = run(CUSTOM_LOOP)
    assert (done.returncode, done.stdout.strip()) == (0, "2"), done.stderr
    last = hub.messages[-1]
    assert last["metrics"]["loss"] > 0
    means = [message["busySeconds"] for message in hub.messages if message["busySeconds"]]
    assert 0.02 <= min(means) < 0.09, means  # a busy machine makes some longer, but none shorter
    assert last["stepSeconds"] > 0.1


@pytest.mark.nightly
def test_tensorflow_outside_a_job_adds_nothing_to_the_graph(run):
    done = run(CUSTOM_LOOP, inside=False)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


JAX = """
import time, jax, numpy as np
from functools import partial
from jax.experimental import io_callback
from allranks.report import report, waiting
from allranks.report.jax import mark_gradients_ready, mark_step_done
def others(value):
    time.sleep(0.1)
    return value
@jax.jit
def step(v):
    loss, gradients = jax.value_and_grad(lambda v: (v["w"] ** 2).sum())(v)
    gradients = mark_gradients_ready(gradients)
    summed = io_callback(others, jax.ShapeDtypeStruct((2,), np.float32), gradients["w"])
    gradients = mark_step_done({"w": summed})
    return {"w": v["w"] - 0.1 * gradients["w"]}, loss
v = {"w": np.ones(2, np.float32)}
print(str(step.trace(v).jaxpr).count("io_callback"))
for number in range(1, 31):
    with waiting():
        time.sleep(0.03)
        v["w"].sum().item()
    time.sleep(0.02)
    v, loss = step(v)
    report(step=number, loss=loss)
print(round(float(v["w"][0] / 0.8**30), 3))
"""


def test_jax_busy_time(hub, run):
    """0.02 s of the program; the sum of all processes takes 0.1 s."""
    done = run(JAX)
    assert (done.returncode, done.stdout.split()) == (0, ["3", "1.0"]), done.stderr
    last = hub.messages[-1]
    assert (last["step"], last["waiting"] is not None) == (30, True)
    means = [message["busySeconds"] for message in hub.messages if message["busySeconds"]]
    assert 0.02 <= min(means) < 0.09, means  # a busy machine makes some longer, but none shorter
    assert last["stepSeconds"] > 0.09


@pytest.mark.nightly
def test_jax_outside_a_job_adds_nothing_to_the_program(run):
    done = run(JAX, inside=False)
    assert (done.returncode, done.stdout.split()) == (0, ["1", "1.0"]), done.stderr


LIGHTNING = """
import sys, types, torch
lightning, pytorch = types.ModuleType("lightning"), types.ModuleType("lightning.pytorch")
pytorch.Callback = type("Callback", (), {})
sys.modules.update({"lightning": lightning, "lightning.pytorch": pytorch})
from allranks.report.lightning import ReportCallback
callback = ReportCallback(samples=8)
model = torch.nn.Linear(2, 1)
trainer = types.SimpleNamespace(
    model=model, global_step=0, current_epoch=0, estimated_stepping_batches=6,
    callback_metrics={"val/loss": torch.tensor(0.5)},
    checkpoint_callbacks=[],
)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
callback.on_train_start(trainer, None)
for epoch in range(2):
    trainer.current_epoch = epoch
    for batch in range(3):
        callback.on_train_batch_start(trainer, None, None, batch)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        trainer.global_step += 1
        callback.on_train_batch_end(trainer, None, None, None, batch)
        if batch == 1:
            callback.on_save_checkpoint(trainer, None, {})  # as ModelCheckpoint does, between two hooks
    callback.on_train_epoch_end(trainer, None)
callback.on_train_end(trainer, None)
"""


def test_lightning_hooks_in_their_documented_order(hub, run):
    done = run(LIGHTNING)
    assert (done.returncode, done.stderr) == (0, "")
    last = hub.messages[-1]
    assert [last[key] for key in ("step", "totalSteps", "epoch", "done")] == [6, 6, 2, True]
    assert last["checkpoint"]["step"] == 5
    assert last["metrics"] == {"val/loss": 0.5}
    assert last["busySeconds"] is not None


RAY = """
import os, ray
from allranks import report as library
from types import SimpleNamespace
from ray.train.v2._internal.execution.context import DistributedContext, get_train_context
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker

worker = RayTrainWorker()
place = DistributedContext(world_rank=1, world_size=2, local_rank=0, local_world_size=1, node_rank=1)
run = SimpleNamespace(run_config=SimpleNamespace(name="run"))
unused = dict.fromkeys(["synchronization_actor", "storage_context", "controller_actor"])
worker.init_train_context(train_run_context=run, distributed_context=place, worker_callbacks=[], **unused)
context = get_train_context()
context._sync_checkpoint_dir_name_across_ranks = lambda name: "checkpoint"
for epoch in (1, 2, 3):
    ray.train.report({"epoch": epoch, "loss": 1 / epoch})
    context.get_result_queue().get()
worker.shutdown()
library._client._over.wait(60)
os._exit(0)
"""


def test_the_class_of_the_ranks_of_ray_train_gets_the_callback(hub, run, tmp_path):
    """The class in one process: `tests/frameworks/examples/test_ray_cluster.py` has ranks of a cluster."""
    copy(tmp_path)
    path = f"{tmp_path / 'startup'}{os.pathsep}{tmp_path / 'python'}"
    done = run(RAY, PYTHONPATH=path, RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING="0")
    assert (done.returncode, done.stderr) == (0, "")
    last = hub.messages[-1]
    assert [last[key] for key in ("rank", "step", "epoch", "metrics", "done")] == [1, 3, 3, {"loss": 1 / 3}, True]
    assert last["busySeconds"] is not None
