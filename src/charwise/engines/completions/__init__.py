"""A completions server that tells the log-probabilities of its best next tokens."""
