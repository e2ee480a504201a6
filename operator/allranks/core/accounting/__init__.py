"""A job's progress, times and cost, and the notifications about it."""
