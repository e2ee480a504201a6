"""Generates the tables of docs/reference/recovery.md from faults injected into real ranks under `allranks run`."""
