"""The checks of `allranks doctor`: this machine, and a cluster."""
