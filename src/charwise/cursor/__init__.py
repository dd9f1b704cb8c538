"""What the model says next: states that grow and shrink by bytes, and draws from them."""
