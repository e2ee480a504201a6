"""PenguinNet on the Palmer penguins, model parallel in TensorFlow: the devices of one task share the weights. `layers`
places layers on devices with `tf.device`, `tensors` splits matrices over the devices with DTensor."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from tensorflow.experimental import dtensor

from common.journal import Journal, Progress
from common.options import make_parser, parse_options
from common.penguins import FEATURES, SPECIES, load_penguins
from common.strategies import compute_devices
from common.tensorflow import SUFFIX, pack, set_threads, tf, unpack
from common.termination import Termination

EXAMPLE = """python penguins_tensorflow_model.py --parallel layers --checkpoint-dir /tmp/penguins
python penguins_tensorflow_model.py --parallel tensors --devices GPU:0 GPU:1"""
SHAPES = ((FEATURES, 10), (10,), (10, 10), (10,), (10, len(SPECIES)), (len(SPECIES),))


def main() -> None:
    parser = make_parser(__doc__, EXAMPLE, epochs=20, batch_size=16, lr=0.2)
    parser.add_argument("--parallel", choices=["layers", "tensors"], default="layers", help="default: %(default)s")
    parser.add_argument("--devices", nargs="+", metavar="DEVICE", help="two (default: GPUs, or a CPU that is split)")
    options = parse_options(parser)
    set_threads(options.threads)
    kind = "GPU" if len(tf.config.list_physical_devices("GPU")) > 1 else "CPU"
    devices = compute_devices(2, options.devices or [f"{kind}:0", f"{kind}:1"])
    if len(devices) != 2:
        parser.error(f"--devices: two are needed, not {len(devices)}")
    journal = Journal(options, 0, 1, SUFFIX, f"{' and '.join(devices)}, parallel {options.parallel}")
    termination = Termination(journal.save_alone)

    model = (Layers if options.parallel == "layers" else Tensors)(devices, initial_weights(options.seed))
    content, progress = journal.newest_checkpoint(), Progress()
    if content:
        progress, _, weights = unpack(content, [])
        model.load(weights)
    journal.begin(progress)

    def checkpoint() -> bytes:
        return pack([], progress, arrays=model.weights())

    penguins = load_penguins()
    while progress.epoch < options.epochs:
        started = time.monotonic()
        batches = batches_of_rows(len(penguins.train_y), options.batch_size, options.seed, progress.epoch)
        journal.begin_epoch(progress, len(batches))
        losses = []
        for batch in batches:
            if termination.requested:
                termination.agreed()
                journal.stop(progress, checkpoint)
                termination.exit()
            journal.begin_step(progress)
            loss = model.train_step(*model.place(penguins.train_x[batch], penguins.train_y[batch]), options.lr)
            losses.append(float(loss))
            progress.step += 1
            journal.end_step(progress, len(batch), losses[-1])
            journal.save_on_request(progress, checkpoint)
        validation_loss, accuracy = model.evaluate(penguins.validation_x, penguins.validation_y)
        progress.epoch += 1
        progress.losses.append(float(np.mean(losses)))
        progress.validation_losses.append(validation_loss)
        journal.end_epoch(progress, accuracy, time.monotonic() - started, batches.size, checkpoint)
        termination.pause(options.pause)

    _, accuracy = model.evaluate(penguins.test_x, penguins.test_y)
    journal.finish(progress, accuracy, f"Palmer penguins, TensorFlow, parallel {options.parallel}")


def initial_weights(seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    weights = [random.normal(0, shape[0] ** -0.5, shape) if len(shape) == 2 else np.zeros(shape) for shape in SHAPES]
    return [weight.astype(np.float32) for weight in weights]


def batches_of_rows(count: int, batch_size: int, seed: int, epoch: int) -> np.ndarray:
    """The indices of all rows in whole batches. The order depends on seed and epoch only."""
    order = np.random.default_rng((seed, epoch)).permutation(count)
    return order[: count // batch_size * batch_size].reshape(-1, batch_size)


class Layers:
    """The first layer on one device, the others on the other one. TensorFlow copies the output of the first layer to
    the other device, and its gradient back."""

    def __init__(self, devices: Sequence[str], weights: Sequence[np.ndarray]) -> None:
        self.first, self.second = devices
        with tf.device(self.first):
            self.variables = [tf.Variable(weight) for weight in weights[:2]]
        with tf.device(self.second):
            self.variables += [tf.Variable(weight) for weight in weights[2:]]

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        w1, b1, w2, b2, w3, b3 = self.variables
        with tf.device(self.first):
            hidden = tf.nn.relu(x @ w1 + b1)
        with tf.device(self.second):
            return tf.nn.relu(hidden @ w2 + b2) @ w3 + b3

    def place(self, *arrays: np.ndarray) -> list[tf.Tensor]:
        """The arrays as tensors that the network takes."""
        return [tf.constant(array) for array in arrays]

    @tf.function(reduce_retracing=True)
    def train_step(self, x: tf.Tensor, y: tf.Tensor, lr: float) -> tf.Tensor:
        """One step of gradient descent. Returns the mean loss of the batch."""
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=self.logits(x))
            loss = tf.reduce_mean(losses)
        for variable, gradient in zip(self.variables, tape.gradient(loss, self.variables), strict=True):
            variable.assign_sub(lr * gradient)
        return loss

    def evaluate(self, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
        """Mean loss and accuracy on held-out rows."""
        loss, correct = self._evaluation(*self.place(x, y))
        return float(loss), float(correct)

    @tf.function(reduce_retracing=True)
    def _evaluation(self, x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = self.logits(x)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        return tf.reduce_mean(losses), tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, axis=1), y), tf.float32))

    def weights(self) -> list[np.ndarray]:
        """The whole matrices and biases, for the checkpoint."""
        return [variable.numpy() for variable in self.variables]

    def load(self, weights: Sequence[np.ndarray]) -> None:
        """Set them."""
        for variable, weight in zip(self.variables, weights, strict=True):
            variable.assign(weight)


class Tensors(Layers):
    """Each device has one half of the columns of the first matrix and of the rows of the second one. It computes with
    its halves, and DTensor adds up what the devices have after the second matrix."""

    LAYOUTS = (
        (dtensor.UNSHARDED, "model"),
        ("model",),
        ("model", dtensor.UNSHARDED),
        (dtensor.UNSHARDED,),
        (dtensor.UNSHARDED, dtensor.UNSHARDED),
        (dtensor.UNSHARDED,),
    )

    def __init__(self, devices: Sequence[str], weights: Sequence[np.ndarray]) -> None:
        self.mesh = dtensor.create_mesh([("model", len(devices))], devices=devices)
        self.variables = [dtensor.DVariable(value) for value in self._split(weights)]

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        w1, b1, w2, b2, w3, b3 = self.variables
        return tf.nn.relu(tf.nn.relu(x @ w1 + b1) @ w2 + b2) @ w3 + b3

    def place(self, *arrays: np.ndarray) -> list[tf.Tensor]:
        """The arrays on both devices."""
        return [
            dtensor.copy_to_mesh(tf.constant(array), dtensor.Layout.replicated(self.mesh, array.ndim))
            for array in arrays
        ]

    def weights(self) -> list[np.ndarray]:
        whole = (dtensor.Layout.replicated(self.mesh, len(variable.shape)) for variable in self.variables)
        pairs = zip(self.variables, whole, strict=True)
        return [dtensor.relayout(variable.read_value(), layout).numpy() for variable, layout in pairs]

    def load(self, weights: Sequence[np.ndarray]) -> None:
        for variable, value in zip(self.variables, self._split(weights), strict=True):
            variable.assign(value)

    def _split(self, weights: Sequence[np.ndarray]) -> list[tf.Tensor]:
        layouts = [dtensor.Layout(names, self.mesh) for names in self.LAYOUTS]
        return [dtensor.relayout(value, layout) for value, layout in zip(self.place(*weights), layouts, strict=True)]


if __name__ == "__main__":
    main()
