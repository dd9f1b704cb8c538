"""Ids on mixed texts are the tokenizer's own, away from places that it cannot spell."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from charwise import Vocabulary
from charwise.errors import VocabularyError
from charwise.tokens.canonical import Canonical, Run
from models import examples

MIXED = (
    "def add(a, b):\n    return a + b  # naïve, façade\n\n"
    "The cat sat on the mat, then the other cat sat.\r\n"
    "Œuvre d’été — 3,14 €; 你好世界; नमस्ते दुनिया; สวัสดี; 👩‍👩‍👧 👍🏽\n"
    "\tfor item in items:   print(f'{item!r:>10}')\n"
)
FLAGS = ("lstrip", "rstrip", "single_word", "normalized")

#: An added token changes nothing further away than so many characters.
NEAR = 24


def _byte_level_trainer() -> Any:
    return trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|end|>"],
        show_progress=False,
    )


def pre_tokenized() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([MIXED] * 9, _byte_level_trainer())
    return tokenizer


def normalized_to_bytes(*parts: Any, pre_tokenizer: Any = None) -> Tokenizer:
    """The byte mapping is a normalizer; most such tokenizers have no pre-tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([*parts, normalizers.ByteLevel()])
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([MIXED] * 9, _byte_level_trainer())
    return tokenizer


def with_byte_fallback(pre_tokenizer: Any) -> Tokenizer:
    """BPE over characters, ▁ for a space, where half of the characters are spelled in bytes."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizer
    text = "".join(c for c in MIXED if ord(c) < 0x900)
    trainer = trainers.BpeTrainer(vocab_size=160, show_progress=False)
    trained.train_from_iterator([text] * 9, trainer)
    state = json.loads(trained.model.__getstate__())
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = sorted(state["vocab"], key=state["vocab"].__getitem__)
    ids = {piece: id for id, piece in enumerate([*first, *pieces])}
    merges = [tuple(pair) for pair in state["merges"]]
    tokenizer = Tokenizer(
        models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def unigram(metaspace: bool = True) -> Tokenizer:
    """Trained, without byte tokens."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    trainer = trainers.UnigramTrainer(
        vocab_size=160, unk_token="<unk>", special_tokens=["<unk>", "</s>"], show_progress=False
    )
    tokenizer.train_from_iterator([MIXED.replace("\n", " ")] * 9, trainer)
    return tokenizer


TRAINED = {
    "BPE": pre_tokenized,
    "BPE, normalized to bytes": normalized_to_bytes,
    "BPE, NFC and then bytes": lambda: normalized_to_bytes(normalizers.NFC()),
    "BPE, normalized to bytes and split": lambda: normalized_to_bytes(
        pre_tokenizer=pre_tokenizers.Split(Regex("Ġ?[^Ġ]+|Ġ+"), "isolated")
    ),
    "BPE, byte fallback": lambda: with_byte_fallback(
        pre_tokenizers.Metaspace(prepend_scheme="never")
    ),
    "BPE, byte fallback, no words": lambda: with_byte_fallback(
        pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    ),
    "Unigram": unigram,
    "Unigram, no words": lambda: unigram(False),
}


def fast(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def places(text: str, runs: list[Run]) -> dict[int, list[int]]:
    """Ids by the character at which they begin."""
    found: dict[int, list[int]] = {}
    for run in runs:
        found.setdefault(run.start, []).extend(run.ids or ())
    return found


def own_places(backend: Any, text: str) -> dict[int, list[int]]:
    found = backend.encode(text, add_special_tokens=False)
    runs = [Run(a, b, [id]) for id, (a, b) in zip(found.ids, found.offsets, strict=True)]
    return places(text, runs)


def our_places(vocabulary: Vocabulary, text: str) -> dict[int, list[int]]:
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text.encode()
    assert not set(ids) & set(vocabulary.special)
    character = [at for at, c in enumerate(text) for _ in c.encode()]
    runs, at = [], 0
    for id in ids:
        runs.append(Run(character[at], 0, [id]))
        at += len(vocabulary.tokens[id] or b"")
    return places(text, runs)


def differences(vocabulary: Vocabulary, backend: Any, text: str, near: list[int]) -> list[int]:
    """Characters where other tokens begin than the tokenizer's own, but for those near some."""
    own, ours = own_places(backend, text), our_places(vocabulary, text)
    return [
        at
        for at in sorted(own.keys() | ours.keys())
        if own.get(at) != ours.get(at) and all(abs(at - other) > NEAR for other in near)
    ]


def spellable(vocabulary: Vocabulary, text: str) -> str:
    """A text without the characters that a vocabulary has no token for."""
    if vocabulary.byte_complete:
        return text
    letters = {token for token in vocabulary.tokens if token}
    return "".join(c for c in text if c.encode() in letters)


@pytest.mark.parametrize("kind", TRAINED)
def test_ids_of_trained_tokenizers(kind: str) -> None:
    tokenizer = fast(TRAINED[kind]())
    vocabulary = Vocabulary.from_transformers(tokenizer)
    text = spellable(vocabulary, MIXED * 3)
    assert differences(vocabulary, tokenizer.backend_tokenizer, text, []) == []
    # Tokens that a space joins to a word are in use.
    assert any(len(vocabulary.tokens[id] or b"") > 2 for id in vocabulary.encode(text))


@pytest.mark.parametrize("flag", [*FLAGS, "lstrip rstrip", ""])
@pytest.mark.parametrize("kind", TRAINED)
def test_an_added_token_changes_only_what_is_near(kind: str, flag: str) -> None:
    flags: Any = dict.fromkeys(FLAGS, False) | dict.fromkeys(flag.split(), True)
    tokenizer = fast(TRAINED[kind]())
    tokenizer.add_tokens([AddedToken("<tool>", **flags)])
    vocabulary = Vocabulary.from_transformers(tokenizer)
    added = tokenizer.convert_tokens_to_ids("<tool>")
    assert vocabulary.tokens[added] == b"<tool>"
    around = spellable(vocabulary, MIXED)
    text = f"{around}a  <tool>  b {around}{around} a <tool>b {around}"
    near = [at for at in range(len(text)) if text.startswith("<tool>", at)]
    assert differences(vocabulary, tokenizer.backend_tokenizer, text, near) == []
    assert vocabulary.encode("a <tool> b").count(added) == 1


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("kind", TRAINED)
def test_a_tokenizer_is_read_whatever_word_is_added(kind: str, flag: str) -> None:
    for word in ("the", "a", " def", "b):\n", "return a"):
        tokenizer = fast(TRAINED[kind]())
        tokenizer.add_tokens([AddedToken(word, **{flag: True})])  # type: ignore[arg-type]
        vocabulary = Vocabulary.from_transformers(tokenizer)
        text = spellable(vocabulary, MIXED)
        assert vocabulary.decode(vocabulary.encode(text)) == text.encode()


@pytest.mark.parametrize("kind", ["Unigram", "Unigram, no words"])
def test_a_text_that_only_an_added_token_spells(kind: str) -> None:
    """No character of it is a token of its own, and where others are wanted, too."""
    tokenizer = fast(TRAINED[kind]())
    tokenizer.add_tokens([AddedToken("⟨⟩", lstrip=True, single_word=True)])
    vocabulary = Vocabulary.from_transformers(tokenizer)
    added = tokenizer.convert_tokens_to_ids("⟨⟩")
    for text in ("⟨⟩", "the cat ⟨⟩ sat", "the  ⟨⟩cat"):
        ids = vocabulary.encode(text)
        assert vocabulary.decode(ids) == text.encode()
        assert added in ids


@given(st.lists(st.sampled_from(["the", " cat", "  ", "<tool>", "<a b>", "\n", "s", "é"])))
@examples(150)
@pytest.mark.parametrize("kind", ["BPE", "BPE, normalized to bytes", "BPE, byte fallback"])
def test_any_text_with_added_tokens_is_spelled(kind: str, words: list[str]) -> None:
    """Each added token where a tokenizer that takes no spaces for them would have it."""
    vocabulary, plain = _with_and_without_flags(kind)
    text = "".join(words)
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text.encode()
    assert ids == plain.encode(text, add_special_tokens=False).ids


_made: dict[str, tuple[Vocabulary, Any]] = {}


def _with_and_without_flags(kind: str) -> tuple[Vocabulary, Any]:
    if kind not in _made:
        eats, plain = fast(TRAINED[kind]()), fast(TRAINED[kind]())
        eats.add_tokens([AddedToken("<tool>", lstrip=True), AddedToken("<a b>", rstrip=True)])
        plain.add_tokens([AddedToken("<tool>"), AddedToken("<a b>")])
        _made[kind] = Vocabulary.from_transformers(eats), plain.backend_tokenizer
    return _made[kind]


def test_only_what_is_lossy_is_mended() -> None:
    """An encoder that does not say where its tokens lie is trusted at both ends of a text."""
    tokens: list[bytes | None] = [b"a", b"b", b"ab", b" ", None, b"x"]
    ids = {"abx": [0, 1, 5], "xx ab": [5, 5, 4, 0, 1], "éb": [4, 1], "abab": [0, 1, 2]}
    spell = Canonical(tokens, lambda text: ids[text])
    assert spell(b"abx") == [0, 1, 5]
    assert spell(b"xx ab") == [5, 5, 3, 0, 1]
    assert spell(b"abab") == [0, 1, 2]
    with pytest.raises(VocabularyError, match=r"'é'.*at byte 0"):
        spell("éb".encode())


def test_a_run_that_cannot_be_spelled_takes_in_what_is_beside_it() -> None:
    tokens: list[bytes | None] = [b"a", b"b", b"c", b"ab?", None]

    class Encoder:
        def __call__(self, text: str) -> list[int]:
            return [0, 1, 4, 2]

        def placed(self, text: str) -> list[Run]:
            return [Run(at, at + 1, [id]) for at, id in enumerate(self(text))]

    assert Canonical(tokens, Encoder())(b"ab?c") == [3, 2]


def _bpe(**parts: Any) -> PreTrainedTokenizerFast:
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "▁"]
    tokenizer = Tokenizer(models.BPE({c: id for id, c in enumerate(letters)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return fast(tokenizer)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"normalizer": normalizers.Replace(" ", "Ġ")}, "not understood .normalizer Replace"),
        ({"pre_tokenizer": pre_tokenizers.Whitespace()}, "loses spaces .*pre-tokenizer Whitespace"),
        (
            {
                "normalizer": normalizers.Sequence(
                    [normalizers.Replace(" ", ""), normalizers.ByteLevel()]
                )
            },
            "loses spaces",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(parts: Any, why: str) -> None:
    with pytest.raises(VocabularyError, match=why):
        Vocabulary.from_transformers(_bpe(**parts))
