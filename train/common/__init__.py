"""What the training programs share and what has nothing to do with distributing them: data, checkpoints, curves."""
