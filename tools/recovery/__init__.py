"""Generates the tables of docs/recovery.md: injects faults into real ranks under `allranks run` and checks the results."""
