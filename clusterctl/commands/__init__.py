"""One module for each verb, or for verbs that belong together."""
