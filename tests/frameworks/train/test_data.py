"""The data: the held-out samples are fixed, and CIFAR-10 is read in both of its formats."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from .launch import ROOT

try:
    import numpy as np
except ImportError:  # the last test of this file runs the others with the numpy of the frameworks
    np = None

needs_numpy = pytest.mark.skipif(np is None, reason="numpy is not in this environment")


@needs_numpy
def test_a_quarter_of_each_species_is_held_out_and_no_penguin_appears_twice() -> None:
    from common.penguins import load_penguins

    penguins = load_penguins()
    assert penguins.train_x.shape == (256, 5)
    assert (penguins.validation_x.shape, penguins.test_x.shape) == ((43, 5), (43, 5))
    assert penguins.train_x.dtype == penguins.test_x.dtype == np.float32
    assert np.bincount(penguins.train_y).tolist() == [113, 51, 92]
    assert np.bincount(penguins.validation_y).tolist() == [19, 9, 15]
    assert np.bincount(penguins.test_y).tolist() == [19, 8, 16]
    rows = np.concatenate([penguins.train_x, penguins.validation_x, penguins.test_x])
    assert len(np.unique(rows, axis=0)) == 342
    assert np.allclose(penguins.train_x.mean(axis=0), 0, atol=1e-5)
    assert np.allclose(penguins.train_x.std(axis=0), 1, atol=1e-5)


@needs_numpy
def test_the_new_penguin_is_not_in_the_data() -> None:
    from common.penguins import NEW_PENGUIN, features, load_penguins

    penguins = load_penguins()
    new = (np.array(features(NEW_PENGUIN)) - penguins.mean) / penguins.deviation
    rows = np.concatenate([penguins.train_x, penguins.validation_x, penguins.test_x])
    assert np.abs(rows - new).max(axis=1).min() > 0.01


@needs_numpy
def test_a_split_is_the_same_every_time_and_another_with_another_seed() -> None:
    from common.splits import stratified_split

    labels = np.repeat([0, 1, 2], [100, 10, 1])
    kept, held_out = stratified_split(labels, 0.2)
    assert sorted([*kept, *held_out]) == list(range(111))
    assert np.bincount(labels[held_out]).tolist() == [20, 2, 1]
    assert all(map(np.array_equal, stratified_split(labels, 0.2), (kept, held_out)))
    assert not np.array_equal(stratified_split(labels, 0.2, seed=1)[1], held_out)


def python_2_pickle(pixels: list[bytes], labels: list[int]) -> bytes:
    """A batch of the Python version with the opcodes of Python 2 and its numpy (protocol 2)."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value  # SHORT_BINSTRING: Python 3 does not write it

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    raw = b"".join(pixels)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R"
        b"(" + number(1) + number(len(pixels)) + number(3072) + b"\x86"
        b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
        b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
        b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    )
    listed = b"](" + b"".join(map(number, labels)) + b"e"
    items = text(b"batch_label") + text(b"testing") + text(b"labels") + listed + text(b"data") + array
    return b"\x80\x02}(" + items + b"u."


def image(seed: int) -> bytes:
    """3072 bytes: a red, a green and a blue plane."""
    return bytes((seed + plane * 50 + position) % 256 for plane in range(3) for position in range(1024))


def binary(images: list[bytes], labels: list[int]) -> bytes:
    return b"".join(bytes([label]) + each for each, label in zip(images, labels, strict=True))


def write_cifar10(folder: Path, kind: str) -> None:
    folder.mkdir()
    suffix, encode = {"python": ("", python_2_pickle), "binary": (".bin", binary)}[kind]
    for number in range(1, 6):
        labels = [(number + position) % 10 for position in range(20)]
        (folder / f"data_batch_{number}{suffix}").write_bytes(encode([image(number)] * 20, labels))
    (folder / f"test_batch{suffix}").write_bytes(encode([image(9)] * 10, list(range(10))))
    (folder / "batches.meta").write_bytes(b"not a batch")
    (folder / "readme.html").write_text("nor this")


@needs_numpy
@pytest.mark.parametrize("kind", ["python", "binary"])
@pytest.mark.parametrize("named", ["the folder itself", "the folder above it"])
def test_cifar10_is_read_from_its_own_files(tmp_path: Path, kind: str, named: str) -> None:
    from common.images import load_images

    folder = tmp_path / {"python": "cifar-10-batches-py", "binary": "cifar-10-batches-bin"}[kind]
    write_cifar10(folder, kind)
    images = load_images(folder if named == "the folder itself" else tmp_path)
    assert images.train_x.shape == (90, 32, 32, 3)
    assert images.validation_x.shape == (10, 32, 32, 3)
    assert images.test_y.tolist() == list(range(10))
    assert (images.peak, images.classes, images.test_x.dtype) == (255, 10, np.uint8)
    # Row 1, column 2 of the planes: byte 34 of each.
    assert images.test_x[0, 1, 2].tolist() == [9 + 34, 9 + 50 + 34, 9 + 100 + 34]
    assert sorted(np.bincount(np.concatenate([images.train_y, images.validation_y]))) == [10] * 10


@needs_numpy
def test_a_batch_pickled_by_a_current_numpy_is_read_too(tmp_path: Path) -> None:
    from common.images import read_cifar10_batch

    path = tmp_path / "test_batch"
    data = np.frombuffer(image(1) * 2, np.uint8).reshape(2, 3072)
    path.write_bytes(pickle.dumps({b"labels": [3, 4], b"data": data}, protocol=2))
    pixels, labels = read_cifar10_batch(path)
    assert pixels.shape == (2, 32, 32, 3)
    assert labels.tolist() == [3, 4]


class Malicious:
    """A malicious pickle."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch hacked",)


@needs_numpy
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test_batch", pickle.dumps(Malicious(), 2), r"wants to call posix\.system"),
        ("test_batch", b"", "Ran out of input"),
        ("test_batch", pickle.dumps({b"labels": [1]}, 2), "data"),
        ("test_batch", pickle.dumps([1, 2, 3], 2), "indices"),
        ("test_batch.bin", b"1234", "reshape"),
        ("test_batch.bin", b"", "0 images"),
    ],
    ids=["malicious", "empty", "no pixels", "a list", "not whole images", "empty binary"],
)
def test_an_invalid_batch_file_ends_the_program_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, message: str
) -> None:
    from common.images import read_cifar10_batch

    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SystemExit, match=rf"{name} is not a batch of CIFAR-10: .*{message}"):
        read_cifar10_batch(tmp_path / name)
    assert not (tmp_path / "hacked").exists()


@needs_numpy
def test_a_folder_without_cifar10_says_what_was_expected(tmp_path: Path) -> None:
    from common.images import load_images

    with pytest.raises(SystemExit, match=r"no CIFAR-10 here\. Expected data_batch_1"):
        load_images(tmp_path)


@needs_numpy
def test_a_target_is_the_byte_after_its_input_and_batches_depend_only_on_seed_and_step(tmp_path: Path) -> None:
    from common.text import batch_starts, load_text, windows

    (tmp_path / "text").write_bytes(bytes(range(200)))
    train, test = load_text([tmp_path / "text"])
    assert (train.tolist(), test.tolist()) == (list(range(180)), list(range(180, 200)))
    starts = batch_starts(train, 50, 16, seed=3, step=7)
    assert starts.tolist() == batch_starts(train, 50, 16, seed=3, step=7).tolist()
    assert starts.tolist() != batch_starts(train, 50, 16, seed=3, step=8).tolist()
    x, y = windows(train, starts, 16)
    assert x.shape == y.shape == (50, 16)
    assert (x[:, 1:] == y[:, :-1]).all()
    assert (y == x + 1).all()
    assert y.max() < 180  # nothing of the held-out part


@needs_numpy
def test_the_language_model_reads_pythons_reference_by_default_and_names_a_missing_file(tmp_path: Path) -> None:
    from common.text import load_text

    train, test = load_text([])
    assert len(train) > 300_000
    assert b"assert" in train.tobytes()
    assert len(test) == len(train) // 9
    with pytest.raises(SystemExit, match=r"--text \S+/none: No such file or directory"):
        load_text([tmp_path / "none"])


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(np is not None, reason="the tests above have run")
def test_the_tests_above_pass_with_the_numpy_of_the_frameworks(frameworks: Path) -> None:
    packages = next((frameworks / "lib").glob("python3*/site-packages"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", __file__],
        env=os.environ | {"PYTHONPATH": str(packages)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("program", "kind"),
    [
        pytest.param("digits_pytorch.py", "python", id="pytorch"),
        pytest.param("digits_tensorflow.py", "binary", id="tf"),
    ],
)
def test_a_program_trains_on_cifar10(launcher, tmp_path: Path, program: str, kind: str) -> None:
    write_cifar10(tmp_path / "cifar", kind)
    run = launcher.start(["python", ROOT / "train" / program, "--data", tmp_path / "cifar", "--epochs", "1"])
    assert run.exit_code() == 0, run.text
    assert "epoch 1/1 loss" in run.text
    assert "rank 0 of 1: test accuracy" in run.text
