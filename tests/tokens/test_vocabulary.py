"""Δ and κ: token bytes, encoders that lose nothing, end tokens, start rules, refusals."""

from __future__ import annotations

import itertools
import pickle
import re
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from charwise import Vocabulary
from charwise.engines.pretrained import read_vocabulary
from charwise.errors import VocabularyError
from charwise.tokens.canonical import Canonical
from conftest import LANGUAGES, Data, Named
from models import examples

FRENCH = (
    "L’œuvre d’un été à Noël : « Où sont les forêts ? » — coûta 3 € à l’aïeul, ça va, n’est-ce pas…"
)
HARD = {
    "code": 'def f(x):\r\n\tif x  >= 10:\r\n\t\treturn {"a": [1, 2,  3]}  # ok\r\n\n\n    pass\n',
    "spaces": " leading,  two,   three, \t tab, trailing   ",
    "emoji": "👩‍👩‍👧‍👦 👍🏽 🇫🇷 ☺️ 🏳️‍🌈 a\u200db\u200cc\u200bd \ufeff",
    "marks": "▁literal▁ ▁▁ Ġ Ċ <0x0A> <0x41> <0xGG>",
    "special": "<s>a</s> <unk> <|endoftext|> <|im_start|>user <|begin_of_text|> <|eot_id|> [INST]",
    "nul": "a\0b\0\0\x01\x7f\x85\u2028\u00a0",
    "decomposed": unicodedata.normalize("NFD", "naïve Ångström 가각 ệ") + " ﬁ ℌ Å \u0344",
    "french": FRENCH,
}
STRAY = {
    "all bytes": bytes(range(256)),
    "all bytes, falling": bytes(range(255, -1, -1)),
    "half a character at the end": "où".encode()[:-1],
    "three quarters of an emoji": "go 👍".encode()[:-1],
    "half a character at the start": "é!".encode()[1:],
    "overlong and surrogates": b"a\xc0\x80b \xed\xa0\x80 \xf5\xff c",
    "stray inside a word": "forê\udcfft \udc80s".encode("utf-8", "surrogateescape"),
    "empty": b"",
}


# --- tokenizers made by hand -------------------------------------------------------------------

LINES = ["the cat sat on the mat, then the other cat sat", "def f(x):\n    return x  # naïve"] * 9


def fast(tokenizer: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def byte_level(add_prefix_space: bool = False, normalizer: Any = None) -> PreTrainedTokenizerFast:
    """Byte-level BPE trained on two lines."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=320,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return fast(tokenizer, eos_token="<|end|>")


MERGES = [("h", "e"), ("t", "he"), ("▁", "the"), ("c", "a"), ("ca", "t"), ("▁", "cat"), ("\n", "▁")]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = ["▁", "\n", *"abcdefghijklmnopqrstuvwxyz", "é"]
UNDO_SPACES = decoders.Replace("▁", " ")


def sentencepiece_bpe(byte_fallback: bool = True) -> Tokenizer:
    """BPE over characters, ▁ for a space; without pre-tokenizer, normalizer or decoder."""
    pieces = ["<unk>", "<s>", "</s>", *(BYTE_TOKENS if byte_fallback else []), *LETTERS]
    pieces += [a + b for a, b in MERGES]
    tokenizer = Tokenizer(
        models.BPE(
            {piece: id for id, piece in enumerate(pieces)},
            MERGES,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=byte_fallback,
        )
    )
    tokenizer.decoder = decoders.Sequence(
        [UNDO_SPACES, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def metaspace(byte_fallback: bool = True) -> PreTrainedTokenizerFast:
    tokenizer = sentencepiece_bpe(byte_fallback)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return fast(tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def legacy_llama() -> PreTrainedTokenizerFast:
    """Llama 2 as first converted: the space is prepended by a normalizer."""
    tokenizer = sentencepiece_bpe()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return fast(tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def gemma() -> PreTrainedTokenizerFast:
    """No leading space, spaces replaced by a normalizer, then split after each of them."""
    tokenizer = sentencepiece_bpe()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([UNDO_SPACES, decoders.ByteFallback(), decoders.Fuse()])
    return fast(tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def unigram(byte_fallback: bool = True) -> PreTrainedTokenizerFast:
    pieces = [("<unk>", 0.0), ("</s>", 0.0)]
    pieces += [(piece, -9.0) for piece in BYTE_TOKENS if byte_fallback]
    pieces += [(letter, -5.0) for letter in LETTERS]
    pieces += [("▁the", -2.0), ("▁cat", -2.0), ("at", -3.0), ("▁▁", -3.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, 0, byte_fallback))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = (
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()])
        if byte_fallback
        else decoders.Metaspace()
    )
    return fast(tokenizer, eos_token="</s>", unk_token="<unk>")


def small_tiktoken() -> tiktoken.Encoding:
    ranks = {bytes([byte]): byte for byte in range(256)}
    ranks |= {b"he": 256, b"the": 257, b" the": 258, b"  ": 260, "é".encode(): 261}
    return tiktoken.Encoding(
        "small",
        pat_str=r" ?\p{L}+|\s+|[^\s\p{L}]+",
        mergeable_ranks=ranks,
        special_tokens={"<|endoftext|>": 264, "<|pad|>": 265},
    )


HANDMADE = {
    "byte-level": lambda: Vocabulary.from_transformers(byte_level()),
    "byte-level, leading space": lambda: Vocabulary.from_transformers(byte_level(True)),
    "byte-level, NFC": lambda: Vocabulary.from_transformers(byte_level(False, normalizers.NFC())),
    "metaspace": lambda: Vocabulary.from_transformers(metaspace()),
    "legacy llama": lambda: Vocabulary.from_transformers(legacy_llama()),
    "gemma": lambda: Vocabulary.from_transformers(gemma()),
    "unigram": lambda: Vocabulary.from_transformers(unigram()),
    "tiktoken": lambda: Vocabulary.from_tiktoken(small_tiktoken()),
    "bytes": lambda: Vocabulary.from_bytes([bytes([b]) for b in range(256)] + [b"the", b" t"]),
}


@pytest.fixture
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tokenizer's own encoder do all the work: spelling by fewest tokens fails."""

    def fail(*_: object) -> list[int]:
        raise AssertionError("the tokenizer's own encoder did not return the text it was given")

    monkeypatch.setattr(Canonical, "_fewest", fail)


@pytest.fixture(scope="module", params=HANDMADE)
def handmade(request: pytest.FixtureRequest) -> Vocabulary:
    """Byte-complete vocabularies of every supported kind; they need no data folder."""
    return HANDMADE[request.param]()


# --- encode loses nothing ----------------------------------------------------------------------


@pytest.mark.parametrize("text", [*HARD.values(), *STRAY.values()], ids=[*HARD, *STRAY])
def test_handmade_round_trip(handmade: Vocabulary, text: str | bytes) -> None:
    expected = text.encode() if isinstance(text, str) else text
    ids = handmade.encode(text)
    assert handmade.decode(ids) == expected
    assert not set(ids) & set(handmade.special)


@given(st.one_of(st.binary(max_size=40), st.text(max_size=20).map(str.encode)))
@examples(60)
def test_handmade_round_trip_of_arbitrary_bytes(handmade: Vocabulary, data: bytes) -> None:
    assert handmade.decode(handmade.encode(data)) == data


def test_round_trip_of_real_texts(named: Named, data: Data) -> None:
    texts = [data.text(language).encode() for language in LANGUAGES]
    texts += [text.encode() for text in HARD.values()]
    texts += STRAY.values()
    if not named.vocabulary.byte_complete:
        letters = {token for token in named.vocabulary.tokens if token and len(token) == 1}
        texts = [b"".join(c for c in (bytes([b]) for b in text) if c in letters) for text in texts]
    for text in texts:
        ids = named.vocabulary.encode(text)
        assert named.vocabulary.decode(ids) == text
        assert not set(ids) & set(named.vocabulary.special)


@given(data_=st.binary(max_size=60))
@examples(150)
@pytest.mark.parametrize("name", ["gpt2", "cl100k", "llama3", "qwen2", "llama2"])
def test_real_round_trip_of_arbitrary_bytes(name: str, data: Data, data_: bytes) -> None:
    vocabulary = data.vocabulary(name)
    assert vocabulary.byte_complete
    assert vocabulary.decode(vocabulary.encode(data_)) == data_


def test_canonical_ids_are_the_tokenizers_own(named: Named, data: Data) -> None:
    """Wherever the tokenizer itself returns the text it was given."""
    texts = [data.text(language) for language in LANGUAGES] + list(HARD.values())
    texts += [line for text in texts for line in text.splitlines(keepends=True)]
    compared = 0
    for text in texts:
        ids = named.tokenizer(text, add_special_tokens=False, split_special_tokens=True)[
            "input_ids"
        ]
        spelled = named.vocabulary.decode(ids)
        if None in (named.vocabulary.tokens[id] for id in ids):
            continue  # uncovered characters
        if spelled == text.encode() or spelled == named.vocabulary.implied_prefix + text.encode():
            assert named.vocabulary.encode(spelled) == ids
            compared += 1
    assert compared >= (580 if named.vocabulary.byte_complete else 290), compared


@pytest.mark.slow
def test_long_runs_encode_in_reasonable_time(data: Data) -> None:
    for text in ("x" * 20_000, " " * 20_000, "👍" * 5_000, "\n\t" * 10_000):
        for name in ("llama3", "llama2"):
            vocabulary = data.vocabulary(name)
            assert vocabulary.decode(vocabulary.encode(text)) == text.encode()


# --- every token, as the tokenizer's own decoder has it ----------------------------------------

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


@pytest.mark.parametrize(
    "make", [byte_level, metaspace, legacy_llama, gemma, unigram], ids=lambda make: make.__name__
)
def test_every_handmade_token(make: Any) -> None:
    tokenizer = make()
    compared, exactly = check_tokens(
        Vocabulary.from_transformers(tokenizer), tokenizer.backend_tokenizer
    )
    assert compared - exactly == 13


def test_tiktoken_bytes() -> None:
    encoding = small_tiktoken()
    vocabulary = Vocabulary.from_tiktoken(encoding, width=300)
    assert vocabulary.width == 300
    assert vocabulary.tokens[259] is None  # an unused id
    assert vocabulary.tokens[258] == b" the"
    assert vocabulary.special == {264: "<|endoftext|>", 265: "<|pad|>"}
    assert vocabulary.end_ids == vocabulary.bos_ids == (264,)
    assert vocabulary.encode(" the thé") == encoding.encode_ordinary(" the thé")
    assert Vocabulary.from_tiktoken(encoding, bos_ids=(), end_ids=[265]).end_ids == (265,)
    assert Vocabulary.from_tiktoken(encoding, bos_ids=()).bos_ids == ()


def test_inner_spaces_of_tinystories(data: Data) -> None:
    vocabulary = data.vocabulary("tinystories-656k")
    assert vocabulary.width == 2048
    assert sum(b" " in (token or b"")[1:].rstrip() for token in vocabulary.tokens) == 569
    assert b"little girl named " in vocabulary.tokens
    assert not vocabulary.byte_complete
    ids = vocabulary.encode("Once upon a time, there was a little girl named Lily")
    assert len(ids) < 12


# --- added tokens, gaps, twins, width ----------------------------------------------------------


@pytest.mark.usefixtures("no_fallback")
def test_added_tokens_are_text_and_keep_their_ids() -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
    tokenizer.add_tokens(["<tool>", "x y"])
    tokenizer.add_tokens([AddedToken("<think>", special=True), AddedToken("\t\t\t", special=False)])
    vocabulary = Vocabulary.from_transformers(tokenizer)
    for token in ("<tool>", "x y", "\t\t\t"):
        id = tokenizer.convert_tokens_to_ids(token)
        assert vocabulary.tokens[id] == token.encode()
        assert vocabulary.encode(f"a{token}b").count(id) == 1
        assert vocabulary.counted[id]
    text = "the<tool>cat x y\t\t\t<|pad|><think><|end|>"
    ids = vocabulary.encode(text)
    assert vocabulary.decode(ids) == text.encode()
    for token in ("<|pad|>", "<think>", "<|end|>"):
        id = tokenizer.convert_tokens_to_ids(token)
        assert vocabulary.special[id] == token
        assert vocabulary.tokens[id] is None
        assert id not in ids
    assert ids == tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def test_an_added_token_that_eats_spaces_is_still_spelled_exactly() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<eats>", lstrip=True, rstrip=True, normalized=False)])
    vocabulary = Vocabulary.from_transformers(tokenizer)
    assert vocabulary.decode(vocabulary.encode("a  <eats>  b")) == b"a  <eats>  b"


def test_gaps_in_ids_spell_nothing() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 5, "Ġ": 7}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    vocabulary = Vocabulary.from_transformers(fast(tokenizer), width=10)
    assert vocabulary.tokens == (b"a", b"b", None, None, None, b"c", None, b" ", None, None)
    assert vocabulary.encode("c ab") == [5, 7, 0, 1]
    assert vocabulary.counted.nonzero()[0].tolist() == [0, 1, 5, 7]
    assert len(vocabulary) == 4


def test_ids_beyond_the_tokenizer_are_never_counted(data: Data) -> None:
    vocabulary = data.vocabulary("qwen2")
    assert vocabulary.width == 151_936
    assert vocabulary.tokens[151_646:] == (None,) * 290
    assert not vocabulary.counted[151_646:].any()
    assert vocabulary.counted[151_643]  # <|endoftext|>: no bytes, but it has probability
    assert not vocabulary.counted[151_644]  # <|im_start|>
    assert vocabulary.counted.sum() == 151_643 + 1
    assert not vocabulary.counted.flags.writeable


def test_twins_are_both_kept(data: Data) -> None:
    vocabulary = data.vocabulary("llama2")
    assert vocabulary.fertility == 2
    assert [id for id, token in enumerate(vocabulary.tokens) if token == b"A"] == [
        0x41 + 3,
        vocabulary.encode("A")[0],
    ]
    assert vocabulary.encode("\n") == [0x0A + 3]
    assert Vocabulary.from_bytes([b"a", b"a", b"b", b"a"]).fertility == 3


# --- end tokens, start tokens, leading space ---------------------------------------------------


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


@pytest.mark.parametrize("word", ["Ċ", "Ġcat"])
def test_an_end_id_of_a_configuration_that_is_a_word_is_ignored(word: str) -> None:
    tokenizer = byte_level()
    id = tokenizer.convert_tokens_to_ids(word)
    config = SimpleNamespace(eos_token_id=[0, id])
    vocabulary = Vocabulary.from_transformers(tokenizer, generation_config=config)
    assert vocabulary.tokens[id] is not None
    assert vocabulary.end_ids == (0,)
    assert f"{id} ({(vocabulary.tokens[id] or b'').decode()!r})" in vocabulary.end_rule


MARKERS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


@pytest.mark.parametrize(
    ("start", "end", "bos", "ends"),
    [
        ("<|im_start|>", "<|im_end|>", "<|endoftext|>", {"<|endoftext|>", "<|im_end|>"}),
        ("<|endoftext|>", "<|im_end|>", "<|endoftext|>", {"<|endoftext|>", "<|im_end|>"}),
        (None, "<|im_end|>", "<|endoftext|>", {"<|endoftext|>", "<|im_end|>"}),
        # A marker of turns in some families, and all that a tokenizer names.
        ("<|im_start|>", "<|end|>", "<|endoftext|>", {"<|endoftext|>", "<|end|>"}),
        (None, None, "<|endoftext|>", {"<|endoftext|>"}),
    ],
)
def test_markers_of_turns_begin_no_text(
    start: str | None, end: str | None, bos: str, ends: set[str]
) -> None:
    backend = byte_level().backend_tokenizer
    backend.add_special_tokens(MARKERS)
    roles = {"bos_token": start, "eos_token": end}
    tokenizer = fast(backend, **{role: name for role, name in roles.items() if name})
    vocabulary = Vocabulary.from_transformers(tokenizer)
    assert [vocabulary.special[id] for id in vocabulary.bos_ids] == [bos]
    assert {vocabulary.special[id] for id in vocabulary.end_ids} == ends
    assert (start == "<|im_start|>") == ("marker of turns" in vocabulary.bos_rule)


def test_start_and_end_of_a_real_model_of_chats(smollm2: Path) -> None:
    """SmolLM2 separates documents by <|endoftext|>; its first words are dearer after a turn."""
    from_folder = read_vocabulary(str(smollm2))
    pytest.importorskip("gguf", reason="reading a GGUF file needs: pip install gguf")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=f"{smollm2.name}.gguf")
    from_file = Vocabulary.from_transformers(tokenizer)
    for vocabulary in (from_folder, from_file):
        assert vocabulary.special[vocabulary.bos_ids[0]] == "<|endoftext|>"
        assert {0, 2} <= set(vocabulary.end_ids)
    assert "<|im_start|> is a marker of turns" in from_file.bos_rule


@pytest.mark.parametrize(
    ("name", "ids", "rule"),
    [
        ("llama3", (128_000,), "the start token that the tokenizer itself adds."),
        ("gpt2", (50_256,), "the tokenizer's start token, which it does not add."),
        ("llama2", (1,), "the tokenizer's start token, which it does not add."),
        ("cl100k", (100_256,), "no start token exists: conditioned on the end-of-text token"),
        ("qwen2", (151_643,), "no start token exists: conditioned on the end-of-text token"),
        ("tinystories-3m", (14_018,), "the tokenizer's start token, which it does not add."),
        ("tinystories-656k", (1,), "the start token that the tokenizer itself adds."),
    ],
)
def test_start_rule(data: Data, name: str, ids: tuple[int, ...], rule: str) -> None:
    vocabulary = data.vocabulary(name)
    assert vocabulary.bos_ids == ids
    assert vocabulary.bos_rule.startswith(rule)


def test_start_rule_as_given_and_without_any() -> None:
    tokenizer = byte_level()
    given = Vocabulary.from_transformers(tokenizer, bos_ids=[3, 4])
    assert (given.bos_ids, given.bos_rule) == ((3, 4), "as given.")
    assert Vocabulary.from_transformers(tokenizer, bos_ids=()).bos_ids == ()
    backend = Tokenizer(models.BPE({"a": 0}, []))
    backend.decoder = decoders.ByteLevel()
    none = Vocabulary.from_transformers(fast(backend))
    assert none.bos_ids == ()
    assert none.bos_rule == "neither a start token nor an end-of-text token exists."


@pytest.mark.parametrize(
    ("special", "given", "ids", "rule"),
    [
        ({"<|other|>": 256}, {}, (), "neither a start token nor an end-of-text token exists."),
        ({"<|endoftext|>": 256}, {}, (256,), "no start token exists: conditioned on the end"),
        ({"<|other|>": 256}, {"end_ids": [256]}, (256,), "no start token exists: conditioned"),
        ({"<|endoftext|>": 256}, {"bos_ids": []}, (), "as given."),
        ({"<|endoftext|>": 256, "<|file_sep|>": 257}, {}, (256,), "no start token exists"),
    ],
)
def test_start_rule_of_tiktoken(special: Any, given: Any, ids: tuple[int, ...], rule: str) -> None:
    ranks = {bytes([n]): n for n in range(256)}
    encoding = tiktoken.Encoding("raw", pat_str=".", mergeable_ranks=ranks, special_tokens=special)
    vocabulary = Vocabulary.from_tiktoken(encoding, **given)
    assert vocabulary.bos_ids == ids
    assert vocabulary.bos_rule.startswith(rule)
    assert (257 in vocabulary.end_ids) == (len(special) == 2)  # another file ends a text


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize(
    ("make", "lead"),
    [
        (metaspace, b" "),
        (legacy_llama, b" "),
        (unigram, b" "),
        (gemma, b""),
        (byte_level, b""),
        (lambda: byte_level(add_prefix_space=True), b" "),
    ],
)
def test_lead(make: Any, lead: bytes) -> None:
    tokenizer = make()
    vocabulary = Vocabulary.from_transformers(tokenizer)
    assert vocabulary.implied_prefix == lead
    own = tokenizer("the cat", add_special_tokens=False)["input_ids"]
    assert vocabulary.encode(lead + b"the cat") == own
    for text in ("the cat", " the  cat\n the ", "cat"):
        assert vocabulary.decode(vocabulary.encode(text)) == text.encode()


def test_lead_of_real_tokenizers(named: Named) -> None:
    spaced = named.name in ("llama2", "tinystories-656k")
    assert named.vocabulary.implied_prefix == (b" " if spaced else b"")


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_normalizers_do_not_apply(form: str) -> None:
    tokenizer = byte_level(normalizer=getattr(normalizers, form)())
    vocabulary = Vocabulary.from_transformers(tokenizer)
    text = HARD["decomposed"] + unicodedata.normalize("NFC", HARD["decomposed"])
    assert vocabulary.decode(vocabulary.encode(text)) == text.encode()


def test_the_tokenizer_itself_is_left_as_it_was() -> None:
    for make in (byte_level, metaspace, legacy_llama, gemma, unigram):
        tokenizer = make()
        tokenizer.add_tokens(["<tool>"])
        before = tokenizer.backend_tokenizer.to_str()
        Vocabulary.from_transformers(tokenizer).encode("the <tool> cat")
        assert tokenizer.backend_tokenizer.to_str() == before


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "what", "position"),
    [
        (b"aab", "the character 'b' (U+0062 LATIN SMALL LETTER B)", 2),
        (b"\xffa", "the byte 0xFF", 0),
        (b"a\x80", "the byte 0x80", 1),
        ("aé".encode(), "the character 'é'", 2),  # its first byte has a token
        ("a👍".encode(), "the character '👍' (U+1F44D THUMBS UP SIGN)", 1),
        ("a👍".encode()[:-1], "the byte 0xF0", 1),
        (b"a\x00", r"the character '\x00' (U+0000 unnamed)", 1),
        ("a\xc3\ud83d", "lone surrogate, U+D83D, at character 2", 3),
    ],
)
def test_uncovered_bytes_are_named(text: str | bytes, what: str, position: int) -> None:
    vocabulary = Vocabulary.from_bytes([b"a", b"\xc3"])
    with pytest.raises(VocabularyError, match=re.escape(what)) as caught:
        vocabulary.encode(text)
    assert caught.value.position == position


@pytest.mark.parametrize("make", [metaspace, unigram])
def test_uncovered_character_without_byte_fallback(make: Any) -> None:
    vocabulary = Vocabulary.from_transformers(make(byte_fallback=False))
    with pytest.raises(VocabularyError, match="the byte 0xFE at byte 6") as caught:
        vocabulary.encode("thé c".encode() + b"\xfe\xff")
    assert caught.value.position == 6
    assert vocabulary.decode(vocabulary.encode("the cat é")) == "the cat é".encode()
    with pytest.raises(VocabularyError, match="GREEK SMALL LETTER LAMDA") as caught:
        vocabulary.encode("the λ cat")
    assert caught.value.position == 4
    with pytest.raises(VocabularyError, match="LOWER ONE EIGHTH BLOCK"):
        vocabulary.encode("a ▁ b")  # the tokenizer would make a space of it


def test_encode_prompt() -> None:
    vocabulary = Vocabulary.from_bytes([b"a", b"b", b"ab", None], end_ids=[3])
    assert vocabulary.encode_prompt("aab") == vocabulary.encode_prompt(b"aab") == [0, 2]
    assert vocabulary.encode_prompt([3, "ab", b"a", 1, ""]) == [3, 2, 0, 1]
    assert vocabulary.encode_prompt([]) == vocabulary.encode_prompt("") == []


def test_a_tokenizer_with_an_empty_token_is_refused() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0, "": 1}, []))
    tokenizer.decoder = decoders.ByteLevel()
    with pytest.raises(VocabularyError, match="token 1 has no bytes"):
        Vocabulary.from_transformers(fast(tokenizer))


def wordpiece() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    return fast(tokenizer)


def wordlevel() -> PreTrainedTokenizerFast:
    return fast(Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]")))


def clip() -> PreTrainedTokenizerFast:
    return fast(Tokenizer(models.BPE({"a": 0, "a</w>": 1}, [], end_of_word_suffix="</w>")))


def continuing() -> PreTrainedTokenizerFast:
    return fast(Tokenizer(models.BPE({"a": 0, "@@b": 1}, [], continuing_subword_prefix="@@")))


def bpe_decoder() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.decoder = decoders.BPEDecoder()
    return fast(tokenizer)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (wordpiece, "is a WordPiece tokenizer"),
        (wordlevel, "is a WordLevel tokenizer"),
        (clip, "end_of_word_suffix"),
        (continuing, "continuing_subword_prefix"),
        (bpe_decoder, "decodes with BPEDecoder"),
        (ByT5Tokenizer, "ByT5Tokenizer is not a fast tokenizer"),
    ],
)
def test_unsupported_kinds_are_refused_by_name(make: Any, message: str) -> None:
    with pytest.raises(VocabularyError, match=message) as caught:
        Vocabulary.from_transformers(make())
    assert "Vocabulary.from_bytes" in str(caught.value)


# --- pickling ----------------------------------------------------------------------------------


def test_pickle(handmade: Vocabulary) -> None:
    same = pickle.loads(pickle.dumps(handmade))
    for text in (FRENCH, bytes(range(256))):
        assert same.encode(text) == handmade.encode(text)
    assert repr(same) == repr(handmade)
    assert (same.tokens, same.special, same.implied_prefix) == (
        handmade.tokens,
        handmade.special,
        handmade.implied_prefix,
    )
