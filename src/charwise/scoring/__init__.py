"""The score of a known text: every prefix probability, from a few batched model calls."""
