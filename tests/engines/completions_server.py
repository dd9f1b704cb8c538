"""A small HTTP server that serves a model of ours in the OpenAI form, as far as vLLM's goes.

What it tells are the model's own numbers. It can be told to want a key, to leave out what other
servers leave out, and to fail a few times first.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from charwise.token_lm import TokenLM


@dataclass
class Behaviour:
    """What the server does, and what it was asked."""

    key: str | None = None
    models: tuple[str, ...] = ("small",)
    most: int = 1000  # log-probabilities
    window: int | None = 512
    tokenize: bool = True  # whether it has /tokenize
    completions: bool = True  # or chats alone
    by_id: bool = True  # tokens as "token_id:7", or as text
    prompts: bool = True  # whether it tells log-probabilities of prompts
    shift: int = 0  # of the ids that /tokenize tells
    failures: list[int] = field(default_factory=list)  # statuses to answer with first
    silence: float = 0.0  # seconds before each completion
    body: str | None = None  # in place of every answer
    asked: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


class Refusal(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def serving(engine: TokenLM, **how: Any) -> Iterator[tuple[str, Behaviour]]:
    """The URL of a server of this engine, and how it behaves, which may be changed."""
    behaviour = Behaviour(**how)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def answer(self, asked: dict[str, Any] | None) -> None:
            behaviour.paths.append(self.path)
            try:
                if behaviour.failures:
                    raise Refusal(behaviour.failures.pop(0), "busy")
                if behaviour.key and self.headers["authorization"] != f"Bearer {behaviour.key}":
                    raise Refusal(401, "Unauthorized")
                status, body = 200, json.dumps(answered(engine, behaviour, self.path, asked))
            except Refusal as refusal:
                status, body = refusal.status, json.dumps({"error": {"message": str(refusal)}})
            data = (behaviour.body or body).encode()
            try:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:  # the client has gone
                pass

        def do_GET(self) -> None:
            self.answer(None)

        def do_POST(self) -> None:
            self.answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", behaviour
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answered(
    engine: TokenLM, behaviour: Behaviour, path: str, asked: dict[str, Any] | None
) -> dict[str, Any]:
    """The answer to a request."""
    if path == "/v1/models":
        return {
            "data": [{"id": name, "max_model_len": behaviour.window} for name in behaviour.models]
        }
    if path == "/tokenize" and behaviour.tokenize and asked:
        ids = engine.vocabulary.encode(asked["prompt"])
        return {"tokens": [id + behaviour.shift for id in ids]}
    if path == "/v1/completions" and behaviour.completions and asked:
        behaviour.asked.append(asked)
        time.sleep(behaviour.silence)
        if asked["logprobs"] > behaviour.most:
            raise Refusal(
                400,
                f"Requested sample logprobs of {asked['logprobs']}, which is greater than max "
                f"allowed: {behaviour.most}",
            )
        prompts = asked["prompt"]
        if isinstance(prompts, str):
            prompts = [engine.vocabulary.encode(prompts)]
        return {"choices": [choice(engine, behaviour, asked, *each) for each in enumerate(prompts)]}
    raise Refusal(404, "Not Found")


def choice(
    engine: TokenLM, behaviour: Behaviour, asked: dict[str, Any], index: int, ids: list[int]
) -> dict[str, Any]:
    """One choice: the best next token, and what is asked about it and about the prompt."""
    tree = engine.tree(ids[:1])
    nodes = [0, *tree.extend([(at, id) for at, id in enumerate(ids[1:])])]
    rows = tree.logprobs(nodes).double()
    best = rows[-1].topk(asked["logprobs"])
    chosen = int(best.indices[0])
    told = {
        name(engine, behaviour, int(id)): float(log)
        for id, log in zip(best.indices, best.values.clamp_min(-9999.0), strict=True)
    }
    tokens = [
        name(engine, behaviour, id) for id in ([*ids, chosen] if "echo" in asked else [chosen])
    ]
    found: dict[str, Any] = {
        "index": index,
        "logprobs": {"tokens": tokens, "top_logprobs": [told]},
        "prompt_logprobs": None,
    }
    many = asked.get("prompt_logprobs")
    if many is not None and behaviour.prompts:
        entries = [entry(row, id, many) for row, id in zip(rows[:-1], ids[1:], strict=True)]
        found["prompt_logprobs"] = [None, *entries]
    return found


def name(engine: TokenLM, behaviour: Behaviour, id: int) -> str:
    token = engine.vocabulary.tokens[id] or b""
    return f"token_id:{id}" if behaviour.by_id else token.decode("utf-8", "replace")


def entry(row: torch.Tensor, id: int, many: int) -> dict[str, Any]:
    """What is told of a prompt's position: its own token, and the best."""
    best = row.topk(many).indices.tolist() if many else []
    return {str(each): {"logprob": max(float(row[each]), -9999.0)} for each in [id, *best]}
