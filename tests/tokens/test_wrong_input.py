"""What is handed to vocabularies and indices by mistake gets an error that says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from charwise import SortedVocabulary, Vocabulary
from charwise.errors import SettingError, TokenizationError, VocabularyError

TOKENS = [b"a", b"ab", b"b", None]
VOCABULARY = Vocabulary.from_bytes(TOKENS, end_ids=[3])
COMPLETE = Vocabulary.from_bytes([bytes([byte]) for byte in range(256)])
INDEX = SortedVocabulary(VOCABULARY)


@pytest.mark.parametrize(
    "arguments",
    [
        {"tokens": None},
        {"tokens": 5},
        {"tokens": b"ab"},
        {"tokens": "ab"},
        {"tokens": {"a": 0}},
        {"tokens": ["a"]},
        {"tokens": []},
        {"tokens": [None]},
        {"tokens": [b"a", b""]},
        {"end_ids": 3},
        {"end_ids": "3"},
        {"end_ids": [3.5]},
        {"end_ids": ["3"]},
        {"end_ids": [9]},
        {"bos_ids": 3},
        {"bos_ids": [None]},
        {"bos_ids": [-1]},
        {"width": "4"},
        {"width": 4.0},
        {"width": True},
        {"width": 2},
        {"width": -1},
        {"special": [3]},
    ],
)
def test_a_vocabulary(arguments: dict[str, Any]) -> None:
    with pytest.raises(VocabularyError):
        Vocabulary.from_bytes(**{"tokens": TOKENS, **arguments})


@pytest.mark.parametrize("wrong", [None, 5, "gpt2", {}, [b"a"], VOCABULARY])
def test_what_is_no_tokenizer(wrong: Any) -> None:
    with pytest.raises(VocabularyError):
        Vocabulary.from_transformers(wrong)
    with pytest.raises(VocabularyError, match="tiktoken"):
        Vocabulary.from_tiktoken(wrong)
    if wrong is not VOCABULARY:
        with pytest.raises(VocabularyError, match="Vocabulary"):
            SortedVocabulary(wrong)


def test_numbers_of_any_library_are_numbers() -> None:
    vocabulary = Vocabulary.from_bytes(TOKENS, end_ids=np.array([3]), width=np.int64(5))
    assert (vocabulary.end_ids, vocabulary.width) == ((3,), 5)
    assert vocabulary.decode(np.array([0, 2])) == vocabulary.decode(torch.tensor([0, 2])) == b"ab"
    assert vocabulary.encode_prompt(np.array([0, 2])) == [0, 2]
    assert vocabulary.encode_prompt(torch.tensor([0, 2])) == [0, 2]
    assert vocabulary.encode(bytearray(b"ab")) == vocabulary.encode(memoryview(b"ab")) == [1]


@pytest.mark.parametrize(
    "ids", [None, 5, "ab", ["a"], [1.5], [None], [4], [-1], np.zeros((1, 2)), torch.zeros(1, 2)]
)
def test_what_are_no_ids(ids: Any) -> None:
    with pytest.raises(TokenizationError):
        VOCABULARY.decode(ids)


@pytest.mark.parametrize("text", [None, 5, [b"a"], {}])
def test_what_is_no_text(text: Any) -> None:
    with pytest.raises(TokenizationError):
        VOCABULARY.encode(text)


@pytest.mark.parametrize(
    "prompt",
    [
        *(None, 5, 1.5, {}, {"input_ids": [0]}, {0}, object()),
        *(["a", "b"], [b"a", bytearray(b"b")], [[0]], [True], [4], [-1], [1.5], [None]),
        *(np.zeros(()), np.zeros(2), np.zeros((1, 2), int)),
        torch.zeros((1, 2), dtype=torch.int64),
    ],
)
def test_what_is_no_prompt(prompt: Any) -> None:
    with pytest.raises(TokenizationError):
        VOCABULARY.encode_prompt(prompt)


@pytest.mark.parametrize("prefix", ["a", "", None, 5, 0, ["a"], bytearray(b"a")])
@pytest.mark.parametrize("index", [INDEX, SortedVocabulary(COMPLETE)], ids=["some", "all bytes"])
def test_what_is_no_prefix(index: SortedVocabulary, prefix: Any) -> None:
    for ask in (
        *(index.range, index.prefixes, index.allowed, index.spellable, index.twins),
        *(index.mask, index.bitmask),
    ):
        with pytest.raises(SettingError, match="bytes"):
            ask(prefix)


def test_other_questions_to_an_index() -> None:
    for id in (4, -1, "a", None, 1.5):
        with pytest.raises(TokenizationError, match="token id"):
            INDEX.length(id)  # type: ignore[arg-type]
    for byte in (256, -1, "a", None):
        with pytest.raises(SettingError, match="byte"):
            INDEX.narrow(0, 2, 1, byte)  # type: ignore[arg-type]
    for probabilities in (np.zeros(2), [0.5, 0.5], None, "abcd", 5):
        with pytest.raises(SettingError, match="4 numbers"):
            INDEX.in_order(probabilities)  # type: ignore[arg-type]
    assert INDEX.in_order([0.1, 0.2, 0.3, 0.4]).tolist() == [0.1, 0.2, 0.3]  # type: ignore[arg-type]
    for device in ("nowhere", 1.5):
        with pytest.raises(SettingError, match="no device"):
            INDEX.mask(b"a", device=device)  # type: ignore[arg-type]
        with pytest.raises(SettingError, match="no device"):
            INDEX.ids_on(device)  # type: ignore[arg-type]
    for out in (np.zeros(4), [0.0] * 4, torch.zeros(4, dtype=torch.int32)):
        with pytest.raises(SettingError, match="floats"):
            INDEX.mask(b"a", out=out)  # type: ignore[arg-type]


def test_the_rule_of_the_start_token_says_what_is_so() -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([n]): n for n in range(256)}

    def encoding(special: dict[str, int]) -> Any:
        return tiktoken.Encoding("raw", pat_str=".", mergeable_ranks=ranks, special_tokens=special)

    without = Vocabulary.from_tiktoken(encoding({"<|other|>": 256}))
    assert without.bos_ids == ()
    assert without.bos_rule == "neither a start token nor an end-of-text token exists."
    ended = Vocabulary.from_tiktoken(encoding({"<|endoftext|>": 256}))
    assert ended.bos_ids == (256,)
    assert "end-of-text token instead" in ended.bos_rule
    named = Vocabulary.from_tiktoken(encoding({"<|other|>": 256}), end_ids=[256])
    assert named.bos_ids == (256,)
    assert "end-of-text token instead" in named.bos_rule
    given = Vocabulary.from_tiktoken(encoding({"<|endoftext|>": 256}), bos_ids=[])
    assert (given.bos_ids, given.bos_rule) == ((), "as given.")
    assert Vocabulary.from_bytes(TOKENS, bos_ids=[3]).bos_rule == "as given."
    assert Vocabulary.from_bytes(TOKENS).bos_rule == "no start token: none was given."
