"""A server for tests: the embedded model, with real guided decoding by llguidance over bytes.

It answers in the forms of the four kinds of server that the gateway knows.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import llguidance
import numpy as np
import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from charwise import Vocabulary

Body = dict[str, Any]
OWNERS = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt_llm", "llama.cpp": "llamacpp"}
_BYTES = llguidance.LLTokenizer(
    llguidance.TokenizerWrapper(
        type("Bytes", (), {
            "eos_token_id": 256, "bos_token_id": None, "special_token_ids": [256],
            "tokens": [bytes([byte]) for byte in range(256)] + [b"<end>"],
            "__call__": lambda self, text: list(text.encode() if isinstance(text, str) else text),
        })()
    ),
    n_vocab=257, slices=[],
)  # fmt: skip


class Upstream:
    """The state of the server: what it was asked, and how it misbehaves."""

    def __init__(self, model: Any, vocabulary: Vocabulary, kind: str = "vllm") -> None:
        self.model, self.vocabulary, self.kind = model, vocabulary, kind
        self.requests: list[tuple[str, Body, dict[str, str]]] = []
        self.forces = True  # whether it knows guided decoding
        self.canonical = False  # whether it forces the canonical tokens of a text
        self.delay = 0.0  # seconds before each token
        self.dies = False  # whether it ends in the middle of a stream
        self.garbles = False  # whether it answers the client's own request by half a JSON text
        self.departures = 0  # requests whose clients left
        paths = ("/v1/completions", "/v1/chat/completions", "/completion", "/generate")
        self.app = Starlette(
            routes=[
                Route("/v1/models", lambda _: JSONResponse({"data": [
                    {"id": "tiny", "owned_by": OWNERS[kind], "root": "embedded",
                     "max_model_len": 99}
                ]})),
                Route("/props", lambda _: JSONResponse({"model_path": "embedded"})),
                Route("/get_model_info", lambda _: JSONResponse({"tokenizer_path": "embedded"})),
                Route("/metrics", lambda _: PlainTextResponse("# TYPE up gauge\nup 1\n")),
                Route("/anything", self.echo, methods=["GET", "POST"]),
                *(Route(path, self.complete, methods=["POST"]) for path in paths),
                Route(f"{'/no' * (kind == 'trtllm')}/tokenize", self.tokenize, methods=["POST"]),
            ]
        )  # fmt: skip

    async def echo(self, request: Request) -> Response:
        return PlainTextResponse(await request.body(), headers={"x-query": request.url.query})

    def ids(self, text: str) -> list[int]:
        names = {name: id for id, name in self.vocabulary.special.items()}
        parts = re.split("(" + "|".join(map(re.escape, names)) + ")", text)
        return self.vocabulary.encode_prompt([names.get(part, part) for part in parts if part])

    async def tokenize(self, request: Request) -> Response:
        body = await request.json()
        if "messages" in body:
            return JSONResponse({"tokens": self.chat(body["messages"])})
        return JSONResponse({"tokens": self.ids(body.get("prompt", body.get("content")))})

    def chat(self, messages: list[Body]) -> list[int]:
        return self.ids("".join(f"# {one['role']}\n{one['content']}" for one in messages))

    async def complete(self, request: Request) -> Response:
        body, path = await request.json(), request.url.path
        self.requests.append((path, body, dict(request.headers)))
        if body.get("model", "tiny") != "tiny" or "token_healing" in body:
            return JSONResponse({"error": {"message": "no such model", "code": 404}}, 404)
        if self.garbles and "structured_outputs" not in body:
            return PlainTextResponse('data: {"choices": [\n\n')
        params = body.get("sampling_params", body)
        prompt = body.get("prompt", body.get("input_ids"))
        if "messages" in body:
            prompt = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
            prompt = prompt or self.chat(body["messages"])
        prompts = prompt if isinstance(prompt, list) and isinstance(prompt[0], str) else [prompt]
        runs = [
            [self.ids(each) if isinstance(each, str) else each, params, at]
            for each in prompts
            for at in range(params.get("n") or 1)
        ]
        used = sum(len(run[0]) for run in runs[:: params.get("n") or 1])
        if body.get("stream"):
            return StreamingResponse(self.stream(path, runs, used), media_type="text/event-stream")
        wholes = []
        for number, run in enumerate(runs):
            events = []
            for event in self.generate(*run):
                events.append(event)
                await asyncio.sleep(self.delay)
                if await request.is_disconnected():
                    self.departures += 1
                    return Response()
            wholes.append(self.written(path, params, number, events, len(run[0])))
        if path in ("/completion", "/generate"):
            return JSONResponse(wholes[0] if len(wholes) == 1 else wholes)
        counts = {"prompt_tokens": used, "completion_tokens": sum(one.pop("_n") for one in wholes)}
        return JSONResponse({"id": "c", "created": 1, "model": "tiny", "choices": wholes,
                             "usage": counts | {"total_tokens": sum(counts.values())}})  # fmt: skip

    async def stream(self, path: str, runs: list[Any], used: int) -> Any:
        total = 0
        for number, run in enumerate(runs):
            for event in self.generate(*run):
                await asyncio.sleep(self.delay)
                choice = self.written(path, run[1], number, [event], len(run[0]))
                total += choice.pop("_n", 1)
                choice |= {"tokens_predicted": total} if path == "/completion" else {}
                chunk = choice if path == "/completion" else {"id": "c", "choices": [choice]}
                yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
                if self.dies:
                    raise ConnectionError("this server dies in the middle of a stream")
        if path == "/completion":
            return
        if (run[1].get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": used, "completion_tokens": total}
            yield b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    def written(self, path: str, params: Body, index: int, events: list[Any], used: int) -> Body:
        """Tokens in the form of one kind of server."""
        ids = [event[0] for event in events]
        text, finish = "".join(event[1] for event in events), events[-1][2]
        if path == "/completion":
            return {"content": text, "tokens": ids if params.get("return_tokens") else [],
                    "stop": finish is not None, "tokens_predicted": len(ids),
                    "tokens_evaluated": used}  # fmt: skip
        if path == "/generate":
            return {"text": text, "output_ids": ids}
        choice: Body = {"index": index, "finish_reason": finish, "_n": len(ids), "logprobs": None}
        if params.get("return_token_ids") or params.get("detokenize") is False:
            choice |= {"token_ids": ids, "prompt_token_ids": params["prompt"]}
        spelled = [self.vocabulary.tokens[id].decode("utf-8", "replace") for id in ids]
        if "messages" in params:
            if params.get("logprobs"):
                choice["logprobs"] = {"content": [
                    {"token": token, "logprob": event[3], "top_logprobs": []}
                    for token, event in zip(spelled, events, strict=True)
                ]}  # fmt: skip
            return {**choice, ("delta" if params.get("stream") else "message"): {"content": text}}
        if params.get("logprobs") is not None:
            logs = [event[3] for event in events]
            choice["logprobs"] = {"tokens": spelled, "token_logprobs": logs, "text_offset": [
                len("".join(spelled[:at])) for at in range(len(spelled))
            ], "top_logprobs": [{"?": log} for log in logs]}  # fmt: skip
        return {**choice, "text": text}

    @torch.inference_mode()
    def generate(self, ids: list[int], params: Body, copy: int) -> Iterator[Any]:
        """Yield (id, text, finish, log-probability) of each token; greedy or sampled."""
        most = next(
            (params[name] for name in ("max_new_tokens", "n_predict", "max_tokens",
                                       "max_completion_tokens") if params.get(name)), 16
        )  # fmt: skip
        stops = (
            [params["stop"]] if isinstance(params.get("stop"), str) else params.get("stop") or []
        )
        matcher, text, past = self.matcher(params), b"", None
        rng = np.random.default_rng(None if params.get("seed") is None else params["seed"] + copy)
        feed = list(ids)
        for at in range(most):
            out = self.model(torch.tensor([feed]), past_key_values=past, use_cache=True)
            past, row = out.past_key_values, out.logits[0, -1].double().numpy()
            logs = row - np.logaddexp.reduce(row)
            for id, bias in dict(params.get("logit_bias") or {}).items():
                row[int(id)] += bias
            if matcher is not None:
                row = np.where(self.allowed(matcher), row, -np.inf)
                if self.canonical and at == 0:
                    regex = params["structured_outputs"]["regex"].removesuffix("(.|\\n)*")
                    row[self.vocabulary.encode(re.sub(r"\\(.)", r"\1", regex))[0]] += 1e6
            id = int(row.argmax())
            if temperature := params.get("temperature", 1.0):
                weights = np.exp((row - row.max()) / temperature)
                id = int(rng.choice(len(row), p=weights / weights.sum()))
            feed, token = [id], self.vocabulary.tokens[id]
            if token is None:
                yield id, "", "stop", float(logs[id])
                return
            if matcher is not None:
                assert matcher.consume_tokens(list(token))
            before, text = text.decode("utf-8", "ignore"), text + token
            now = text.decode("utf-8", "ignore")
            keep = bool(params.get("include_stop_str_in_output"))
            ends = [now.find(stop) + keep * len(stop) for stop in stops if stop in now]
            now = now[: min(ends, default=None)]
            finish = "stop" if ends else "length" if at + 1 == most else None
            yield id, now[len(before) :], finish, float(logs[id])
            if ends:
                return

    def matcher(self, params: Body) -> Any:
        regex = (params.get("structured_outputs") or params.get("response_format") or params).get(
            "regex"
        )
        if grammar := params.get("grammar"):  # of the form that the gateway sends
            [literal] = re.fullmatch(r'root ::= "(.*)" \.\*', grammar).groups()
            codes = re.sub(
                r"\\U(.{8})|(.)", lambda m: rf"\x{{{m[1] or hex(ord(m[2]))[2:]}}}", literal
            )
            regex = codes + r"(.|\n)*"
        if regex is None or not self.forces:
            return None
        return llguidance.LLMatcher(_BYTES, llguidance.LLMatcher.grammar_from_regex(regex))

    def allowed(self, matcher: Any) -> np.ndarray:
        """Which tokens a grammar over bytes takes: no control token among them."""
        mask = np.zeros(len(self.vocabulary.tokens), dtype=bool)
        first = {byte for byte in range(256) if matcher.validate_tokens([byte]) == 1}
        for id, token in enumerate(self.vocabulary.tokens):
            if token is not None and token[0] in first:
                mask[id] = matcher.validate_tokens(list(token)) == len(token)
        return mask
