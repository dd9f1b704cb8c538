"""OpenAI's completion and chat JSON, read and written once: for the server and for the gateway.

The completion server and the gateway share answers and streams (`writer`), errors (`errors`),
limits (`limits`), keys, bodies and responses (`http`); `request` is the server's.
"""
