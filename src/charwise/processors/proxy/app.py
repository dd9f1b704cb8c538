"""The proxy: an ASGI app that heals completion requests, and hands everything else on.

    charwise heal-proxy --upstream http://127.0.0.1:8080 --tokenizer model.gguf

A healed request goes to the server behind with the prompt's text up to the cut, and a grammar that
begins with the rest of it and allows anything after that. What comes back starts with the forced
text, which is taken off. What cannot be healed goes through as it came, unless the request asks
for healing with `"charwise_heal": "auto"` (or "word", or a number of tokens): then it is an error.
"off" turns healing off. The header `x-charwise` of an answer says which it was.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from charwise.api.http import read_up_to
from charwise.api.limits import HEALED_BODY
from charwise.api.request import LlamaCppRequest, parsed, without_heal
from charwise.api.writer import Message
from charwise.errors import CharwiseError, SettingError
from charwise.healing import cut
from charwise.processors.openai.exchange import Exchange, Form, OpenAIForm
from charwise.processors.openai.metrics import AccessLog, HealingMetrics
from charwise.processors.openai.upstream import Outcome, Upstream, refuse, telling
from charwise.processors.proxy.answer import NativeForm, TextAnswer
from charwise.processors.proxy.plan import OTHER_TOKENIZER, SERVERS, Server, plan
from charwise.processors.proxy.relay import Headers, Relay, has_tokenizer
from charwise.tokens.index import SortedVocabulary

logger = logging.getLogger("charwise.proxy")

#: Ends of the paths of completions in OpenAI's form, and in llama.cpp's own.
_OPENAI = "/v1/completions"
_NATIVE = ("/completion", "/completions")

#: Who owns the models, as `/v1/models` has it.
_OWNERS = {
    "llamacpp": "llama.cpp",
    "me": "llama-cpp-python",
    "library": "ollama",
    "vllm": "vllm",
}

#: What a server is asked to see whether it starts from an empty prompt.
_PROBE = {"prompt": "", "max_tokens": 1}


class HealingProxy:
    """An ASGI app in front of one server.

    Args:
        index: of the served model's vocabulary.
        relay: to the server behind.
        server: its kind, if that is known; else its list of models says so.
        model: heal only requests that name this model.
        asked_only: heal only requests that ask for it.
        compared: whether the server's tokenizer was found to be ours; else the first request asks.

    `/metrics` has the server's own metrics, where it has some, and those of healing.
    """

    def __init__(
        self,
        index: SortedVocabulary,
        relay: Relay,
        *,
        server: Server | None = None,
        model: str | None = None,
        asked_only: bool = False,
        compared: bool = False,
    ) -> None:
        self._index = index
        self._relay = relay
        self._server = server
        self._known: Server | None = None
        self._model = model
        self._asked_only = asked_only
        self._compared = compared
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._metrics = HealingMetrics(self._registry)
        self._log = AccessLog(logger, self._registry)
        # So many prompts are tokenized at once; more wait for their turn.
        self._turns = asyncio.Semaphore(2)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1011})
        else:
            send = self._log.watching(scope, send)
            if scope["method"] == "POST" and _form(scope["path"]) is not None:
                await self._complete(scope, receive, send)
            elif scope["method"] == "GET" and scope["path"] == "/metrics":
                await self._tell_metrics(scope, receive, send)
            else:
                await self._relay(scope, receive, send)

    async def _tell_metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, theirs = await self._relay.read("/metrics", _keys(scope))
        text = theirs.rstrip() + b"\n" if status == 200 and b"# TYPE" in theirs else b""
        text += generate_latest(self._registry)
        await Response(text, media_type="text/plain; version=0.0.4")(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await asyncio.to_thread(
                    cut, [0, b"a"], self._index
                )  # the index, before it is needed
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._relay.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = await read_up_to(receive, HEALED_BODY)
        if read is None:
            return
        begun = time.perf_counter()
        body, whole = read
        native = _form(scope["path"]) == "native"
        request: Message = {}
        found: list[TextAnswer] | str = "size"
        try:
            if whole:
                request, found = await self._plan(scope, body, native)
        except CharwiseError as error:
            self._metrics.note(Outcome("refused"), time.perf_counter() - begun)
            await refuse(str(error), scope, receive, send)
            return
        outcome = Outcome.of(found)
        self._metrics.note(outcome, time.perf_counter() - begun)
        send = telling(send, outcome)
        if not isinstance(found, str):
            # What is compressed cannot be read here.
            headers = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
            healed = {**scope, "headers": headers}
            form: Form = NativeForm(found[0]) if native else OpenAIForm(found)
            # As many bytes as the longest prompt, which llama.cpp tells again, can have in JSON.
            most = 2 * HEALED_BODY
            exchange = Exchange(self._relay, form, most=most, behind=self._relay.address)
            await exchange.answer(healed, receive, send)
            return
        if (plain := without_heal(request)) != request:
            body = json.dumps(plain).encode()
        as_it_came = Upstream(body, receive, more=not whole)
        await self._relay(as_it_came.scope(scope), as_it_came.receive, send)

    async def _plan(
        self, scope: Scope, body: bytes, native: bool
    ) -> tuple[Message, list[TextAnswer] | str]:
        async with self._turns:
            request = await asyncio.to_thread(parsed, body, LlamaCppRequest)
        if not request:
            return request, "malformed"
        named = request.get("model")
        if self._model is not None and named != self._model:
            return request, "model"
        server = await self._find_server(scope)  # may wait for a busy server: not in a turn
        async with self._turns:
            return request, await asyncio.to_thread(
                plan, request, self._index, server, native=native, asked_only=self._asked_only
            )

    async def _find_server(self, scope: Scope) -> Server:
        """The kind of the server behind; it is asked until it tells."""
        if self._known is not None:
            return self._known
        headers = _keys(scope)
        found = self._server or _server_of((await self._relay.ask("/v1/models", headers))[1])
        status = 200
        if found.why_not is None:
            status, answer = await self._relay.ask("/v1/completions", headers, _PROBE)
            found = replace(found, starts=_starts(answer))
        if found.name != "unknown" and status not in (0, 401, 403, 503):  # else ask again
            self._known = found = await self._with_tokenizer(found, headers)
            logger.info("the server behind is %s", found.name)
        return found

    async def _with_tokenizer(self, server: Server, headers: Headers) -> Server:
        """The server; one that heals nothing if it has another tokenizer than we."""
        if self._compared or server.why_not is not None:
            return server
        try:
            self._compared = await has_tokenizer(self._relay, self._index.vocabulary, headers)
        except SettingError as error:
            logger.error("nothing is healed: %s", error)
            return replace(server, why_not=OTHER_TOKENIZER)
        return server


def _keys(scope: Scope) -> Headers:
    """The client's keys, for questions of our own."""
    return [pair for pair in scope["headers"] if pair[0] in (b"authorization", b"x-api-key")]


def _form(path: str) -> str | None:
    """Which form the requests of a path have, if it is one for completions.

    >>> _form("/v1/completions"), _form("/completion"), _form("/v1/chat/completions")
    ('openai', 'native', None)
    """
    if path.endswith(_OPENAI):
        return "openai"
    return "native" if path in _NATIVE else None


def _starts(answer: Any) -> bool:
    """Whether the answer to `_PROBE` was written after a start token.

    >>> _starts({"usage": {"prompt_tokens": 1}}), _starts({"usage": {"prompt_tokens": 0}})
    (True, False)
    """
    usage = answer.get("usage") if isinstance(answer, Mapping) else None
    counted = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    return isinstance(counted, int) and counted > 0


def _server_of(models: Any) -> Server:
    """The kind of server that lists its models so.

    >>> _server_of({"data": [{"id": "m", "owned_by": "llamacpp"}]}).name, _server_of([]).name
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
