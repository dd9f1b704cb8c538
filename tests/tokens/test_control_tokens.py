"""Control tokens, whatever a tokenizer declares them as: never read, never shown, and which end."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charwise import SortedVocabulary, Vocabulary
from charwise.tokens.sentinels import NAMES, SPELLINGS, Spelling
from models import examples
from sentinels import tokenizer_with

CONTENT = ("<think>", "</think>", "<tool_call>", "</tool_call>")
FAMILIES = pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda one: one.family)


@cache
def tokenizer_of(spelling: Spelling, special: bool = False) -> Any:
    return tokenizer_with((*dict.fromkeys(spelling.control), *CONTENT), special)


@cache
def index_of(spelling: Spelling, special: bool = False) -> SortedVocabulary:
    return SortedVocabulary(Vocabulary.from_transformers(tokenizer_of(spelling, special)))


@FAMILIES
def test_a_control_token_is_one_whatever_it_is_declared_as(spelling: Spelling) -> None:
    vocabulary = index_of(spelling).vocabulary
    id_of = tokenizer_of(spelling).convert_tokens_to_ids
    for name in spelling.control:
        assert vocabulary.special[id_of(name)] == name
        assert vocabulary.decode([id_of(name)]) == b""
        assert (id_of(name) in vocabulary.end_ids) == (name in spelling.ends)
    assert vocabulary.closing == {id_of(name) for name in spelling.ends}
    turns = {id_of(name) for name in spelling.turns}
    assert set(vocabulary.stop_ids) == {*vocabulary.end_ids, *turns}
    for name in CONTENT:
        assert vocabulary.decode(vocabulary.encode(name)) == name.encode()
        assert vocabulary.encode(f"a{name}b").count(id_of(name)) == 1


@st.composite
def mentions(draw: st.DrawFn) -> tuple[Spelling, str]:
    spelling = draw(st.sampled_from(SPELLINGS))
    words = st.sampled_from([*spelling.control, *spelling.in_text, " ", "\n", "a", '"', "é", "<"])
    return spelling, "".join(draw(st.lists(words, max_size=12)))


@given(mentions())
@examples(200)
def test_no_text_is_read_as_a_control_token(case: tuple[Spelling, str]) -> None:
    spelling, text = case
    vocabulary = index_of(spelling).vocabulary
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text.encode()
    assert not set(ids) & set(vocabulary.special)


def test_tokens_with_content_are_none() -> None:
    assert not NAMES & {*CONTENT, "<|python_tag|>", "<tool_response>"}
