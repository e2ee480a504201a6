"""The Kubernetes objects of a job: pods and what they need beside them, PodGroups, and Kueue's Workload."""
