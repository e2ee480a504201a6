"""The version. This module imports nothing, so that `--version` is fast."""

__version__ = "0.2.0"

OPERATOR_IMAGE = f"ghcr.io/allranks/operator:{__version__}"
"""Also the image of the init container that copies helpers into pods."""

DATA_IMAGE = f"ghcr.io/allranks/data:{__version__}"
"""Image of the pods that fetch inputs and upload outputs: allranks with its extra `data`, and git."""
