"""Brings the objects of a job in line with its persisted status when no rule decides. One file for each stage."""
