"""Inputs and outputs of a job: pods that fetch and upload, volumes and variables of ranks, and the results."""
