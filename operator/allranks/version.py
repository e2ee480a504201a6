"""The version. This module imports nothing, so that `--version` is fast."""

__version__ = "0.1.0"
