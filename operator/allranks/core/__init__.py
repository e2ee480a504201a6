"""The pure core: what a job is, and what to do next. No I/O, no clock, no randomness."""
