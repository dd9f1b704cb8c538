"""A WebSocket for editors: a document that is edited, and completions that keep up with it.

Messages are JSON objects. A client sends

    {"type": "open", "text": "import nu"}
    {"type": "insert", "at": 9, "text": "m"}          offsets count Unicode characters
    {"type": "delete", "at": 9, "count": 1}
    {"type": "complete", "id": 7, "at": 9, "n": 3, "until": "line", …}

and is answered, to `open` and each edit, {"type": "edited", "version": 2, "characters": 9}, and to
`complete` either {"type": "completions", "id": 7, "version": 2, "choices": […], …} or, once an
edit or another `complete` came after it, {"type": "cancelled", "id": 7}. What is wrong with a
message is said in {"type": "error", "id": …, "error": {…}}, and the session goes on.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any, Literal

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import Field

from charwise.serve.asked import Answer, Asked, Candidate
from charwise.serve.bodies import Body
from charwise.serve.refusals import Refused, body_of, refusal_of
from charwise.serve.server import Server

Message = dict[str, Any]

#: The path of sessions, and the characters of all documents that are open in them.
PATH, MOST_OPEN = "/v1/session", 2**26


class Open(Body):
    """Begin with a text, in place of what was open."""

    type: Literal["open"]
    text: str = ""


class Insert(Body):
    """Insert a text."""

    type: Literal["insert"]
    at: int = Field(ge=0)
    text: str


class Delete(Body):
    """Delete characters."""

    type: Literal["delete"]
    at: int = Field(ge=0)
    count: int = Field(ge=0)


class Complete(Body):
    """Ask for completions at an offset."""

    type: Literal["complete"]
    at: int = Field(ge=0)
    id: int | str | None = None
    n: int = 1
    max_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    seconds: float | None = None
    infill: bool = True


_KINDS: dict[str, type[Open | Insert | Delete | Complete]] = {
    "open": Open,
    "insert": Insert,
    "delete": Delete,
    "complete": Complete,
}


def router(server: Server) -> APIRouter:
    """The route of sessions."""
    routes = APIRouter()

    @routes.websocket(PATH)
    async def session(socket: WebSocket) -> None:
        await socket.accept()
        one = Session(server, socket)
        try:
            await one.run()
        except WebSocketDisconnect:
            pass
        finally:
            server.open_characters -= one.characters
            await one.cancel(tell=False)

    return routes


class Session:
    """One connection, and the document that it edits.

    Args:
        server: what answers.
        socket: the connection.
    """

    def __init__(self, server: Server, socket: WebSocket) -> None:
        self._server = server
        self._socket = socket
        self._text = ""
        self._version = 0
        self._asked: asyncio.Task[None] | None = None
        self._id: int | str | None = None
        self._sending = asyncio.Lock()

    @property
    def characters(self) -> int:
        """Of the document."""
        return len(self._text)

    async def run(self) -> None:
        """Take messages until the client leaves."""
        while True:
            raw = await self._socket.receive()
            if raw["type"] == "websocket.disconnect":
                return
            data = raw.get("text") or (raw.get("bytes") or b"")
            id_ = None
            try:
                found = _object(data, self._server.settings.most_body)
                id_ = _id(found)
                message = _message(found, data)
                await self.cancel()
                await self._take(message)
            except Exception as error:  # told to the client: the session goes on
                await self._send(_error(id_, refusal_of(error)))

    async def cancel(self, *, tell: bool = True) -> None:
        """End what is under way, and say so."""
        task, self._asked = self._asked, None
        if task is None or task.done():
            return
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        if tell and task.cancelled():
            await self._send({"type": "cancelled", "id": self._id})

    async def _take(self, message: Open | Insert | Delete | Complete) -> None:
        if isinstance(message, Complete):
            self._check(message.at)
            self._id = message.id
            self._asked = task = asyncio.create_task(self._complete(message))
            self._server.asked.add(task)
            task.add_done_callback(self._server.asked.discard)
            return
        if isinstance(message, Open):
            text = message.text
        else:
            self._check(message.at)
            end = message.at + (message.count if isinstance(message, Delete) else 0)
            self._check(end)
            new = message.text if isinstance(message, Insert) else ""
            text = self._text[: message.at] + new + self._text[end:]
        if len(text) > self._server.settings.most_body:
            raise Refused(413, "the document is too long.", "text")
        open_characters = self._server.open_characters + len(text) - len(self._text)
        if open_characters > max(MOST_OPEN, len(text)):
            raise Refused(413, "too many long documents are open in other sessions.", "text")
        self._server.open_characters = open_characters
        self._text, self._version = text, self._version + 1
        await self._send({"type": "edited", "version": self._version, "characters": len(text)})

    async def _complete(self, message: Complete) -> None:
        version = self._version
        try:
            asked = Asked(
                self._text[: message.at],
                self._text[message.at :] if message.infill else None,
                n=message.n,
                max_tokens=message.max_tokens,
                temperature=message.temperature,
                top_p=message.top_p,
                top_k=message.top_k,
                seed=message.seed,
                stop=message.stop,
                seconds=message.seconds,
                **message.common(self._server),
            )
            answer = await self._server.answer(asked)
        except Exception as error:  # told to the client: the session goes on
            told = _error(message.id, refusal_of(error))
        else:
            told = _completions(message.id, version, answer)
        sending = asyncio.ensure_future(self._send(told))  # whole, once it has begun
        with suppress(asyncio.CancelledError):
            await asyncio.shield(sending)
        await sending

    def _check(self, at: int) -> None:
        if at > len(self._text):
            raise Refused(
                400, f"there is no offset {at} in a text of {len(self._text)} characters.", "at"
            )

    async def _send(self, message: Message) -> None:
        async with self._sending:
            await self._socket.send_text(json.dumps(message, ensure_ascii=False))


def _object(data: str | bytes, most: int) -> Message:
    if len(data) > most:
        raise Refused(413, f"this message has more than {most} bytes.")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        why = f": {error}" if isinstance(error, json.JSONDecodeError) else ""
        raise Refused(400, f"this message is no JSON{why}.") from None
    if not isinstance(found, dict):
        raise Refused(400, "a message is a JSON object, with a type.")
    return found


def _id(found: Message) -> int | str | None:
    """By which a client knows its request, of whatever else is wrong with it."""
    id_ = found.get("id")
    return id_ if isinstance(id_, int | str) else None


def _message(found: Message, data: str | bytes) -> Open | Insert | Delete | Complete:
    kind = found.get("type")
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise Refused(400, f"a message has a type: {', '.join(_KINDS)}.", "type")
    return model.model_validate_json(data)


def _completions(id_: int | str | None, version: int, answer: Answer) -> Message:
    return {
        "type": "completions",
        "id": id_,
        "version": version,
        "choices": [choice(one) for one in answer.candidates],
        "from_memory": answer.from_memory,
        "forced": answer.forced.decode("utf-8", "backslashreplace"),
        "seconds": answer.seconds,
    }


def choice(one: Candidate) -> Message:
    """A candidate, with all that is known of it."""
    return {
        "text": one.text,
        "finish": one.finish,
        "probability": one.probability,
        "accept_word": one.accept_word,
        "accept_line": one.accept_line,
        "tokens": [piece.raw.decode("utf-8", "backslashreplace") for piece in one.pieces],
    }


def _error(id_: int | str | None, refused: Refused) -> Message:
    return {"type": "error", "id": id_, **body_of(PATH, refused)}
