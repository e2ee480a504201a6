"""The rules: each maps a snapshot to a plan, a time to wait for, or nothing. No rule imports another one.

`reconcile` has the order of the rules.
"""
