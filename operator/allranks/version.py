"""The version. This module imports nothing, so that `--version` is fast."""

__version__ = "0.2.0"

OPERATOR_IMAGE = f"ghcr.io/allranks/operator:{__version__}"
"""Also the image of the init container that copies helpers into pods."""
