"""Generates the tables of docs/recovery.md from faults injected into real ranks under `allranks run`."""
