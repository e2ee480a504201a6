"""Gang scheduling: the pods of an attempt are placed together or not at all. One file for each backend.

`choice` selects the backend of an attempt, which is persisted in `status.gang` before its pods are created. `read_back`
compares what the API server stored with what was asked for. `contention` is for clusters without a gang scheduler.
"""
