"""Answers and streams, written: OpenAI's completions, server-sent events, lines of JSON.

No JSON has a space after a colon: there are clients that look for `"content":"`.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any

#: A JSON object.
Message = dict[str, Any]

#: The event that ends a stream of OpenAI's API.
DONE = b"data: [DONE]\n\n"

#: The log-probability that stands for that of the impossible: JSON knows no infinity.
IMPOSSIBLE = -9999.0


def compact(content: Any) -> bytes:
    """Return a value as JSON without spaces.

    >>> compact({"content": "naï"}).decode()
    '{"content":"naï"}'
    """
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def event(chunk: Mapping[str, Any]) -> bytes:
    """Return a server-sent event.

    >>> event({"content": "y"})
    b'data: {"content":"y"}\\n\\n'
    """
    return b"data: " + compact(chunk) + b"\n\n"


def line(chunk: Mapping[str, Any]) -> bytes:
    """Return a line of JSON.

    >>> line({"done": False})
    b'{"done":false}\\n'
    """
    return compact(chunk) + b"\n"


def head(model: str) -> Message:
    """Return the fields of a completion that its choices stand beside: one id for all of them.

    >>> head("tiny")["object"]
    'text_completion'
    """
    return {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
    }


def choice(
    index: int, text: str, finish_reason: str | None = None, logprobs: Message | None = None
) -> Message:
    """Return a choice of a completion, or the part of one that a stream tells.

    >>> choice(0, "y", "stop")
    {'index': 0, 'text': 'y', 'logprobs': None, 'finish_reason': 'stop'}
    """
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def usage(prompt: int, completion: int, cached: int | None = None) -> Message:
    """Return the numbers of tokens of a prompt and its completions.

    >>> usage(3, 2)
    {'prompt_tokens': 3, 'completion_tokens': 2, 'total_tokens': 5}
    """
    found: Message = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if cached is not None:
        found["prompt_tokens_details"] = {"cached_tokens": cached}
    return found


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can hold: −9999 for that of the impossible.

    >>> finite(-1.5), finite(-float("inf"))
    (-1.5, -9999.0)
    """
    return max(float(logprob), IMPOSSIBLE)


def characters(raw: bytes) -> str:
    """Return bytes as the text of an answer; bytes that are no character become U+FFFD."""
    return raw.decode("utf-8", "replace")


def spelled(raw: bytes) -> str:
    r"""Return the bytes of a token as OpenAI's API spells them: text, or `bytes:\xNN…`.

    So are bytes that are no whole characters, and a text that would read as if it were spelled so.

    >>> spelled("naï".encode()), spelled(b"\xf0\x9f"), spelled(b"bytes:\\xf0")
    ('naï', 'bytes:\\xf0\\x9f', 'bytes:\\x62\\x79\\x74\\x65\\x73\\x3a\\x5c\\x78\\x66\\x30')
    """
    try:
        if _SPELLED.fullmatch(text := raw.decode()) is None:
            return text
    except UnicodeDecodeError:
        pass
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


_SPELLED = re.compile(r"bytes:(\\x[0-9a-f]{2})+")
