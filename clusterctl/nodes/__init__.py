"""Talk to nodes over SSH: host keys, the probe, and what it found."""
