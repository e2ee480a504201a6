"""The one place that knows the version; it imports nothing, so that `--version` is fast."""

__version__ = "0.1.0"
