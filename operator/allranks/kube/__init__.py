"""One asynchronous Kubernetes client, for the operator and the command line."""
