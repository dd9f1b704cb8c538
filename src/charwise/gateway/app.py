"""The gateway: an ASGI app that heals completion requests, and hands everything else on.

    charwise gateway http://localhost:8000

A healed request becomes two. The first draws a member under an expression: the tokens that write
the end of the prompt again, as the model prefers them. The second is the client's own request
behind the member. A request that cannot be healed goes through as it came. The header
`x-charwise` says which it was, and why.
"""

import asyncio
import codecs
import json
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import httpx
from pydantic_core import from_json
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from charwise.api.errors import HTTPError
from charwise.api.http import (
    Headers,
    json_response,
    read_body,
    refusal,
    stream_response,
    while_connected,
)
from charwise.api.writer import DONE, Message, event
from charwise.errors import CharwiseError, ModelError, SettingError
from charwise.gateway import plan
from charwise.gateway.answer import HealedAnswer
from charwise.gateway.plan import Call, DrawnMember, Healing, Unhealed
from charwise.gateway.relay import Relay
from charwise.gateway.server import Server, recognize
from charwise.healing.forced import HealedPrompt
from charwise.tokens.index import SortedVocabulary

logger = logging.getLogger("charwise.gateway")

#: The most bytes of a request's body.
_MAX_BODY = 2**26

#: The header that says what became of a request, and the field that says where to heal.
_HEADER, _FIELD = b"x-charwise", "token_healing"

#: What a server raises that is gone, or silent, or writes no JSON.
_UNANSWERED = (httpx.HTTPError, json.JSONDecodeError, UnicodeDecodeError)

#: Headers of an answer that are not those of another body.
_OF_THE_BODY = (b"content-length", b"content-encoding")


class _Gateway:
    """An ASGI app in front of one server, whose model takes `window` tokens."""

    def __init__(self, server: Server, window: int) -> None:
        self._server, self._relay, self._window = server, server.relay, window
        self._counts: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await self._relay.close()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1011})
        elif scope["method"] == "GET" and scope["path"] == "/metrics":
            await self._metrics(scope, receive, send)
        else:
            try:
                body = await read_body(receive, _MAX_BODY)
            except HTTPError as refused:
                await refusal(refused)(scope, receive, send)
                return
            if body is None:
                return
            path = scope["path"] if scope["method"] == "POST" else ""
            if path in plan.FORMS:
                await self._complete(scope, receive, send, body)
            else:
                other = [(_HEADER, b"off; reason=endpoint")] * path.endswith("/completions")
                await self._relay(scope, receive, send, body, *other)

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        text = await self._relay.text("/metrics", scope["headers"])
        name = "charwise_gateway_requests_total"
        lines = [text.rstrip()] * bool(text)
        lines += [f"# HELP {name} Completion requests, by outcome.", f"# TYPE {name} counter"]
        lines += [f'{name}{{outcome="{word}"}} {n}' for word, n in sorted(self._counts.items())]
        await PlainTextResponse("\n".join([*lines, ""]))(scope, receive, send)

    async def _complete(self, scope: Scope, receive: Receive, send: Send, body: bytes) -> None:
        try:
            request = _parsed(body)
            rule = request.get(_FIELD)
            if _FIELD in request:  # the server does not know it
                del request[_FIELD]
                body = json.dumps(request).encode()
            healing = Healing.of(plan.FORMS[scope["path"]], request, rule, self._server.kind)
            response = await while_connected(receive, self._healed(healing, scope))
        except Unhealed as reason:
            self._counts[str(reason)] += 1
            off = (_HEADER, f"off; reason={reason}".encode())
            await self._relay(scope, receive, send, body, off)
            return
        except HTTPError as refused:
            response = refusal(refused, (_HEADER, b"off; reason=token_healing"))
        except _UNANSWERED as error:
            self._counts["unanswered"] += 1
            response = refusal(self._relay.refused(error), (_HEADER, b"off; reason=unanswered"))
        if response is not None:
            await response(scope, receive, send)

    async def _healed(self, healing: Healing, scope: Scope) -> ASGIApp:
        """The answer to a request that may be healed; `Unhealed` if it goes through as it came."""
        headers: Headers = scope["headers"]
        try:
            prompts = await self._prompts(healing, headers)
        except CharwiseError as error:
            logger.debug("not healed: %s", error)
            raise Unhealed("prompt") from None
        if not any(prompt.forced for prompt in prompts):
            raise Unhealed("nothing-to-heal")
        count, sampling = healing.sampling(self._server.kind)

        async def members(prompt: HealedPrompt) -> list[DrawnMember]:
            if not prompt.forced:
                return [DrawnMember((), "", ())]
            return await self._server.draw(prompt, count, sampling, headers)

        per_prompt = await asyncio.gather(*map(members, prompts))
        calls = [
            call
            for number, (prompt, some) in enumerate(zip(prompts, per_prompt, strict=True))
            for call in healing.calls(self._server.kind, number * healing.samples, prompt, some)
        ]
        self._counts["healed"] += 1
        removed = sum(prompt.removed_tokens for prompt in prompts)
        forced = sum(len(prompt.forced) for prompt in prompts)
        header = f"healed; removed-tokens={removed}; forced-bytes={forced}".encode()
        path = "/completion" if healing.form == "infill" else scope["path"]
        return await self._answered(healing, path, calls, headers, header)

    async def _prompts(self, healing: Healing, headers: Headers) -> list[HealedPrompt]:
        index, request = self._server.index, healing.request
        if healing.form == "infill":
            room = self._window - (healing.max_tokens or 0)
            return [await asyncio.to_thread(healing.cut_infill, index, room)]
        if healing.form == "chat":
            texts: list[Any] = [""]
        else:
            prompt = request.get("prompt")
            several = isinstance(prompt, list) and healing.form == "completions"
            texts = list(prompt or ()) if several else [prompt]
            if not texts or not all(isinstance(text, str) and text for text in texts):
                raise Unhealed("prompt")
            longest = self._window * self._server.index.vocabulary.max_token_bytes
            if any(len(text) > longest for text in texts):
                raise Unhealed("too-long")
            if len(texts) * healing.samples > 64:
                raise Unhealed("several")
        prompts = []
        for text in texts:
            if healing.form == "chat":
                ids = await self._server.chat_ids(request, headers)
            else:
                ids = await self._server.ids(text, headers, healing.specials)
            prompts.append(await asyncio.to_thread(healing.cut, ids, index))
        return prompts

    async def _answered(
        self, healing: Healing, path: str, calls: Sequence[Call], headers: Headers, header: bytes
    ) -> ASGIApp:
        """The answer to the second requests: the server's own, or its refusal."""
        async with AsyncExitStack() as stack:
            streams = [self._relay.stream(path, headers, call.body) for call in calls]
            opened = await asyncio.gather(*map(stack.enter_async_context, streams))
            pairs = [
                pair for pair in self._relay.headers_of(opened[0]) if pair[0] not in _OF_THE_BODY
            ]
            for response in opened:
                if response.status_code != 200:
                    refused = Response(await response.aread(), response.status_code)
                    refused.raw_headers += [*pairs, (_HEADER, b"off; reason=refused")]
                    return refused
            answer = HealedAnswer(healing, calls)
            pairs.append((_HEADER, header))
            if healing.request.get("stream"):
                marked = healing.form in ("completions", "chat")
                parts = self._stream(stack.pop_all(), opened, answer, DONE if marked else b"")
                return stream_response(parts, 200, pairs)
            contents = await asyncio.gather(*(response.aread() for response in opened))
            return json_response(answer.whole([json.loads(each) for each in contents]), 200, pairs)

    async def _stream(
        self,
        stack: AsyncExitStack,
        responses: Sequence[httpx.Response],
        answer: HealedAnswer,
        mark: bytes,
    ) -> AsyncIterator[bytes]:
        """The events of several streams as one: one after the other."""
        async with stack:
            try:
                for number, response in enumerate(responses):
                    async for each in _events(response):
                        if not each.startswith(b"data:"):
                            yield each + b"\n\n"
                        elif not each.endswith(b"[DONE]"):
                            chunk = json.loads(each.removeprefix(b"data:"))
                            message = chunk if "error" in chunk else answer.chunk(number, chunk)
                            if message is not None:
                                yield event(message)
            except (httpx.HTTPError, ValueError) as error:  # gone, or silent, or no JSON
                yield event(self._relay.refused(error).body)
                return
            yield mark


async def connect(
    address: str,
    read_index: Callable[[str], SortedVocabulary],
    *,
    server: str = "auto",
    tokenizer: str | None = None,
    headers: Headers = (),
    seconds: float = 600.0,
) -> ASGIApp:
    """The gateway, once the server is found to be fit for it.

    Args:
        address: of the server.
        read_index: reads the tokenizer that a name stands for.
        server: the name of its kind; "auto" asks it.
        tokenizer: the name of its tokenizer; by default what the server says.
        headers: with the key that the server wants, if any.
        seconds: how long the server may say nothing.
    """
    asking = Relay(address, min(60.0, seconds))
    try:
        kind, about = await recognize(asking, server, headers)
        name = tokenizer or about["tokenizer"]
        if not name:
            raise SettingError("the server does not say which tokenizer it has: give --tokenizer.")
        try:
            index = await asyncio.to_thread(read_index, name)
        except CharwiseError as error:
            if tokenizer:
                raise
            raise ModelError(
                f"no tokenizer for the server's model: {error} (--tokenizer)"
            ) from None
        behind = Server(asking, kind, index)
        await behind.compare(headers, about["model"])
        await behind.check_forcing(headers, about["model"])
    except httpx.HTTPError as error:
        why = str(error).rstrip(".") or type(error).__name__
        raise ModelError(f"no server answers at {asking.address}: {why}.") from None
    finally:
        await asking.close()
    behind.relay = Relay(address, seconds)  # its connections belong to another event loop
    return _Gateway(behind, about["window"] or 2**16)


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """The events of a stream, as they come."""
    rest = b""
    async for part in response.aiter_bytes():
        *events, rest = re.split(rb"\r?\n\r?\n", rest + part)
        for each in events:
            yield each


def _parsed(body: bytes) -> Message:
    """A request; what is no JSON object goes through: the server itself will say so."""
    try:  # pydantic refuses half a surrogate pair, which is no text
        request = from_json(body.removeprefix(codecs.BOM_UTF8))
    except ValueError:
        request = None
    if not isinstance(request, dict):
        raise Unhealed("malformed")
    return request
