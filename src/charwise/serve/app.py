"""The server: every dialect's routes around one model.

    charwise serve
    uvicorn.run(application(charwise.load(), Settings()))

Errors are told in the form of the dialect (`http.py`). `_Gate` settles who may ask before a body is
read: the key, the page that asks, and the name under which the server is asked. Starlette's CORS
lets pages of allowed origins read answers.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from charwise.api.errors import Refused, refusal_of
from charwise.api.http import admits
from charwise.char_lm import CharLM
from charwise.errors import CharwiseError, ZeroProbabilityError
from charwise.serve import llama_cpp, openai, probabilities
from charwise.serve.http import refused
from charwise.serve.playground import routes
from charwise.serve.playground.routes import PAGES
from charwise.serve.server import Counting, Server, Settings
from charwise.serve.work import CLIENT

logger = logging.getLogger("charwise.serve")

#: Answered without a key, so that whoever starts servers can see that this one runs.
OPEN = frozenset({"/health"})


class _Gate:
    """An ASGI middleware that refuses clients that may not ask.

    A web page of another origin is refused unless `settings.allow_origins` has it. Starlette's CORS
    would answer it, and only keep the page from reading the answer. A server on the loopback
    interface is asked under its own names, since a page could have made another name point here;
    Starlette's check of hosts reads no IPv6 addresses.

    Args:
        app: the application behind it.
        settings: of the server.
        pages: paths of pages that browsers open, which can show no key; their requests must.
    """

    def __init__(
        self, app: ASGIApp, settings: Settings, pages: frozenset[str] = frozenset()
    ) -> None:
        self._app = app
        self._settings = settings
        self._keys = [settings.api_key.encode()] if settings.api_key else []
        self._open = OPEN | pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or hand it on."""
        if scope["type"] == "http":
            try:
                self._check(scope)
            except Refused as found:
                await refused(scope["path"], found)(scope, receive, send)
                return
            CLIENT.set(_client_of(scope, self._settings))
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        origin = headers.get(b"origin", b"").decode("latin-1")
        host = headers.get(b"host", b"").decode("latin-1")
        hosts = self._settings.hosts
        if hosts is not None and _name(host) not in hosts:
            raise Refused(
                403,
                f"this server is not asked under the name {host[:80]!r}: it listens on the "
                "loopback interface. Use 127.0.0.1, or start it with --host.",
            )
        if origin and not self._same(origin, headers) and not self._allowed(origin):
            shown = repr(origin[:80])
            logger.warning("refused a page of %s: --allow-origin %s allows it.", shown, shown)
            raise Refused(
                403, f"pages of {shown} may not ask: start the server with --allow-origin {shown}."
            )
        if scope["path"] in self._open:
            return
        if not admits(scope["headers"], self._keys):
            raise Refused(401, "the API key is missing or wrong: send `Authorization: Bearer KEY`.")

    def _same(self, origin: str, headers: dict[bytes, bytes]) -> bool:
        """Whether a page comes from this server itself."""
        try:
            name = urlsplit(origin).netloc
        except ValueError:  # no address: such as "http://["
            return False
        return name.encode("latin-1") == headers.get(b"host")

    def _allowed(self, origin: str) -> bool:
        allowed = self._settings.allow_origins
        return "*" in allowed or origin in allowed


def _client_of(scope: Scope, settings: Settings) -> str:
    """Return the client for whom a request waits: the key that it shows, else its address.

    A server that requires a key has a single one. All show it, so there the address counts.

    >>> asked = {"client": ("10.0.0.7", 5), "headers": [(b"authorization", b"Bearer ann")]}
    >>> _client_of(asked, Settings()), _client_of(asked, Settings(api_key="ann"))
    ('Bearer ann', '10.0.0.7')
    """
    shown = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    address: str = (scope.get("client") or ("",))[0]
    return shown if shown and not settings.api_key else address


def _name(host: str) -> str:
    """A Host header without its port.

    >>> _name("localhost:8000"), _name("[::1]:8000"), _name("127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def application(lm: CharLM, settings: Settings) -> FastAPI:
    """The app that serves a model; `app.state.server` is the `Server`.

    >>> import charwise
    >>> app = application(charwise.load(), Settings())
    >>> app.state.server.settings.name
    'charwise'
    >>> app.state.server.close()
    """
    server = Server(lm, settings)

    @asynccontextmanager
    async def live(_: FastAPI) -> AsyncIterator[None]:
        await server.run(_warm)
        try:
            yield
        finally:
            server.close()

    app = FastAPI(title="charwise", lifespan=live, openapi_url=None, docs_url=None, redoc_url=None)
    app.state.server = server
    paths = {"/metrics"}
    for dialect in (openai, llama_cpp, probabilities, routes):
        router = dialect.router(server)
        paths |= {one.path for one in router.routes if isinstance(one, APIRoute)}
        app.include_router(router)
    known = ", ".join(sorted(path for path in paths - PAGES if not path.startswith("/playground")))

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4")

    async def failed(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            paths = f" There are {known}." if error.status_code == 404 else ""
            found = Refused(error.status_code, f"{error.detail}: {request.url.path}.{paths}")
        else:
            found = refusal_of(error)
        return refused(request.url.path, found)

    for kind in (HTTPException, CharwiseError, ValidationError, Exception):
        app.add_exception_handler(kind, failed)
    app.add_middleware(_Gate, settings=settings, pages=PAGES)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.allow_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type"],
    )
    app.add_middleware(Counting, metrics=server.metrics)
    return app


def _warm(lm: CharLM) -> None:
    """Make the parts that are made once, before a request needs them."""
    with suppress(ZeroProbabilityError):  # a vocabulary of another alphabet
        lm.next("a")
