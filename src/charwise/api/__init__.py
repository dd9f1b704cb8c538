"""OpenAI's completion and chat JSON, read and written once: for the server and for those who heal.

The completion server, the middleware of vLLM and the proxy share requests (`request`), answers and
streams (`writer`), errors (`errors`), limits (`limits`), keys, bodies and responses (`http`), and
the way in which settings are read (`settings`).
"""
