"""The routes of the page: its files, and its data as JSON."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from charwise.api.errors import Refused
from charwise.api.http import json_response
from charwise.char_lm import CharLM
from charwise.cursor.state import State
from charwise.serve.http import answered, read
from charwise.serve.playground.steps import completions_view, steps_view
from charwise.serve.playground.views import (
    covering_view,
    next_view,
    surprisal_view,
    tokens_view,
)
from charwise.serve.server import Server

_FILES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "panels.js": "text/javascript; charset=utf-8",
    "tree.js": "text/javascript; charset=utf-8",
    "steps.js": "text/javascript; charset=utf-8",
}

#: Paths that a browser opens by itself, and can show no key for: what they ask for needs it.
PAGES = frozenset({"/", *(f"/playground/{name}" for name in _FILES)})

#: Nothing of the page comes from elsewhere, or goes there; no text becomes markup or script.
_SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class _Text(BaseModel):
    """The request of the page."""

    text: str = Field(max_length=8_000)


def router(server: Server) -> APIRouter:
    """Return the routes of the page at `/`, and of its data below `/playground`."""
    routes = APIRouter()

    def state_of(lm: CharLM, raw: bytes) -> State:
        return server.completions.memory.after(*lm.vocabulary.split_prompt(raw)).state

    async def view(request: Request, made: Callable[[CharLM, bytes], dict[str, Any]]) -> Response:
        body = await read(request, server, _Text)
        raw = body.text.encode("utf-8", "replace")  # half an emoji is what a browser may send
        found = server.run(lambda lm: made(lm, raw), typed=True)
        return json_response(await answered(request, found))

    @routes.get("/")
    async def page() -> Response:
        return _file("index.html")

    @routes.get("/playground/{name}")
    async def file(name: str) -> Response:
        return _file(name)

    @routes.post("/playground/look")
    async def look(request: Request) -> Response:
        return await view(request, lambda lm, raw: _look(lm, raw, state_of(lm, raw)))

    @routes.post("/playground/complete")
    async def complete(request: Request) -> Response:
        return await view(request, lambda lm, raw: completions_view(lm, raw, state_of(lm, raw)))

    @routes.post("/playground/surprisal")
    async def surprisal(request: Request) -> Response:
        return await view(request, surprisal_view)

    @routes.post("/playground/steps")
    async def steps(request: Request) -> Response:
        return await view(request, steps_view)

    return routes


def _look(lm: CharLM, raw: bytes, state: State) -> dict[str, Any]:
    """Return the data that change with every key."""
    return {
        **tokens_view(lm, raw),
        "next": next_view(state),
        "covering": covering_view(state) if raw else None,
    }


def _file(name: str) -> Response:
    if name not in _FILES:
        raise Refused(404, f"there is no page {name!r}.")
    content = files("charwise.serve.playground").joinpath("page", name).read_bytes()
    return Response(content, media_type=_FILES[name], headers=_SAFE)
