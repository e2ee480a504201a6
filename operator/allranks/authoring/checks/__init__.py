"""Checks of manifests beyond the CRD's schema: a part of what the API server would refuse in the pods of a job.

Clients use this package: the commands, Python and the web UI. The operator creates the pods and reports what the API
server answers.
"""
