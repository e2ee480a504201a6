"""allranks: distributed training jobs on Kubernetes and on one machine."""

from allranks.version import __version__

__all__ = ["__version__"]
