"""Observations and the facts of a job: types, names, sizes, pod templates, the counts of a status. Decides nothing."""
