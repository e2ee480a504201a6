"""Drivers carry out the core's plans: on this machine, in a simulation, on Kubernetes."""
