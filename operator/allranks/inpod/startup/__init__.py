"""The directory that `watch.py` adds to the PYTHONPATH of programs. It must contain nothing else."""
