"""Runs a job on one machine: a pod is a process tree, a volume a directory, an endpoint a free port of 127.0.0.1."""

from allranks.local.errors import LocalRunError
from allranks.local.options import Listener, Options, Outcome
from allranks.local.pod import Backoff
from allranks.local.runner import LocalRun

__all__ = ["Backoff", "Listener", "LocalRun", "LocalRunError", "Options", "Outcome"]
