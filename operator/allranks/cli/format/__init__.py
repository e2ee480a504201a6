"""Text of one thing each: progress, outcome, Events, log lines, tables."""
