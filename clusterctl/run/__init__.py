"""What all verbs that change nodes share: locks, preflight, plays, batches."""
