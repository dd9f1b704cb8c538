"""Token healing in front of vLLM's completions and chat: clients change nothing.

    vllm serve … --middleware charwise.processors.vllm.middleware.HealingMiddleware

Each prompt is cut where healing should start; vLLM gets the token ids that are kept and, as
`charwise_forced`, the bytes that were given back (`charwise.processors.vllm` makes it reproduce
them); the client gets what lies beyond its prompt. A list of prompts becomes one call for each,
since each has a text of its own to force. Everything about the answer is read off token ids.

What cannot be healed goes through as it came, unless the request asks for healing with
`"charwise_heal": "auto"` (or "word", or a number of tokens), which may also stand in `vllm_xargs`:
then it is an error.
"off" turns healing off, "exact" conditions instead of masking (`exact_answers`). The header
`x-charwise` of an answer says which it was.

Requests come here before vLLM has looked at them, so that nothing is done for one without the
server's key; bodies are read up to `HEALED_BODY` bytes; and prompts are tokenized by two threads,
away from the event loop, by a call that does not hold the interpreter's lock.

vLLM's `/metrics` counts what was healed, in one API server's process or in all.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as Event

from charwise.api.http import Result, admits, read_up_to, while_connected
from charwise.api.limits import HEALED_BODY
from charwise.api.request import HEAL, heal_rule, is_long_and_of_ids, parsed, without_heal
from charwise.api.writer import Message
from charwise.errors import CharwiseError
from charwise.processors.openai.answer import Answer
from charwise.processors.openai.exchange import Exchange, OpenAIForm, end_with_client
from charwise.processors.openai.metrics import HealingMetrics
from charwise.processors.openai.upstream import Outcome, Upstream, refuse, telling
from charwise.processors.vllm import chat, exact_answers, openai_request
from charwise.processors.vllm.logits_processor import why_not
from charwise.processors.vllm.prompts import served
from charwise.processors.vllm.settings import Limits, Settings, whether
from charwise.processors.vllm.structured import constraint

logger = logging.getLogger("vllm.charwise")  # where VLLM_LOGGING_LEVEL counts

_METRICS = HealingMetrics()

_COMPLETIONS = "/v1/completions"
_CHAT = "/v1/chat/completions"


class HealingMiddleware:
    """ASGI middleware that heals the prompts of completion requests.

    An engine that cannot heal (`charwise.processors.vllm.why_not`) does not start with it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._settings = Settings()
        self._threads = ThreadPoolExecutor(2, "charwise")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._start(scope, receive, send)
            return
        if scope["type"] == "http" and scope["method"] == "POST":
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            if path in (_COMPLETIONS, _CHAT) and self._admits(scope):
                await self._answer(path, scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _start(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Make the index before the first request; refuse to start where nothing would heal."""
        config = scope["app"].state.vllm_config
        try:
            self._settings = Settings.read()
            reason = why_not(config)
            await asyncio.to_thread(served, config.model_config)
        except CharwiseError as error:
            reason = str(error)
        if reason is None:
            await self._app(scope, receive, send)
        else:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": reason})

    def _admits(self, scope: Scope) -> bool:
        from vllm import envs

        accepted = _keys(getattr(scope["app"].state, "args", None), envs.VLLM_API_KEY)
        return admits(scope["headers"], accepted)

    async def _answer(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        read = await read_up_to(receive, HEALED_BODY)
        if read is None:
            return
        body, whole = read
        begun = time.perf_counter()
        request: Message = {}
        found: list[Answer] | str = "size"
        try:
            if whole and path == _CHAT:
                request, found = await self._plan_chat(scope, body)
            elif whole:
                request, found = await self._away(lambda: self._plan(scope, body))
            outcome = Outcome.of(found)
            if exact_answers.is_wanted(request) and not isinstance(found, str):
                outcome = outcome._replace(method="exact")
                state, headers = scope["app"].state, scope["headers"]
                asked = exact_answers.draw(state, request, found, headers)
                drawn = await while_connected(receive, asked)
                if drawn is None:
                    return
                found = drawn
        except CharwiseError as error:
            self._note(Outcome("refused"), begun)
            await refuse(str(error), scope, receive, send)
            return
        self._note(outcome, begun)
        if (plain := without_heal(request)) != request:
            body = json.dumps(plain).encode()
        if isinstance(found, str):
            await self._pass(scope, Upstream(body, receive, more=not whole), send, outcome)
            return
        exchange = Exchange(self._app, OpenAIForm(found), tells_refusals=False)
        if not await exchange.answer(scope, receive, telling(send, outcome)):
            await self._refused(scope, receive, send, request, body)

    async def _pass(self, scope: Scope, as_it_came: Upstream, send: Send, outcome: Outcome) -> None:
        """Hand a request on, and its answer back with the header, errors of any kind included.

        What vLLM does not expect is answered outside of all middleware: by its handler, which is
        asked for here.
        """
        tells = telling(send, outcome)
        started = False

        async def note(message: Event) -> None:
            nonlocal started
            started = True
            await tells(message)

        try:
            await self._app(as_it_came.scope(scope), as_it_came.receive, note)
        except Exception as error:
            answers = getattr(scope["app"], "exception_handlers", {}).get(Exception)
            if answers is not None and not started:
                from starlette.requests import Request

                response = await answers(Request(scope), error)
                await response(scope, as_it_came.receive, tells)
            raise

    async def _refused(
        self, scope: Scope, receive: Receive, send: Send, request: Message, body: bytes
    ) -> None:
        """vLLM refused the healed request: asked for the client's own, it gives the reason.

        What was made of it has other numbers than the client knows, and its constraints begin with
        text that is not theirs. A request that is refused only so is not healed; if it asks for
        that, it is an error.
        """
        outcome = Outcome("structured-output" if constraint(request) else "refused")
        if heal_rule(request) is None:
            await self._pass(scope, Upstream(body, receive), send, outcome)
            return
        call = Upstream(body)
        task = asyncio.create_task(call.run(self._app, scope, one_of_many=False))
        watch = asyncio.create_task(end_with_client(receive, [call]))
        try:
            await call.started.wait()
            if call.status is None:
                await task  # raises what vLLM raised
            if call.status == 200:
                message = "this request cannot be healed: vLLM refuses it with the forced text."
                await refuse(message, scope, receive, send)
            elif not watch.done():
                await call.relay(telling(send, Outcome("refused")))
        finally:
            watch.cancel()
            call.gone.set()
            await asyncio.gather(task, return_exceptions=True)

    def _plan(self, scope: Scope, body: bytes) -> tuple[Message, list[Answer] | str]:
        if is_long_and_of_ids(body):
            return {}, "prompt"
        request = parsed(body)
        if not request:
            return request, "malformed"
        config = scope["app"].state.vllm_config
        reason = whether(request, self._settings, _model(scope, request))
        if reason is not None:
            return request, reason
        return request, openai_request.plan(served(config.model_config), Limits.of(config), request)

    async def _plan_chat(self, scope: Scope, body: bytes) -> tuple[Message, list[Answer] | str]:
        if b"continue_final_message" not in body and HEAL.encode() not in body:
            return {}, "chat"  # most are: not worth reading
        request = await self._away(lambda: parsed(body))
        if not request:
            return request, "malformed"
        state = scope["app"].state
        model, limits = served(state.vllm_config.model_config), Limits.of(state.vllm_config)
        handler = getattr(state, "openai_serving_chat", None)
        parses = getattr(handler, "parser_cls", None) is not None
        reason = whether(request, self._settings, _model(scope, request))
        reason = reason or chat.before_rendering(request, parses)
        reason = reason or chat.out_of_bounds(request, limits, model.vocabulary.munch)
        if reason is not None:
            return request, reason
        ids = await chat.rendered(handler, request)
        if ids is None:
            return request, "messages"
        return request, await self._away(lambda: chat.plan(model, limits, request, ids))

    async def _away(self, work: Callable[[], Result]) -> Result:
        """Do work in one of two threads: more of them would keep the event loop from its turn."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _note(self, outcome: Outcome, begun: float) -> None:
        seconds = time.perf_counter() - begun
        _METRICS.note(outcome, seconds)
        logger.debug("charwise: %s; %.1f ms", outcome.header, 1000 * seconds)


def _keys(arguments: Any, variable: str | None) -> list[bytes]:
    """Return the keys that vLLM accepts: those of `--api-key`, else that of `VLLM_API_KEY`.

    vLLM adds middleware of `--middleware` outside its own, which checks the key. A request without
    the right one is handed on untouched, and vLLM refuses it.
    """
    named = getattr(arguments, "api_key", None)
    if isinstance(named, str):
        named = [named]
    return [key.encode() for key in named or [variable] if key]


def _model(scope: Scope, request: Message) -> str:
    """The name of the model that answers a request."""
    named = request.get("model")
    if isinstance(named, str) and named:
        return named
    arguments: Any = getattr(scope["app"].state, "args", None)
    served_names = getattr(arguments, "served_model_name", None) or [
        getattr(arguments, "model", "")
    ]
    return str(served_names if isinstance(served_names, str) else served_names[0])
