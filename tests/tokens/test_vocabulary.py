"""Δ and κ: end tokens, start tokens, ids without bytes, and prompts."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import kinds
from charwise import Vocabulary
from charwise.tokens.sentinels import NAMES, SPELLINGS, Spelling
from conftest import Data
from kinds import fast
from models import examples
from tiny import tokenizer_with


def test_tiktoken_bytes() -> None:
    encoding = kinds.small_tiktoken()
    vocabulary = Vocabulary.from_tiktoken(encoding, width=300)
    assert vocabulary.width == 300
    assert vocabulary.tokens[259] is None  # an unused id
    assert vocabulary.tokens[258] == b" the"
    assert vocabulary.special == {264: "<|endoftext|>", 265: "<|pad|>"}
    assert vocabulary.end_ids == vocabulary.bos_ids == (264,)
    assert vocabulary.encode(" the thé") == encoding.encode_ordinary(" the thé")
    assert Vocabulary.from_tiktoken(encoding, end_ids=[265]).end_ids == (265,)


def test_gaps_in_ids_spell_nothing() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 5, "Ġ": 7}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    vocabulary = Vocabulary.from_transformers(fast(tokenizer), width=10)
    assert vocabulary.tokens == (b"a", b"b", None, None, None, b"c", None, b" ", None, None)
    assert vocabulary.encode("c ab") == [5, 7, 0, 1]
    assert vocabulary.counted.nonzero()[0].tolist() == [0, 1, 5, 7]
    assert not vocabulary.counted.flags.writeable
    assert len(vocabulary) == 4
    assert Vocabulary.from_bytes([b"a", b"a", b"b", b"a"]).fertility == 3


@pytest.mark.parametrize(
    ("eos_token_id", "expected"),
    [(None, (128_001,)), (128_009, (128_001, 128_009)), ([128_001, 128_008, 128_009], None)],
)
def test_end_ids(data: Data, eos_token_id: Any, expected: tuple[int, ...] | None) -> None:
    config = SimpleNamespace(eos_token_id=eos_token_id)
    vocabulary = Vocabulary.from_transformers(data.tokenizer("llama3"), generation_config=config)
    assert vocabulary.end_ids == (expected or (128_001, 128_008, 128_009))
    assert vocabulary.counted[list(vocabulary.end_ids)].all()
    assert all(vocabulary.tokens[id] is None for id in vocabulary.end_ids)


@pytest.mark.parametrize("what", ["Ċ", "Ġcat", -1, 60_000])
def test_an_end_id_of_a_configuration_that_is_a_word_or_no_token_is_ignored(what: Any) -> None:
    tokenizer = kinds.byte_level()
    id = what if isinstance(what, int) else tokenizer.convert_tokens_to_ids(what)
    config = SimpleNamespace(eos_token_id=[0, id])
    vocabulary = Vocabulary.from_transformers(tokenizer, generation_config=config)
    assert vocabulary.end_ids == (0,)
    assert str(id) in vocabulary.end_rule
    assert isinstance(what, int) or vocabulary.tokens[id] is not None


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("<|im_start|>", "<|im_end|>"),
        ("<|endoftext|>", "<|im_end|>"),
        (None, "<|im_end|>"),
        ("<|im_start|>", "<|end|>"),  # a marker of turns in some families
        (None, None),
    ],
)
def test_markers_of_turns_begin_no_text(start: str | None, end: str | None) -> None:
    backend = kinds.byte_level().backend_tokenizer
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    roles = {"bos_token": start, "eos_token": end}
    tokenizer = fast(backend, **{role: name for role, name in roles.items() if name})
    vocabulary = Vocabulary.from_transformers(tokenizer)
    assert [vocabulary.special[id] for id in vocabulary.bos_ids] == ["<|endoftext|>"]
    ends = {vocabulary.special[id] for id in vocabulary.end_ids}
    assert ends == {"<|endoftext|>", end or "<|endoftext|>"}
    assert (start == "<|im_start|>") == ("marker of turns" in vocabulary.bos_rule)


def test_start_rule_as_given_and_without_any() -> None:
    fixed = Vocabulary.from_transformers(kinds.byte_level(), bos_ids=[3, 4])
    assert (fixed.bos_ids, fixed.bos_rule) == ((3, 4), "as given.")
    backend = Tokenizer(models.BPE({"a": 0}, []))
    backend.decoder = decoders.ByteLevel()
    none = Vocabulary.from_transformers(fast(backend))
    assert none.bos_ids == none.end_ids == ()


@pytest.mark.parametrize(
    ("special", "given", "ids"),
    [
        ({"<|other|>": 256}, {}, ()),
        ({"<|endoftext|>": 256}, {}, (256,)),
        ({"<|other|>": 256}, {"end_ids": [256]}, (256,)),
        ({"<|endoftext|>": 256}, {"bos_ids": []}, ()),
        ({"<|endoftext|>": 256, "<|file_sep|>": 257}, {}, (256,)),
    ],
)
def test_start_rule_of_tiktoken(special: Any, given: Any, ids: tuple[int, ...]) -> None:
    ranks = {bytes([n]): n for n in range(256)}
    encoding = tiktoken.Encoding("raw", pat_str=".", mergeable_ranks=ranks, special_tokens=special)
    vocabulary = Vocabulary.from_tiktoken(encoding, **given)
    assert vocabulary.bos_ids == ids
    assert (257 in vocabulary.end_ids) == (len(special) == 2)  # another file ends a text


CONTENT = ("<think>", "</think>", "<tool_call>", "</tool_call>")


@cache
def with_names_of(spelling: Spelling) -> tuple[Vocabulary, Any]:
    tokenizer = tokenizer_with((*dict.fromkeys(spelling.control), *CONTENT), special=False)
    return Vocabulary.from_transformers(tokenizer), tokenizer.convert_tokens_to_ids


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda one: one.family)
def test_a_control_token_is_one_whatever_it_is_declared_as(spelling: Spelling) -> None:
    vocabulary, id_of = with_names_of(spelling)
    for name in spelling.control:
        assert vocabulary.special[id_of(name)] == name
        assert vocabulary.decode([id_of(name)]) == b""
        assert (id_of(name) in vocabulary.end_ids) == (name in spelling.ends)
    assert vocabulary.closing == {id_of(name) for name in spelling.ends}
    turns = {id_of(name) for name in spelling.turns}
    assert set(vocabulary.stop_ids) == {*vocabulary.end_ids, *turns}
    assert not NAMES & {*CONTENT, "<|python_tag|>", "<tool_response>"}
    for name in CONTENT:
        assert vocabulary.decode(vocabulary.encode(name)) == name.encode()
        assert vocabulary.encode(f"a{name}b").count(id_of(name)) == 1


@given(st.sampled_from(SPELLINGS), st.data())
@examples(200)
def test_no_text_is_read_as_a_control_token(spelling: Spelling, draw: st.DataObject) -> None:
    words = [*spelling.control, *spelling.in_text, " ", "\n", "a", '"', "é", "<"]
    text = "".join(draw.draw(st.lists(st.sampled_from(words), max_size=12)))
    vocabulary, _ = with_names_of(spelling)
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text.encode()
    assert not set(ids) & set(vocabulary.special)


AB = Vocabulary.from_bytes([b"a", b"b", b"ab", None], end_ids=[3], bos_ids=[3])


@pytest.mark.parametrize(
    ("prompt", "ids", "start", "text"),
    [
        ("aab", [0, 2], (3,), b"aab"),
        (bytearray(b"aab"), [0, 2], (3,), b"aab"),
        (["ab"], [2], (3,), b"ab"),
        ([3, "ab", b"a", 1, ""], [3, 2, 0, 1], (3, 2, 0, 1), b""),
        ([0, "a", b"b"], [0, 0, 1], (3, 0), b"ab"),  # no special token begins it
        ([], [], (3,), b""),
    ],
)
def test_forms_of_prompts(prompt: Any, ids: list[int], start: tuple[int, ...], text: bytes) -> None:
    assert AB.encode_prompt(prompt) == ids
    assert AB.split_prompt(prompt) == ((start, b""), text)
    assert AB.split_prompt("a", "b") == AB.split_prompt("ab")
    assert AB.split_prompt([3, 0, "a"], b"b")[0].ids == (3, 0)


@pytest.mark.parametrize("make", [kinds.metaspace, kinds.legacy_llama])
def test_the_implied_space_begins_a_text_after_the_start_token_alone(make: Any) -> None:
    vocabulary = Vocabulary.from_transformers(make())
    start, implied = vocabulary.bos_ids, vocabulary.control.prefix
    assert implied == (b" " if make is kinds.legacy_llama else b"")
    assert vocabulary.split_prompt("the") == ((start, b" "), b" the")
    assert vocabulary.split_prompt([*start, "the"]) == ((start, implied), implied + b"the")
    assert vocabulary.split_prompt([*start, 2, "the"])[1] == b"the"
