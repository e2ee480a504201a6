"""The driver for one machine: pods are process trees, volumes are directories, ports are free ones of 127.0.0.1."""

from allranks.local.errors import Broken
from allranks.local.pod import Backoff
from allranks.local.runner import How, Listener, LocalRun, Options

__all__ = ["Backoff", "Broken", "How", "Listener", "LocalRun", "Options"]
