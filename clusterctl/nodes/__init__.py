"""Connect to nodes over SSH: host keys, the probe, and its results."""
