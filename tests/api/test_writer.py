"""Bytes of tokens as OpenAI's API spells them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from charwise.api.writer import spelled, unspelled
from models import examples


@given(st.binary() | st.from_regex(rb"bytes:(\\x[0-9a-f]{2})+", fullmatch=True))
@examples(200)
def test_spelled_bytes_are_read_back(raw: bytes) -> None:
    assert unspelled(spelled(raw)) == raw
