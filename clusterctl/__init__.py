"""Turn a list of Linux servers into a working GPU cluster, and keep it working."""

__version__ = "0.1.0"
