"""Completions for editors: an HTTP server, sessions, a language server, and a page to look at."""
