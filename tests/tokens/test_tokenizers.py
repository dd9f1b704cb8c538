"""Tokenizers of every kind: the bytes of each token, and ids that are the tokenizer's own.

Encoding loses nothing; away from places that a tokenizer cannot spell, its ids are its own.
"""

from __future__ import annotations

import itertools
import pickle
import re
from collections import Counter
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import kinds
from charwise import Vocabulary
from charwise.errors import ModelError, VocabularyError
from charwise.models import EMBEDDED
from charwise.tokens.canonical import Canonical, Placed
from conftest import LANGUAGES, WIDTHS, Data, Named
from kinds import HARD, MIXED, STRAY, fast
from models import examples

FLAGS = ("lstrip", "rstrip", "single_word", "normalized")
KINDS = pytest.mark.parametrize("kind", kinds.PLAIN)

#: An added token changes nothing further away than so many characters.
NEAR = 24


@pytest.fixture(scope="module", params=[*kinds.COMPLETE, *list(WIDTHS)[:5]])
def complete(request: pytest.FixtureRequest) -> Vocabulary:
    """Byte-complete vocabularies of every kind: small ones, and those of five real tokenizers."""
    if request.param in WIDTHS:
        return request.getfixturevalue("data").vocabulary(request.param)
    return kinds.COMPLETE[request.param]()


def test_hard_texts_are_spelled_without_special_tokens(complete: Vocabulary) -> None:
    again = pickle.loads(pickle.dumps(complete)) if len(complete) < 1000 else complete
    for text in [*HARD.values(), *STRAY]:
        ids = complete.encode(text)
        assert complete.decode(ids) == (text.encode() if isinstance(text, str) else text)
        assert not set(ids) & set(complete.special)
        assert again.encode(text) == ids


@given(st.binary(max_size=60) | st.text(max_size=20).map(str.encode))
@examples(150)
def test_any_bytes_are_spelled(complete: Vocabulary, data_: bytes) -> None:
    assert complete.byte_complete
    assert complete.decode(complete.encode(data_)) == data_


def test_canonical_ids_are_the_tokenizers_own(named: Named, data: Data) -> None:
    """Wherever the tokenizer itself returns the text it was given; and no byte is lost anywhere."""
    vocabulary = named.vocabulary
    texts = [data.text(language) for language in LANGUAGES] + list(HARD.values())
    texts += [line for text in texts for line in text.splitlines(keepends=True)]
    compared = 0
    for text in texts:
        if spellable(vocabulary, text) == text:
            assert vocabulary.decode(vocabulary.encode(text)) == text.encode()
        ids = named.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
        if None in (vocabulary.tokens[id] for id in ids):
            continue  # uncovered characters
        text_bytes = vocabulary.decode(ids)
        if text_bytes in (text.encode(), vocabulary.implied_prefix + text.encode()):
            assert vocabulary.encode(text_bytes) == ids
            compared += 1
    assert compared >= (580 if vocabulary.byte_complete else 290), compared


BEFORE = [b"", b"\xc3", b"\xe1", b"\xe1\x80", b"\xf1", b"\xf1\x80", b"\xf1\x80\x80"]
AFTER = [b"", *(a + b"\x80" * k for k in range(3) for a in (b"\x80", b"\x90", b"\xa0"))]


def completed(token: bytes) -> tuple[bytes, bytes] | None:
    """Bytes before and after a token that make whole characters of it, if any do."""
    for before, after in itertools.product(BEFORE, AFTER):
        try:
            (before + token + after).decode()
        except UnicodeDecodeError:
            continue
        return before, after
    return None


def check_tokens(vocabulary: Vocabulary, backend: Any) -> tuple[int, int]:
    """Decode every token between an anchor and, if it holds part of a character, the rest of it.

    The result is compared byte by byte. Tokens that are part of no valid text (0xC0, 0xFF …) can
    only be compared by the replacement characters that they decode to.
    Returns how many tokens were compared, and how many of these byte by byte.
    """
    alone = {token: id for id, token in enumerate(vocabulary.tokens) if token and len(token) == 1}
    if vocabulary.byte_complete:  # with twins, the byte tokens: only they join to characters
        alone = {token: vocabulary.tokens.index(token) for token in alone}
    anchor = vocabulary.encode("a")[-1]  # never a byte token, which would join what follows
    rows, expected, exactly = [], [], 0
    for id, token in enumerate(vocabulary.tokens):
        if token is None:
            continue
        sides = completed(token)
        if sides is None:
            rows.append([anchor, id])
            expected.append("a" + token.decode("utf-8", "replace"))
        else:
            before, after = ([alone[bytes([byte])] for byte in side] for side in sides)
            rows.append([anchor, *before, id, *after])
            expected.append("a" + b"".join((sides[0], token, sides[1])).decode())
            exactly += 1
    got = backend.decode_batch(rows, skip_special_tokens=False)
    wrong = [(row, a, b) for row, a, b in zip(rows, got, expected, strict=True) if a != b]
    assert not wrong, wrong[:5]
    return len(rows), exactly


def test_every_real_token(named: Named) -> None:
    compared, exactly = check_tokens(named.vocabulary, named.backend)
    assert compared == len(named.vocabulary)
    # Byte by byte, all but the 13 bytes that occur in no valid UTF-8.
    assert compared - exactly == (13 if named.vocabulary.byte_complete else 0)
    width = named.vocabulary.width
    nothing = {id for id, token in enumerate(named.vocabulary.tokens) if token is None}
    special = {id for id in named.vocabulary.special if id < width}
    assert nothing == special | set(range(named.backend.get_vocab_size(), width))
    spaced = named.name in ("llama2", "tinystories-656k")
    assert named.vocabulary.implied_prefix == (b" " if spaced else b"")
    starts = {"gpt2": 50_256, "cl100k": 100_256, "llama3": 128_000, "qwen2": 151_643, "llama2": 1}
    starts |= {"tinystories-3m": 14_018, "tinystories-656k": 1}
    assert named.vocabulary.bos_ids == (starts[named.name],)
    added = named.name in ("llama3", "tinystories-656k")
    assert added == ("the tokenizer itself adds" in named.vocabulary.bos_rule)


@pytest.mark.parametrize("kind", kinds.EVERY)
def test_every_handmade_token(kind: str) -> None:
    tokenizer = kinds.EVERY[kind]()
    before = tokenizer.backend_tokenizer.to_str()
    vocabulary = Vocabulary.from_transformers(tokenizer)
    compared, exactly = check_tokens(vocabulary, tokenizer.backend_tokenizer)
    assert compared - exactly == (13 if vocabulary.byte_complete else 0)
    vocabulary.encode("the cat")
    assert tokenizer.backend_tokenizer.to_str() == before  # it is left as it was


def differences(vocabulary: Vocabulary, backend: Any, text: str, near: list[int]) -> list[int]:
    """Characters where other tokens begin than the tokenizer's own, but for those near some."""
    encoding = backend.encode(text, add_special_tokens=False)
    own = Counter(zip((start for start, _ in encoding.offsets), encoding.ids, strict=True))
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text.encode()
    assert not set(ids) & set(vocabulary.special)
    character = [at for at, c in enumerate(text) for _ in c.encode()]
    sizes = [len(vocabulary.tokens[id] or b"") for id in ids]
    starts = [character[end - size] for end, size in zip(accumulate(sizes), sizes, strict=True)]
    ours = Counter(zip(starts, ids, strict=True))
    others = (own - ours) + (ours - own)
    return [at for at, _ in others if all(abs(at - one) > NEAR for one in near)]


def spellable(vocabulary: Vocabulary, text: str) -> str:
    """A text without the characters that a vocabulary has no token for."""
    if vocabulary.byte_complete:
        return text
    letters = {token for token in vocabulary.tokens if token}
    return "".join(c for c in text if c.encode() in letters)


@pytest.mark.parametrize("kind", kinds.PLAIN | kinds.SPACED)
def test_the_space_that_a_tokenizer_implies(kind: str) -> None:
    tokenizer = (kinds.PLAIN | kinds.SPACED)[kind]()
    vocabulary = Vocabulary.from_transformers(tokenizer)
    assert vocabulary.implied_prefix == (b" " if kind in kinds.SPACED else b"")
    own = tokenizer("the cat", add_special_tokens=False)["input_ids"]
    assert vocabulary.encode(vocabulary.implied_prefix + b"the cat") == own
    # The tokenizer's own encoder does all the work.
    with patch.object(Canonical, "_fewest", side_effect=AssertionError):
        for text in ("the cat", " the  cat the ", "cat"):
            assert vocabulary.decode(vocabulary.encode(text)) == text.encode()


def test_added_tokens_are_text_and_keep_their_ids() -> None:
    tokenizer = kinds.byte_level()
    tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
    tokenizer.add_tokens(["<tool>", "x y"])
    tokenizer.add_tokens([AddedToken("<think>", special=True), AddedToken("\t\t\t", special=False)])
    vocabulary = Vocabulary.from_transformers(tokenizer)
    text = "the<tool>cat x y\t\t\t<|pad|><think><|end|>"
    ids = vocabulary.encode(text)
    assert ids == tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    for token in ("<tool>", "x y", "\t\t\t"):
        id = tokenizer.convert_tokens_to_ids(token)
        assert vocabulary.tokens[id] == token.encode()
        assert vocabulary.counted[id]
        assert ids.count(id) == 1
    for token in ("<|pad|>", "<think>", "<|end|>"):
        id = tokenizer.convert_tokens_to_ids(token)
        assert (vocabulary.special[id], vocabulary.tokens[id]) == (token, None)
        assert id not in ids


@pytest.mark.parametrize("flag", [*FLAGS, "lstrip rstrip", "", None])
@KINDS
def test_ids_are_the_tokenizers_own_but_near_an_added_token(kind: str, flag: str | None) -> None:
    tokenizer = kinds.PLAIN[kind]()
    if flag is not None:
        flags: Any = dict.fromkeys(FLAGS, False) | dict.fromkeys(flag.split(), True)
        tokenizer.add_tokens([AddedToken("<tool>", **flags)])
    vocabulary = Vocabulary.from_transformers(tokenizer)
    around = spellable(vocabulary, MIXED)
    text = around * 3
    if flag is not None:
        text = f"{around}a  <tool>  b {around}{around} a <tool>b {around}"
        added = tokenizer.convert_tokens_to_ids("<tool>")
        assert vocabulary.encode("a <tool> b").count(added) == 1
    near = [at for at in range(len(text)) if text.startswith("<tool>", at)]
    assert differences(vocabulary, tokenizer.backend_tokenizer, text, near) == []
    # Tokens that a space joins to a word are in use.
    assert any(len(vocabulary.tokens[id] or b"") > 2 for id in vocabulary.encode(text))
    for word in ("the", "a", " def", "b):\n", "return a") if flag in FLAGS else ():
        tokenizer = kinds.PLAIN[kind]()
        tokenizer.add_tokens([AddedToken(word, **{flag: True})])
        vocabulary = Vocabulary.from_transformers(tokenizer)
        assert vocabulary.decode(vocabulary.encode(around)) == around.encode()


@pytest.mark.parametrize("kind", ["Unigram", "Unigram, no words"])
def test_a_text_that_only_an_added_token_spells(kind: str) -> None:
    """No character of it is a token of its own, and where others are wanted, too."""
    tokenizer = kinds.PLAIN[kind]()
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
    vocabulary, plain = with_and_without_flags(kind)
    text = "".join(words)
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text.encode()
    assert ids == plain.encode(text, add_special_tokens=False).ids


@cache
def with_and_without_flags(kind: str) -> tuple[Vocabulary, Any]:
    eats, plain = kinds.PLAIN[kind](), kinds.PLAIN[kind]()
    eats.add_tokens([AddedToken("<tool>", lstrip=True), AddedToken("<a b>", rstrip=True)])
    plain.add_tokens([AddedToken("<tool>"), AddedToken("<a b>")])
    return Vocabulary.from_transformers(eats), plain.backend_tokenizer


def test_only_what_is_lossy_is_mended() -> None:
    """Where a gap has no tokens of its own, it takes in what is beside it."""
    tokens: list[bytes | None] = [b"a", b"b", b"c", b"ab?", None, b" ", b"aa"]

    class Encoder:
        def __call__(self, text: str) -> list[int]:
            return [{"a": 0, "b": 1, "c": 2}.get(character, 4) for character in text]

        def placed(self, text: str) -> list[Placed]:
            return [(at, at + 1, [id]) for at, id in enumerate(self(text))]

    spell = Canonical(tokens, Encoder())
    assert spell(b"aab") == [0, 0, 1]
    assert spell(b"aa b") == [0, 0, 5, 1]
    assert spell(b"ab?caa") == [3, 2, 0, 0]
    with pytest.raises(VocabularyError, match="'é'") as caught:
        spell("aéb".encode())
    assert caught.value.position == 1


@pytest.mark.parametrize(
    ("text", "what", "position"),
    [
        (b"aab", "'b' (U+0062", 2),
        (b"\xffa", "0xFF", 0),
        (b"a\x80", "0x80", 1),
        ("aé".encode(), "'é'", 2),  # its first byte has a token
        ("a👍".encode(), "'👍' (U+1F44D", 1),
        ("a👍".encode()[:-1], "0xF0", 1),
        (b"a\x00", "U+0000", 1),
        ("a\xc3\ud83d", "U+D83D", 3),
    ],
)
def test_what_has_no_token_is_named(text: str | bytes, what: str, position: int) -> None:
    with pytest.raises(VocabularyError, match=re.escape(what)) as caught:
        Vocabulary.from_bytes([b"a", b"\xc3"]).encode(text)
    assert caught.value.position == position


@pytest.mark.parametrize("make", [kinds.metaspace, kinds.unigram])
def test_characters_without_tokens_or_byte_fallback(make: Any) -> None:
    vocabulary = Vocabulary.from_transformers(make(byte_fallback=False))
    assert vocabulary.decode(vocabulary.encode("the cat é")) == "the cat é".encode()
    # The tokenizer would make a space of ▁.
    for text, position in (("thé c".encode() + b"\xfe\xff", 6), ("the λ cat", 4), ("a ▁ b", 2)):
        with pytest.raises(VocabularyError) as caught:
            vocabulary.encode(text)
        assert caught.value.position == position


def _with(model: Any, **parts: Any) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return fast(tokenizer)


_BYTES = decoders.ByteLevel()
_LETTERS = dict(zip([*sorted(pre_tokenizers.ByteLevel.alphabet()), "▁"], range(257), strict=True))
_UNSPACED = normalizers.Sequence([normalizers.Replace(" ", ""), normalizers.ByteLevel()])
BPE = models.BPE


@pytest.mark.parametrize(
    ("model", "parts", "what"),
    [
        (models.WordPiece({"[UNK]": 0}), {"decoder": decoders.WordPiece()}, "WordPiece"),
        (BPE({"a</w>": 0}, [], end_of_word_suffix="</w>"), {}, "</w>"),
        (BPE({"@@b": 0}, [], continuing_subword_prefix="@@"), {}, "@@"),
        (BPE({"a": 0}, []), {"decoder": decoders.BPEDecoder()}, "BPEDecoder"),
        (BPE({"a": 0, "": 1}, []), {"decoder": _BYTES}, "token 1 has no bytes"),
        *(
            (BPE(_LETTERS, []), {"decoder": _BYTES, **parts}, what)
            for parts, what in [
                ({"normalizer": normalizers.Replace(" ", "Ġ")}, "normalizer Replace"),
                ({"pre_tokenizer": pre_tokenizers.Whitespace()}, "pre-tokenizer Whitespace"),
                ({"normalizer": _UNSPACED}, "loses spaces"),
            ]
        ),
    ],
)
def test_unsupported_kinds_are_refused_by_name(model: Any, parts: Any, what: str) -> None:
    with pytest.raises(VocabularyError, match=what):
        Vocabulary.from_transformers(_with(model, **parts))


def files_of(folder: Path) -> dict[str, Path]:
    return {file.name: file for file in folder.iterdir() if file.is_file()}


@pytest.mark.parametrize("name", ["embedded", *WIDTHS])
def test_files_are_read_as_transformers_reads_them(
    name: str, request: pytest.FixtureRequest
) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    folder, generation = Path(EMBEDDED), None
    if name != "embedded":
        kind = "models" if name.startswith("tiny") else "tokenizers"
        folder = request.getfixturevalue("data").folder / kind / name
    if not (folder / "tokenizer.json").exists():
        pytest.skip(f"{name} has no tokenizer.json")
    if name == "embedded":
        generation = GenerationConfig.from_pretrained(EMBEDDED)
    one = Vocabulary.from_files(files_of(folder), name)
    other = Vocabulary.from_transformers(
        AutoTokenizer.from_pretrained(folder), one.width, generation_config=generation
    )
    rules = ("end_ids", "bos_ids", "bos_rule", "end_rule", "implied_prefix", "chat_template")
    for field in ("tokens", "special", *rules):
        assert getattr(one, field) == getattr(other, field), field
    for text in (*HARD.values(), "", "<|endoftext|></s>"):
        assert one.encode(text) == other.encode(text)


def test_files_without_a_tokenizer_json_need_transformers(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"charwise\[transformers\]"):
        Vocabulary.from_files(files_of(tmp_path), "here")
