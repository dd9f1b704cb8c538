"""The server: every dialect's routes around one model."""

import logging
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from pydantic import Field, ValidationError, field_validator
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from charwise.api.errors import HTTPError, to_http_error
from charwise.api.http import json_response, refusal
from charwise.api.request import CheckedSettings
from charwise.char_lm import CharLM
from charwise.errors import CharwiseError, ZeroProbabilityError
from charwise.serve import inspect, llama_cpp, openai
from charwise.serve.engine import CLIENT, Engine

logger = logging.getLogger("charwise.serve")

_PAGE = Path(__file__).parent / "page"

#: Nothing of the page comes from elsewhere, or goes there; no text becomes markup or script.
_SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Settings(CheckedSettings):
    """The settings of a server, given when it starts.

    Attributes:
        max_queue: requests that may wait.
        seconds: that a request may wait, and then for its answer, once its prompt is read.
        allow_origins: web pages that may ask; "*" for all of them.
        hosts: names under which it may be asked; None for any.
    """

    name: str = "charwise"
    api_key: str | None = None
    max_queue: Annotated[int, Field(ge=1)] = 64
    seconds: Annotated[float, Field(gt=0)] = 10.0
    allow_origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] | None = None
    max_body_bytes: Annotated[int, Field(ge=1)] = 2**22

    @field_validator("allow_origins")
    @classmethod
    def _as_browsers_write_them(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """Take origins alone: no other text is ever one of a page."""
        plain = tuple(origin.rstrip("/").lower() for origin in origins)
        for origin in plain:
            if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#\s]+", origin):
                raise ValueError("takes SCHEME://HOST:PORT of each page, or *")
        return plain


def application(lm: CharLM, settings: Settings) -> FastAPI:
    """Return the app that serves a model; `app.state.engine` is its `Engine`."""
    engine = Engine(lm, max_waiting=settings.max_queue, seconds=settings.seconds)

    @asynccontextmanager
    async def live(_: FastAPI) -> AsyncIterator[None]:
        with suppress(ZeroProbabilityError):  # a vocabulary of another alphabet
            await engine.call(lambda lm: lm.next("a"))  # makes what is made once
        try:
            yield
        finally:
            engine.close()

    app = _App(title="charwise", version=version("charwise"), lifespan=live, redoc_url=None)
    app.state.engine = engine
    registry, requests = _metrics(engine)
    app.state.max_body_bytes = settings.max_body_bytes
    needs_key, name = [Depends(_key_check(settings.api_key))], settings.name
    dialects = openai.router(engine, name), llama_cpp.router(engine, name), inspect.router(engine)
    for routes in dialects:
        app.include_router(routes, dependencies=needs_key)

    @app.get("/health")
    async def health() -> Response:
        return json_response({"status": "ok"})

    @app.get("/metrics", dependencies=needs_key)
    async def show_metrics() -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

    # Browsers open the page by themselves, and can show no key: what it asks for needs one.
    @app.get("/")
    @app.get("/page/{name}", include_in_schema=False)
    async def page(name: str = "index.html") -> Response:
        if name not in {file.name for file in _PAGE.iterdir()}:
            raise HTTPException(404)
        return FileResponse(_PAGE / name, headers=_SAFE)

    async def failed(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            return refusal(to_http_error(error))
        why = f"{error.detail}: {request.url.path}."
        if error.status_code == 404:
            why += f" There are {', '.join(sorted(app.openapi()['paths']))}."
        answer = refusal(HTTPError(error.status_code, why))
        answer.headers.update(error.headers or {})  # the methods that a path allows
        return answer

    for kind in (HTTPException, CharwiseError, ValidationError, Exception):
        app.add_exception_handler(kind, failed)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.allow_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
    )
    app.add_middleware(_Door, settings=settings, requests=requests)
    return app


class _App(FastAPI):
    """The app; its OpenAPI document has the definitions of requests where references point."""

    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        shared = document.setdefault("components", {}).setdefault("schemas", {})
        for path in document["paths"].values():
            content = path.get("post", {}).get("requestBody", {}).get("content", {})
            for body in content.values():
                shared |= body["schema"].pop("$defs", {})
        return document


def _key_check(key: str | None) -> Any:
    """The check of a request's key, before its body is read."""
    bearer = HTTPBearer(auto_error=False)

    async def check(credentials: HTTPAuthorizationCredentials | None = Depends(bearer)) -> None:  # noqa: B008
        token = credentials.credentials if credentials is not None else ""
        if key and not secrets.compare_digest(token.encode(), key.encode()):
            why = "the API key is missing or wrong: send `Authorization: Bearer KEY`."
            raise HTTPError(401, why)

    return check


class _Door:
    """An ASGI middleware: it counts answers, refuses other pages, and says which client asks.

    A web page of another origin is refused unless `settings.allow_origins` has it: Starlette's CORS
    would answer it, and only keep the page from reading the answer. Its middleware for host names
    takes no address of IPv6.
    """

    def __init__(self, app: ASGIApp, settings: Settings, requests: Counter) -> None:
        self._app, self._settings, self._requests = app, settings, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = getattr(scope.get("route"), "path", "other")
                self._requests.labels(path, message["status"]).inc()
            await send(message)

        headers = Headers(scope=scope)
        origin, host = headers.get("origin", ""), headers.get("host", "")
        hosts, allowed, app = self._settings.hosts, self._settings.allow_origins, self._app
        name = re.fullmatch(r"\[?([^\[\]@]*?)\]?(:\d*)?", host.lower())
        # A page could have made another name point here.
        if hosts is not None and (name is None or name[1] not in hosts):
            why = (
                f"this server is not {host[:80]!r}: ask for it as {' or '.join(hosts)}, which a "
                "proxy must send as the header Host, or start it with another --host."
            )
            app = refusal(HTTPError(400, why))
        elif origin and not (origin.endswith(f"://{host}") or {"*", origin} & {*allowed}):
            named = repr(origin[:80])
            logger.warning("refused a page of %s: --allow-origin %s allows it.", named, named)
            why = f"pages of {named} may not ask: start the server with --allow-origin {named}."
            app = refusal(HTTPError(403, why))
        # The client is the key that it shows; where all must show the same one, its address.
        key = "" if self._settings.api_key else headers.get("authorization", "")
        CLIENT.set(key or (scope.get("client") or ("",))[0])
        await app(scope, receive, count)


#: The numbers of an engine that Prometheus is told, and what they are.
_NUMBERS = {
    "requests_waiting": "Requests that wait.",
    "requests_running": "Requests that share calls now.",
    "prompt_tokens_total": "Tokens of prompts, those of the cache included.",
    "generation_tokens_total": "Tokens of completions.",
    "remembered_total": "Completions answered from what was offered before.",
    "cut_total": "Requests that time ended.",
    "cancelled_total": "Requests whose client left.",
    "refused_total": "Requests refused since too many waited.",
    "model_seconds": "Seconds in model calls.",
    "model_calls": "Model calls.",
    "shared_calls": "Those of several requests.",
    "failed_shared_calls": "Shared calls that failed, and were made for each alone.",
    "states": "States kept.",
    "trees": "Token trees kept.",
    "kept_bytes": "Of what is kept.",
}


class _Numbers:
    """The numbers of an engine; those whose names say so are counters."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        numbers = self._engine.numbers()
        for name, text in _NUMBERS.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(f"charwise_{name}", text, value=numbers[name])


def _metrics(engine: Engine) -> tuple[CollectorRegistry, Counter]:
    """The metrics of one server, and among them the counter of requests."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)  # resident memory, CPU seconds
    registry.register(_Numbers(engine))
    buckets = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
    histogram = partial(Histogram, namespace="charwise", buckets=buckets, registry=registry)
    whole = histogram("completion_seconds", "From the model's turn to the end of an answer.")
    text = "From a request to the first text of its stream."
    engine.on_first_event = histogram("time_to_first_token_seconds", text).observe
    engine.on_answer = lambda answer: whole.observe(answer.seconds)
    labels = ["path", "status"]
    return registry, Counter("charwise_requests", "Requests answered.", labels, registry=registry)
