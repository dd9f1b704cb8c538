"""The results of a scored text: bytes, characters, words and spans, and pictures."""
