"""Kubernetes manifests of an attempt's objects."""
