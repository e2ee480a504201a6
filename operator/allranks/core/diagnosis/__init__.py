"""Finds out what went wrong, and the consequences. Imports facts only.

A failed pod goes through these files, in this order:

- `pod_ends`: whether and when its end counts. `patterns`, `last_words`: the line of its output that says what ended it.
- `root_cause`: which pod of the attempt failed first. `culprit`: which replica that failure is a consequence of.
- `comparison`: whether it failed like this before. `verdict`: whose fault it is. `restart_policy`: what follows.
- `correlation`: evidence that arrives later. `reasons`: the reasons of failures, and a failure in one line.

Ranks that make no step: `stalled_ranks` compares them, `hang_detection` decides when it is a hang, and describes it.
"""
