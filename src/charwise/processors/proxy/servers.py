"""Which server is behind: what it takes, found out by its list of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Server:
    """What a kind of server takes.

    Attributes:
        name: of the kind.
        default_tokens: what it writes if a completion request does not say how much; None for all
            that there is room for.
        several: whether it writes `n` completions.
        streams_to_all: whether it goes on with a stream when the next request comes.
        native: whether it has `/completion`, in llama.cpp's own form.
        starts: whether an empty prompt becomes a start token, so that nothing need be kept.
        why_not: why nothing can be healed there, in one word.
    """

    name: str
    default_tokens: int | None = None
    several: bool = False
    streams_to_all: bool = False
    native: bool = False
    starts: bool = False
    why_not: str | None = None


#: By the name that the option `--server` takes.
SERVERS = {
    server.name: server
    for server in (
        Server("llama.cpp", several=True, streams_to_all=True, native=True),
        Server("llama-cpp-python", default_tokens=16),
        Server("ollama", why_not="ollama-takes-no-grammar"),
        Server("vllm", why_not="vllm-has-a-middleware"),
        Server("unknown", why_not="unknown-server"),
    )
}

#: Who owns the models, as `/v1/models` has it.
_OWNERS = {
    "llamacpp": "llama.cpp",
    "me": "llama-cpp-python",
    "library": "ollama",
    "vllm": "vllm",
}


#: What a server is asked to see whether it starts from an empty prompt.
PROBE = {"prompt": "", "max_tokens": 1}


def starts(answer: Any) -> bool:
    """Whether the answer to `PROBE` was written after a start token.

    >>> starts({"usage": {"prompt_tokens": 1}}), starts({"usage": {"prompt_tokens": 0}})
    (True, False)
    """
    usage = answer.get("usage") if isinstance(answer, Mapping) else None
    counted = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    return isinstance(counted, int) and counted > 0


def server_of(models: Any) -> Server:
    """The kind of server that lists its models so.

    >>> server_of({"data": [{"id": "m", "owned_by": "llamacpp"}]}).name, server_of([]).name
    ('llama.cpp', 'unknown')
    """
    listed = models.get("data") if isinstance(models, Mapping) else None
    owners = [
        model.get("owned_by")
        for model in (listed if isinstance(listed, list) else [])
        if isinstance(model, Mapping)
    ]
    owner = owners[0] if owners else None
    return SERVERS[_OWNERS.get(owner, "unknown") if isinstance(owner, str) else "unknown"]
