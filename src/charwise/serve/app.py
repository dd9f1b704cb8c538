"""The server: every dialect's routes around one model.

    charwise serve
    uvicorn.run(application(charwise.load(), Settings()))

Errors are told in the form of the dialect (`http.py`). `gate.py` settles who may ask before a body
is read; Starlette's CORS lets pages of allowed origins read answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from charwise.api.errors import Refused, refusal_of
from charwise.char_lm import CharLM
from charwise.errors import CharwiseError, ZeroProbabilityError
from charwise.serve import llama_cpp, ollama, openai, probabilities
from charwise.serve.gate import Gate
from charwise.serve.http import Warnings, refused
from charwise.serve.metrics import Counting
from charwise.serve.playground import routes
from charwise.serve.playground.routes import PAGES
from charwise.serve.server import Server, Settings


def application(lm: CharLM, settings: Settings) -> FastAPI:
    """The app that serves a model; `app.state.server` is the `Server`.

    >>> import charwise
    >>> app = application(charwise.load(), Settings())
    >>> app.state.server.settings.mode
    'exact'
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
    for dialect in (openai, llama_cpp, ollama, probabilities, routes):
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
    app.add_middleware(Warnings)
    app.add_middleware(Gate, settings=settings, pages=PAGES)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.allow_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type"],
        expose_headers=["warning"],
    )
    app.add_middleware(Counting, metrics=server.metrics)
    return app


def _warm(lm: CharLM) -> None:
    """Make the parts that are made once, before a request needs them."""
    with suppress(ZeroProbabilityError):  # a vocabulary of another alphabet
        lm.next("a")
