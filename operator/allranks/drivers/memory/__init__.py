"""A simulated cluster: the same plans as on a real one, with a virtual clock, faults at will, and no waiting.

It serves tests (a thousand interleavings of crash, stale cache and dead pods cost a second) and planning.
"""

from allranks.drivers.memory.cluster import Cluster, DoesNotSettle
from allranks.drivers.memory.controller import Audit
from allranks.drivers.memory.kubelets import Node, Program, Workload
from allranks.drivers.memory.view import Lag

__all__ = ["Audit", "Cluster", "DoesNotSettle", "Lag", "Node", "Program", "Workload"]
