"""Print text, progress and the report at the end of a run."""
