"""A simulated cluster: the same plans as on a real one, with a virtual clock, faults at will, and no waiting.

It serves tests (a thousand interleavings of crash, stale cache and dead pods cost a second) and planning.
"""

from .cluster import Cluster, DoesNotSettle
from .controller import Audit
from .informer import Lag
from .kubelets import Node, Program, Workload

__all__ = ["Audit", "Cluster", "DoesNotSettle", "Lag", "Node", "Program", "Workload"]
