"""Completions in the form of OpenAI's API: requests, calls to the server behind, answers."""
