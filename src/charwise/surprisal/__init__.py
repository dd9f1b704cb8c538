"""What a reader takes off a scored text: bytes, characters, words and spans, and pictures."""
