"""Checks of manifests beyond the CRD's schema: what the API server would refuse in the pods of a job.

Only commands use this package. The operator creates the pods and reports what the API server answers.
"""
