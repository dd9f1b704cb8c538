"""The next bytes of a text: states that grow and shrink by bytes, and draws from them."""
