"""The live view of a job on a terminal."""
