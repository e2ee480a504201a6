"""A simulated cluster with a virtual clock and faults, which executes the same plans as the operator.

A thousand interleavings of crashes, stale caches and dead pods take one second.
"""

from .cluster import Cluster, DoesNotSettle
from .controller import Audit
from .informer import Lag
from .kubelets import Node, Obstacle, Program, Workload

__all__ = ["Audit", "Cluster", "DoesNotSettle", "Lag", "Node", "Obstacle", "Program", "Workload"]
