"""Requests that nobody would send on purpose: wrong types, odd values, broken bodies."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx

PATHS = (
    *("/v1/completions", "/infill", "/completion") * 3,  # which take most fields
    "/v1/next", "/v1/score", "/v1/covering", "/v1/steps", "/props", "/health", "/v1/models",
    "/metrics", "/nowhere",
)  # fmt: skip

#: The field without which a request is none, where it is no prompt.
NEEDED = {"/v1/score": "text"}

FIELDS = (
    "prompt", "suffix", "max_tokens", "n_predict", "n", "n_cmpl", "temperature", "top_p", "top_k",
    "stop", "seed", "stream", "stream_options", "echo", "logprobs", "best_of", "logit_bias",
    "input_prefix", "input_suffix", "input_extra", "n_indent", "t_max_predict_ms", "samplers",
    "response_fields", "options", "raw", "content", "tokens", "text", "context", "per", "end",
    "top", "coverage", "chars", "mode", "until", "threshold", "max_bytes", "n_probs", "model",
)  # fmt: skip

TEXTS = (
    "", "a", "import nump", "\x00", "é", "日本", "😀", "\n" * 40, " " * 50, "<fim_prefix>",
    "<fim_prefix>a<fim_suffix>b<fim_middle>", "[SUFFIX]a[PREFIX]b", "line", "block", "plain",
    "healed", "exact", "word", "x" * 300, "\ufeff", "\u2028",
)  # fmt: skip

NUMBERS = (0, 1, 2, 5, -1, -5, 10**6, 10**18, 10**30, 0.5, -0.5, 1e-300, 1e300, 1.0, 2.5)

#: JSON that Python's writer has no value for.
RAW = ("NaN", "Infinity", "-Infinity", '"\\ud800"', "1e999", "01", "'a'", "{", "]", "tru", '"\\x"')


#: What a page's browser says of it, and the name it asks under: most of them are no address.
ORIGINS = (b"null", b"http://[", b"]", b"http://\xbc", b"\xff", b"https://bad.example", b"*", b"//")
HOSTS = (b"", b"[", b"[::1", b"\xff", b"a:b:c", b":", b"localhost:x")


def headers(rng: random.Random) -> dict[str, bytes]:
    """Headers that are read before the body; none for most requests."""
    found = {"content-type": b"application/json"}
    if rng.random() < 0.03:
        found["origin"] = rng.choice(ORIGINS)
    if rng.random() < 0.01:
        found["host"] = rng.choice(HOSTS)
    return found


def value(rng: random.Random, depth: int = 0) -> Any:
    """A value of whatever type."""
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind < 2:
        return rng.choice(TEXTS)
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind == 4:
        return rng.choice((True, False))
    if kind == 5:
        return None
    if kind < 8:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(FIELDS): value(rng, depth + 1) for _ in range(rng.randrange(3))}


def body(rng: random.Random, needed: str = "prompt") -> bytes:
    """A body: an object, something else, or no JSON at all."""
    kind = rng.randrange(12)
    if kind == 0:
        return rng.randbytes(rng.randrange(60))
    if kind == 1:
        return json.dumps(value(rng)).encode()
    if kind == 2:
        return (rng.choice("[{") * rng.randrange(20_000)).encode()
    made = {rng.choice(FIELDS): value(rng) for _ in range(rng.randrange(6))}
    # Work is bounded in most of them, so that many can be sent.
    if kind < 11:
        text = rng.choice(TEXTS)
        made.setdefault(needed, text)
        for field in ("max_tokens", "n_predict"):
            if rng.random() < 0.9:
                made[field] = rng.choice((0, 1, 2, 3))
        if rng.random() < 0.9:
            made["max_bytes"] = rng.choice((0, 1, 7))
    text = json.dumps(made)
    if kind == 3:
        return text.replace("null", rng.choice(RAW)).encode()
    if kind == 4:
        return text[: rng.randrange(len(text))].encode()
    return text.encode()


def requests(count: int, seed: int) -> Iterator[tuple[str, str, bytes]]:
    """Method, path and body of each."""
    rng = random.Random(seed)
    for _ in range(count):
        method = rng.choice(("POST",) * 12 + ("GET", "PUT", "DELETE", "PATCH", "HEAD"))
        path = rng.choice(PATHS)
        yield method, path, body(rng, NEEDED.get(path, "prompt"))


def send(url: str, count: int, seed: int) -> tuple[Counter[int], list[str]]:
    """How many answers had which status; and those that say that the server failed."""
    statuses: Counter[int] = Counter()
    failed = []
    more = random.Random(seed)  # of its own: bodies are those of earlier runs
    with httpx.Client(base_url=url, timeout=120) as client:
        for method, path, content in requests(count, seed):
            answer = client.request(method, path, content=content, headers=headers(more))
            statuses[answer.status_code] += 1
            wrong = answer.status_code >= 500 and answer.status_code != 503
            if wrong or b"the server failed" in answer.content:
                failed.append(f"{method} {path} {content[:300]!r}: {answer.text[:300]}")
    return statuses, failed
