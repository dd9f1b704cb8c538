"""Answers and streams, written: OpenAI's completions, server-sent events.

No JSON has a space after a colon: there are clients that look for `"content":"`.
"""

import json
import math
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
    """Return a value as JSON without spaces."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def event(chunk: Mapping[str, Any]) -> bytes:
    """Return a server-sent event."""
    return b"data: " + compact(chunk) + b"\n\n"


#: Why a completion ended, in our words → OpenAI's `finish_reason`, llama.cpp's `stop_type`.
_ENDS = {
    "end": ("stop", "eos"),
    "constraint": ("stop", "eos"),
    "stop": ("stop", "word"),
    **dict.fromkeys(("line", "block", "suffix"), ("stop", "limit")),
    **dict.fromkeys(("length", "window", "time", "dead end"), ("length", "limit")),
}


def end_words(finish: str) -> tuple[str, str]:
    """Return OpenAI's and llama.cpp's words for an end."""
    return _ENDS[finish]


def head(model: str, kind: str = "text_completion") -> Message:
    """Return the fields of an answer beside its choices."""
    return {
        "id": f"{'cmpl' if kind == 'text_completion' else 'chatcmpl'}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def choice(
    index: int, text: str, finish_reason: str | None = None, logprobs: Message | None = None
) -> Message:
    """Return a choice of a completion, or the part of one that a stream tells."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def usage(prompt: int, completion: int, cached: int | None = None) -> Message:
    """Return the numbers of tokens of a prompt and its completions."""
    counts: Message = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return counts


def chat_logprobs(logprobs: Message) -> Message:
    """Return the log-probabilities of a completion in the form of a chat's."""
    tokens = logprobs["tokens"]
    columns = (
        logprobs["bytes"],
        logprobs["token_logprobs"],
        logprobs["top_logprobs"] or [{}] * len(tokens),
    )
    content = []
    for token, raw, logprob, top in zip(tokens, *columns, strict=True):
        alternatives = [
            {"token": other, "logprob": log, "bytes": list(_unspelled(other))}
            for other, log in top.items()
        ]
        entry = {"token": token, "logprob": logprob, "bytes": raw, "top_logprobs": alternatives}
        content.append(entry)
    return {"content": content}


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can hold: −9999 for that of the impossible, −∞."""
    return float(logprob) if math.isfinite(logprob) else math.copysign(IMPOSSIBLE, logprob)


def spelled(raw: bytes) -> str:
    r"""Return the bytes of a token as OpenAI's API spells them: text, or `bytes:\xNN…`.

    So are bytes that are no whole characters, and a text that would read as if it were spelled so.
    """
    try:
        if _SPELLED.fullmatch(text := raw.decode()) is None:
            return text
    except UnicodeDecodeError:
        pass
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _unspelled(text: str) -> bytes:
    r"""Return the bytes that `spelled` wrote so."""
    if _SPELLED.fullmatch(text):
        return bytes.fromhex(text.removeprefix("bytes:").replace("\\x", ""))
    return text.encode()


_SPELLED = re.compile(r"bytes:(\\x[0-9a-f]{2})+")
