"""Kueue's queues: the Workload of a job, its admission, and what the job waits for."""
