"""What `watch.py` puts on the PYTHONPATH of the programs that it runs; nothing else may be found there."""
