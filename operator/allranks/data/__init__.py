"""Fetches the inputs of jobs into a cache, and uploads their outputs. It knows neither jobs nor Kubernetes."""
