"""A server starts with any model, whatever its alphabet."""

from __future__ import annotations

from fastapi.testclient import TestClient

from charwise import CharLM
from charwise.serve.app import Settings, application
from charwise.tokens.vocabulary import Vocabulary
from models import random_lm


def letters(*tokens: bytes) -> CharLM:
    """A random model of these tokens."""
    return CharLM(random_lm(Vocabulary.from_bytes([*tokens, None], bos_ids=[len(tokens)]), 2, 0))


def test_a_vocabulary_of_another_alphabet() -> None:
    app = application(letters("я".encode(), "ю".encode()), Settings())
    with TestClient(app, base_url="http://127.0.0.1") as client:
        found = client.post("/v1/next", json={"prompt": "я"})
        assert found.status_code == 200
        wrong = client.post("/v1/next", json={"prompt": "a"})
        assert wrong.status_code == 400
