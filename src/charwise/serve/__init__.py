"""The model where editors reach it: an HTTP server, a language server, and a page to look at."""
