"""The frameworks, registered by name. A new one is a file beside this and a line here."""

from allranks.frameworks.base import Framework
from allranks.frameworks.horovod import Horovod
from allranks.frameworks.pytorch import PyTorch
from allranks.frameworks.tensorflow import TensorFlow

FRAMEWORKS: dict[str, Framework] = {framework.name: framework for framework in (PyTorch(), TensorFlow(), Horovod())}
