"""Bounds of the probabilities of texts, where only the k best next tokens are known."""
