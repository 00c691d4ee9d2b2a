"""The screen: text, progress, the page at the end of a run."""
