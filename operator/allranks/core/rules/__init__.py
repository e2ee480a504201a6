"""The rules: each looks at a snapshot and says what to do, until when to wait, or nothing. No rule imports another one.

`reconcile` has the order of the rules.
"""
