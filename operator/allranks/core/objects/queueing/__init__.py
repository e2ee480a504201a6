"""Kueue's queues: which one a job has, and what its Workload says."""
