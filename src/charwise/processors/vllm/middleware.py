"""Token healing in front of vLLM's `/v1/completions`: clients change nothing.

    vllm serve … --middleware charwise.processors.vllm.middleware.HealingMiddleware

Each prompt is cut where healing should start; vLLM gets the token ids that are kept and, as
`charwise_forced`, the bytes that were given back (`charwise.processors.vllm` makes it reproduce
them); the client gets what lies beyond its prompt. A list of prompts becomes one call for each,
since each has a text of its own to force. Everything about the answer is read off token ids.

What cannot be healed goes through as it came, unless the request asks for healing with
`"vllm_xargs": {"charwise_heal": "auto"}` (or "word", or a number of tokens): then it is an error.
"off" turns healing off. Not handled: chat, whose template ends the prompt between two tokens.
"""

from __future__ import annotations

import asyncio
import json

from charwise.errors import CharwiseError
from charwise.processors.openai.asgi_call import Upstream
from charwise.processors.openai.exchange import (
    App,
    Message,
    Receive,
    Send,
    exchange,
    read,
    send_error,
)
from charwise.processors.openai.request import HEAL, parsed
from charwise.processors.vllm.logits_processor import why_not
from charwise.processors.vllm.openai_request import plan, without_heal
from charwise.processors.vllm.prompts import served


class HealingMiddleware:
    """ASGI middleware that heals the prompts of completion requests.

    An engine that cannot heal (`charwise.processors.vllm.why_not`) does not start with it.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._start(scope, receive, send)
        elif (
            scope["type"] == "http"
            and scope["method"] == "POST"
            and scope["path"].endswith("/v1/completions")
        ):
            await self._complete(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _start(self, scope: Message, receive: Receive, send: Send) -> None:
        """Make the index before the first request; refuse to start where nothing would heal."""
        config = scope["app"].state.vllm_config
        try:
            reason = why_not(config)
            await asyncio.to_thread(served, config.model_config)
        except CharwiseError as error:
            reason = str(error)
        if reason is None:
            await self._app(scope, receive, send)
        else:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": reason})

    async def _complete(self, scope: Message, receive: Receive, send: Send) -> None:
        body = await read(receive)
        request = parsed(body)
        try:
            config = scope["app"].state.vllm_config
            answers = await asyncio.to_thread(plan, config, request) if request else []
        except CharwiseError as error:
            await send_error(send, 400, str(error))
            return
        if answers:
            await exchange(self._app, scope, receive, send, answers)
            return
        if HEAL in (request.get("vllm_xargs") or ()):
            body = json.dumps(without_heal(request)).encode()
        as_it_came = Upstream(body, receive)
        await self._app(as_it_came.scope(scope), as_it_came.receive, send)
