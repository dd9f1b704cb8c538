"""The model where editors reach it: documents, a language server, and a page to look at."""
