"""Finds out what went wrong, and the consequences: root causes, hangs, stragglers, restarts. Imports facts only."""
