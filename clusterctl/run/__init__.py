"""Shared parts of verbs that contact nodes: phases, locks, preflight, plays, batches."""
