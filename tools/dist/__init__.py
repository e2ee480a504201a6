"""The parts of tools/dist.py: the files of a release, and their provenance."""
