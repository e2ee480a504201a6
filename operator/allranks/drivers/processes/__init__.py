"""The driver for one machine: pods are process trees, volumes are directories, ports are free ones of 127.0.0.1."""

from allranks.drivers.processes.driver import How, Listener, LocalRun, Options
from allranks.drivers.processes.errors import Broken
from allranks.drivers.processes.pods import Backoff

__all__ = ["Backoff", "Broken", "How", "Listener", "LocalRun", "Options"]
