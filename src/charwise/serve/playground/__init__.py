"""A page to look at what happens where a prompt stops: its routes, and the JSON that it shows."""
