"""A page that shows how the end of a prompt is read: its routes, and their JSON."""
