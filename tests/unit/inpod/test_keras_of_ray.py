"""The Keras of Ray's TensorflowTrainer, with packages that only show what is set when they are imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STARTUP = Path(__file__).resolve().parents[3] / "operator/allranks/inpod/startup"
RAY = {"RAY_ADDRESS": "localhost:6379"}
KERAS = {"TF_USE_LEGACY_KERAS": "0"}


def keras_of_trainer(folder: Path, **env: str) -> str:
    """What TF_USE_LEGACY_KERAS is when `ray.train.tensorflow` imports TensorFlow."""
    show = "import os; print(os.environ.get('TF_USE_LEGACY_KERAS'))"
    for name, text in {"ray": "", "ray/train": "", "ray/train/tensorflow": show}.items():
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(text)
    command = [sys.executable, "-c", "import ray.train; import ray.train.tensorflow"]
    paths = f"{STARTUP}:{folder}"
    done = subprocess.run(command, env={"PYTHONPATH": paths, **env}, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize("env", [RAY, {"RAY_RAYLET_PID": "7"}], ids=["driver", "rank"])
def test_it_is_legacy_keras_before_ray_imports_tensorflow(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "tf_keras.py").touch()
    assert keras_of_trainer(tmp_path, **env) == "1"


def test_a_job_that_chooses_its_keras_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "tf_keras.py").touch()
    assert keras_of_trainer(tmp_path, **RAY, **KERAS) == "0"


def test_nothing_is_set_where_legacy_keras_is_not_installed(tmp_path: Path) -> None:
    assert keras_of_trainer(tmp_path, **RAY) == "None"


def test_nothing_is_set_outside_ray(tmp_path: Path) -> None:
    (tmp_path / "tf_keras.py").touch()
    assert keras_of_trainer(tmp_path) == "None"
