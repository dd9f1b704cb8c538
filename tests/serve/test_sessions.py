"""The WebSocket for editors, with a client of its own library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from serving import Running

sync = pytest.importorskip("websockets.sync.client")

TEXT = "import os\n\nfor i in ra\nx = 1\n"


class Session:
    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def send(self, **message: Any) -> None:
        self._socket.send(json.dumps(message))

    def receive(self) -> Any:
        return json.loads(self._socket.recv(timeout=60))

    def ask(self, **message: Any) -> Any:
        self.send(**message)
        return self.receive()

    def raw(self, text: str) -> Any:
        self._socket.send(text)
        return self.receive()


@contextmanager
def session(one: Running) -> Iterator[Session]:
    with sync.connect(f"ws://127.0.0.1:{one.port}/v1/session") as socket:
        yield Session(socket)


def test_a_document_is_edited_and_completed(running_server: Running) -> None:
    with session(running_server) as editor:
        assert editor.ask(type="open", text=TEXT) == {
            "type": "edited", "version": 1, "characters": len(TEXT),
        }  # fmt: skip
        at = TEXT.index("ra") + 2
        how = {"at": at, "until": "line", "max_tokens": 20, "infill": False}
        found = editor.ask(type="complete", id=7, **how)
        assert (found["type"], found["id"], found["version"]) == ("completions", 7, 1)
        [choice] = found["choices"]
        assert choice["text"].startswith("nge(")
        assert "\n" not in choice["text"]
        assert editor.ask(type="insert", at=at, text="ng")["version"] == 2
        along = editor.ask(type="complete", id=8, **how | {"at": at + 2})
        assert along["from_memory"]
        assert along["choices"][0]["text"] == choice["text"][2:]
        assert editor.ask(type="delete", at=at, count=2)["characters"] == len(TEXT)
        again = editor.ask(type="complete", id=9, n=3, **how)
        assert again["choices"][0]["text"] == choice["text"]
        assert len(again["choices"]) > 1


def test_offsets_count_characters(running_server: Running) -> None:
    with session(running_server) as editor:
        assert editor.ask(type="open", text="é😀 = 1\n")["characters"] == 7
        assert editor.ask(type="insert", at=2, text="日")["characters"] == 8
        editor.ask(type="delete", at=0, count=3)
        found = editor.ask(type="complete", at=2, id="a", max_tokens=1, infill=False)
        assert found["type"] == "completions"
        wrong = editor.ask(type="complete", at=99, id="b")
        assert (wrong["type"], wrong["id"]) == ("error", "b")
        assert "99" in wrong["error"]["message"]


def test_a_keystroke_cancels_what_is_under_way(running_server: Running) -> None:
    engine = running_server.server.completions.engine
    with session(running_server) as editor:
        editor.ask(type="open", text="x = [")
        calls = engine.calls
        editor.send(type="complete", id=1, at=5, max_tokens=900, temperature=1.0)
        editor.send(type="insert", at=5, text="1")
        editor.send(type="complete", id=2, at=6, max_tokens=2)
        received = [editor.receive() for _ in range(3)]
        assert received[0] == {"type": "cancelled", "id": 1}
        assert received[1]["type"] == "edited"
        assert (received[2]["type"], received[2]["id"]) == ("completions", 2)
        assert engine.calls - calls < 200
        editor.send(type="complete", id=3, at=6, max_tokens=900, temperature=1.0)
    with session(running_server) as editor:  # whoever left leaves no work behind
        assert editor.ask(type="open", text="a")["type"] == "edited"
        assert editor.ask(type="complete", id=4, at=1, max_tokens=1)["id"] == 4


def test_what_is_wrong_with_a_request_is_said_to_who_asked(running_server: Running) -> None:
    with session(running_server) as editor:
        for text in ('{"type": "complete", "id": 5, "at": -1}', '{"type": "dance", "id": 5}'):
            wrong = editor.raw(text)
            assert (wrong["type"], wrong["id"]) == ("error", 5)
        assert editor.raw('{"type": "complete", "id": [], "at": 0}')["id"] is None


@pytest.mark.parametrize("text", ["{", "", '{"type": "insert" "at": 1}', "\x00"])
def test_a_message_that_is_no_json_is_said_to_be_none(running_server: Running, text: str) -> None:
    with session(running_server) as editor:
        editor.ask(type="open", text="x = [")
        editor.send(type="complete", id=1, at=5, max_tokens=2, seed=1)
        told = [editor.raw(text), editor.receive()]
        told.sort(key=lambda message: message["type"])
        assert [message["type"] for message in told] == ["completions", "error"]  # it goes on
        assert "no JSON" in told[1]["error"]["message"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "5", "null", '{"type": 5}', '{"type": "dance"}', '{"type": "insert"}',
     '{"type": "insert", "at": -1, "text": "a"}', '{"type": "insert", "at": 5, "text": "a"}',
     '{"type": "delete", "at": 0, "count": 1}', '{"type": "open", "text": 5}',
     '{"type": "open", "text": "\\ud800"}', '{"type": "complete", "at": 1e400}',
     '{"type": "complete", "at": 0, "n": 0}', '{"type": "complete", "at": 0, "n": 1000}',
     '{"type": "complete", "at": 0, "stop": [""]}', "[" * 10_000],
)  # fmt: skip
def test_what_is_wrong_is_said_and_the_session_goes_on(running_server: Running, text: str) -> None:
    with session(running_server) as editor:
        wrong = editor.raw(text)
        assert wrong["type"] == "error"
        assert wrong["error"]["message"]
        assert wrong["error"]["code"] in (400, 413)
        assert editor.ask(type="open", text="a")["type"] == "edited"
