"""The registry of frameworks. To add one, write its file in this folder and add it here."""

from allranks.frameworks.base import Framework
from allranks.frameworks.horovod import Horovod
from allranks.frameworks.jax import Jax
from allranks.frameworks.mpi import Mpi
from allranks.frameworks.pytorch import PyTorch
from allranks.frameworks.ray import Ray
from allranks.frameworks.spmd import Spmd
from allranks.frameworks.tensorflow import TensorFlow

FRAMEWORKS: dict[str, Framework] = {
    framework.name: framework for framework in (PyTorch(), TensorFlow(), Horovod(), Jax(), Ray(), Mpi(), Spmd())
}
