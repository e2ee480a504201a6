"""The images for GPUs that are not built by default, on a machine without a GPU: their libraries are of one version of
CUDA and can be loaded, and they train on CPUs."""

from __future__ import annotations

import os
import re

import pytest

from . import building
from .conftest import Images
from .containers import Image, any_user
from .test_images import assert_learned, succeeded

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(building.SECONDS),
    pytest.mark.skipif(
        not os.environ.get("ALLRANKS_IMAGES_WITH_CUDA"), reason="20 GB of images: set ALLRANKS_IMAGES_WITH_CUDA=1"
    ),
]

VARIANTS = {
    "tensorflow": ("tensorflow", "TENSORFLOW_VARIANT=cuda"),
    "jax": ("jax", "JAX_VARIANT=cuda"),
    "horovod-pytorch": ("horovod", "HOROVOD_NCCL=pytorch"),
    "horovod-tensorflow": ("horovod", "HOROVOD_NCCL=tensorflow"),
}
HOROVOD = {"horovod-pytorch": "torch", "horovod-tensorflow": "tensorflow"}
every_horovod = pytest.mark.parametrize(("variant", "framework"), HOROVOD.items())

LOAD_NCCL = """
import ctypes, nvidia.nccl
version = ctypes.c_int()
assert ctypes.CDLL(nvidia.nccl.__path__[0] + "/lib/libnccl.so.2").ncclGetVersion(ctypes.byref(version)) == 0
print(version.value)
"""

LOADED = """
import glob, importlib, sys
importlib.import_module("horovod." + sys.argv[1])
[library] = glob.glob(sys.modules["horovod"].__path__[0] + "/*/mpi_lib*.so")
loaded = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print("loaded:", library in loaded, *(name for name in loaded if "libnccl.so" in name))
"""
"""The library of Horovod, the only one, needs the libraries of its framework, which has loaded them before."""


def variant_of(image: Images, variant: str) -> Image:
    name, argument = VARIANTS[variant]
    return image(name, "--tag", f"{building.TAG}-cuda-{variant}", "--build-arg", argument)


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_image_with_CUDA_has_an_NCCL_that_loads_and_no_compiler(image: Images, variant: str):
    built = variant_of(image, variant)
    assert int(succeeded(built.run("python3", "-c", LOAD_NCCL, user=any_user()))) > 2_27_00
    found = built.run("sh", "-c", "for name in g++ cc nvcc cmake; do command -v $name; done; true", user=any_user())
    assert succeeded(found) == ""


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_libraries_of_NVIDIA_in_an_image_are_of_one_version_of_CUDA(image: Images, variant: str):
    packages = succeeded(
        variant_of(image, variant).run("python3", "-m", "pip", "list", "--format=freeze", user=any_user())
    )
    assert len(set(re.findall(r"^nvidia-[\w-]+-cu(\d+)==", packages, re.M))) == 1, packages


def test_tensorflow_with_CUDA_is_built_for_GPUs(image: Images):
    program = (
        "import tensorflow as tf; print(tf.sysconfig.get_build_info()['cuda_version'], tf.test.is_built_with_cuda())"
    )
    said = succeeded(variant_of(image, "tensorflow").run("python3", "-c", program, user=any_user()))
    assert re.search(r"^12\.\d+(\.\d+)? True$", said, re.M), said


def test_jax_with_CUDA_has_its_plugin_and_falls_back_to_CPUs(image: Images):
    program = """
import jax, jax_cuda13_plugin
from importlib.metadata import entry_points
print([plugin.name for plugin in entry_points(group="jax_plugins")], jax.devices()[0].platform)
"""
    said = succeeded(variant_of(image, "jax").run("python3", "-c", program, user=any_user()))
    assert said.splitlines()[-1] == "['xla_cuda13'] cpu", said


@every_horovod
def test_horovod_with_NCCL_is_built_with_all_operations(image: Images, variant: str, framework: str):
    said = succeeded(variant_of(image, variant).run("horovodrun", "--check-build", user=any_user(), timeout=900))
    operations = said[said.index("Available Tensor Operations") :]
    assert re.findall(r"\[X\] (\w+)", operations) == ["NCCL", "MPI", "Gloo"], said


@every_horovod
def test_the_one_library_of_horovod_with_NCCL_loads_the_NCCL_of_its_framework(
    image: Images, variant: str, framework: str
):
    said = succeeded(variant_of(image, variant).run("python3", "-c", LOADED, framework, user=any_user()))
    assert re.search(r"loaded: True \S+/nvidia/nccl/lib/libnccl\.so\.2$", said, re.M), said


@every_horovod
def test_horovod_with_NCCL_trains_on_CPUs(image: Images, variant: str, framework: str):
    program = {"torch": "penguins_horovod.py", "tensorflow": "penguins_horovod_keras.py"}[framework]
    command = ["horovodrun", "-np", "2", "--gloo", "python3", f"train/{program}", "--epochs=8"]
    env = {"HOROVOD_GLOO_IFACE": "lo", "HOROVOD_GLOO_TIMEOUT_SECONDS": "600"}
    said = succeeded(variant_of(image, variant).run(*command, user=any_user(), env=env, timeout=900))
    assert_learned(said)
