"""A cluster's directory: hardware records, secrets, certificates."""
