"""Plans carried out on Kubernetes: the operator.

`operator.py` puts the parts together; `controller.py` is the path from a wake-up to a plan, `executor.py` that from a
plan to API calls.
"""
