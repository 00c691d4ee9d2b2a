"""Run kubectl on a head, and parse the objects that it prints."""
