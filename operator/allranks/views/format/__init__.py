"""Formats values as text: progress, outcomes, Events, log lines, durations, tables, plots."""
