"""Slurm's commands on the head, and what they print."""
