"""Code that the training programs share: data, checkpoints, metrics, termination."""
