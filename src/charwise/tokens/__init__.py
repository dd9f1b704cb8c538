"""Δ and κ: vocabularies, how tokenizers spell, and the sorted index over a vocabulary."""
