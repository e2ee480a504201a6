"""Generates the table of docs/reference/recovery.md: injects faults into real ranks under `allranks run`, and checks
each outcome against the rules. `tools/recovery.py` is the command."""
