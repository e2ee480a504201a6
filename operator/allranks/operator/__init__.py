"""Carries out plans on Kubernetes: the operator.

`app.py` runs the process, `session.py` builds its parts, `controller.py` leads from a queued job to a plan, `apply.py`
from a plan to API requests.
"""
