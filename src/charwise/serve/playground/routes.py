"""The routes of the page: its files, and what it asks for, as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from charwise.char_lm import CharLM
from charwise.cursor.state import State
from charwise.errors import CharwiseError
from charwise.serve.playground.views import (
    covering_view,
    next_view,
    surprisal_view,
    tokens_view,
)
from charwise.serve.playground.walk import completions_view, walk_view

#: Characters of a text that the page may ask about.
MOST = 8_000

_FILES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "panels.js": "text/javascript; charset=utf-8",
    "tree.js": "text/javascript; charset=utf-8",
    "walk.js": "text/javascript; charset=utf-8",
}

#: Nothing of the page comes from elsewhere, or goes there; no text becomes markup or script.
_SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

#: A function of the model, run where the model is.
Run = Callable[[Callable[[CharLM], dict[str, Any]]], Awaitable[dict[str, Any]]]


class Text(BaseModel):
    """What the page sends."""

    text: str = Field(max_length=MOST)


def mount(app: FastAPI, run: Run, state_of: Callable[[CharLM, bytes], State]) -> None:
    """Add the page at `/`, and what it asks for below `/playground`, to an app.

    Args:
        app: of the server.
        run: calls a function of the model on the thread that has it, and awaits the result.
        state_of: the state after a text, on that thread; one that is near is known already.
    """
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def page() -> Response:
        return _file("index.html")

    @router.get("/playground/{name}")
    async def file(name: str) -> Response:
        return _file(name)

    async def view(text: Text, made: Callable[[CharLM, bytes], dict[str, Any]]) -> Response:
        raw = text.text.encode("utf-8", "replace")  # half an emoji is what a browser may send
        try:
            return JSONResponse(await run(lambda lm: made(lm, raw)))
        except CharwiseError as error:
            return JSONResponse({"error": {"message": str(error)}}, 400)

    @router.post("/playground/look")
    async def look(text: Text) -> Response:
        return await view(text, lambda lm, raw: _look(lm, raw, state_of(lm, raw)))

    @router.post("/playground/complete")
    async def complete(text: Text) -> Response:
        return await view(text, lambda lm, raw: completions_view(lm, raw, state_of(lm, raw)))

    @router.post("/playground/surprisal")
    async def surprisal(text: Text) -> Response:
        return await view(text, surprisal_view)

    @router.post("/playground/walk")
    async def walk(text: Text) -> Response:
        return await view(text, walk_view)

    app.include_router(router)


def _look(lm: CharLM, raw: bytes, state: State) -> dict[str, Any]:
    """What changes with every key."""
    return {
        **tokens_view(lm, raw),
        "next": next_view(state),
        "covering": covering_view(state) if raw else None,
    }


def _file(name: str) -> Response:
    if name not in _FILES:
        raise HTTPException(404, f"there is no {name!r}.")
    content = files("charwise.serve.playground").joinpath("page", name).read_bytes()
    return Response(content, media_type=_FILES[name], headers=_SAFE)
