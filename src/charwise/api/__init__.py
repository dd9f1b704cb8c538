"""OpenAI's completion and chat JSON, read and written once: for the server and for the gateway."""
