"""The command line: verbs, options, completion."""
