"""Makes the table of docs/recovery.md: faults befall real ranks under `allranks run`, and each must lead to what the
rules say. `tools/recovery.py` is the command."""
