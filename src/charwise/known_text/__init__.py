"""All prefix probabilities of a known text at once, in a few batched evaluations."""
