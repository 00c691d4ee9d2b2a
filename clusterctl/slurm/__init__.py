"""Run Slurm's commands on the head, and parse their output."""
