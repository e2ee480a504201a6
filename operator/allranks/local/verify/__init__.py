"""Finds out whether a program resumes well: a run without kills, a run with kills, and a comparison of both."""
