"""Completions for editors: an HTTP server in several dialects, sessions, and what they share."""
