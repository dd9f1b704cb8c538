"""Small tokenizers of every kind that is supported, trained or made by hand, and hard texts."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import tiktoken
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from charwise import Vocabulary

MIXED = (
    "def add(a, b):\n    return a + b  # naïve, façade\n\n"
    "The cat sat on the mat, then the other cat sat.\r\n"
    "Œuvre d’été — 3,14 €; 你好世界; नमस्ते दुनिया; สวัสดี; 👩‍👩‍👧 👍🏽\n"
    "\tfor item in items:   print(f'{item!r:>10}')\n"
)
HARD = {
    "code": 'def f(x):\r\n\tif x  >= 10:\r\n\t\treturn {"a": [1, 2,  3]}  # ok\r\n\n\n    pass\n',
    "spaces": " leading,  two,   three, \t tab, trailing   ",
    "emoji": "👩‍👩‍👧‍👦 👍🏽 🇫🇷 ☺️ 🏳️‍🌈 a\u200db\u200cc\u200bd \ufeff",
    "marks": "▁literal▁ ▁▁ Ġ Ċ <0x0A> <0x41> <0xGG>",
    "special": "<s>a</s> <unk> <|endoftext|> <|im_start|>user <|begin_of_text|> <|eot_id|> [INST]",
    "nul": "a\0b\0\0\x01\x7f\x85\u2028\u00a0",
    "decomposed": unicodedata.normalize("NFD", "naïve Ångström 가각 ệ") + " ﬁ ℌ Å \u0344",
    "french": "L’œuvre d’un été à Noël : « Où sont les forêts ? » — coûta 3 € à l’aïeul, ça va…",
}
STRAY = [
    bytes(range(256)),
    bytes(range(255, -1, -1)),
    "où".encode()[:-1],
    "go 👍".encode()[:-1],
    "é!".encode()[1:],
    b"a\xc0\x80b \xed\xa0\x80 \xf5\xff c",  # overlong, surrogates
    "forê\udcfft \udc80s".encode("utf-8", "surrogateescape"),
    b"",
]
_REPLACE = normalizers.Replace(" ", "▁")
_NEVER = pre_tokenizers.Metaspace(prepend_scheme="never")
_GPT = pre_tokenizers.Split(Regex("Ġ?[^Ġ]+|Ġ+"), "isolated")
_BYTES = normalizers.ByteLevel()


def fast(tokenizer: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def byte_level(
    normalizer: Any = None,
    pre_tokenizer: Any = pre_tokenizers.ByteLevel(add_prefix_space=False),  # noqa: B008
) -> PreTrainedTokenizerFast:
    """Byte-level BPE; its bytes are written by the pre-tokenizer, or by a normalizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([MIXED] * 9, trainer)
    return fast(tokenizer, eos_token="<|end|>")


def sentencepiece(
    normalizer: Any = None,
    pre_tokenizer: Any = None,
    *,
    byte_fallback: bool = True,
    strip: bool = False,
) -> PreTrainedTokenizerFast:
    """BPE over characters, ▁ for a space, where the rarer characters are spelled in bytes."""
    trained = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=byte_fallback))
    trained.pre_tokenizer = _NEVER
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256 * byte_fallback))]
    trainer = trainers.BpeTrainer(
        vocab_size=len(first) + 160, special_tokens=first, show_progress=False
    )
    trained.train_from_iterator(["".join(c for c in MIXED if ord(c) < 0x900)] * 9, trainer)
    tokenizer = Tokenizer(trained.model)  # without the added tokens
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    undo = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*undo, *([decoders.Strip(" ", 1, 0)] if strip else [])])
    return fast(tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def metaspace(byte_fallback: bool = True) -> PreTrainedTokenizerFast:
    first = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return sentencepiece(None, first, byte_fallback=byte_fallback, strip=True)


def legacy_llama() -> PreTrainedTokenizerFast:
    """Llama 2 as first converted: the space is prepended by a normalizer."""
    return sentencepiece(normalizers.Sequence([normalizers.Prepend("▁"), _REPLACE]), strip=True)


def unigram(
    byte_fallback: bool = False, normalizer: Any = _REPLACE, scheme: str | None = "never"
) -> PreTrainedTokenizerFast:
    """Trained; with byte tokens, or without. A scheme says where a space is put before a text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    if scheme is not None:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    trainer = trainers.UnigramTrainer(
        vocab_size=160, unk_token="<unk>", special_tokens=["<unk>", "</s>"], show_progress=False
    )
    tokenizer.train_from_iterator([MIXED.replace("\n", " ")] * 9, trainer)
    if byte_fallback:
        pieces = [tuple(piece) for piece in json.loads(tokenizer.model.__getstate__())["vocab"]]
        pieces += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
        tokenizer.model = models.Unigram(pieces, 0, True)
    undo = [decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()]
    tokenizer.decoder = (
        decoders.Sequence(undo) if byte_fallback else decoders.Metaspace(prepend_scheme="never")
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


#: Tokenizers that put no space before a text.
PLAIN = {
    "BPE": byte_level,
    "BPE, normalized to bytes": lambda: byte_level(_BYTES, None),
    "BPE, NFC and then bytes": lambda: byte_level(
        normalizers.Sequence([normalizers.NFC(), _BYTES]), None
    ),
    "BPE, normalized to bytes and split": lambda: byte_level(_BYTES, _GPT),
    "BPE, byte fallback": lambda: sentencepiece(None, _NEVER),
    "BPE, byte fallback, no words": lambda: sentencepiece(
        None, pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    ),
    # Spaces are replaced by a normalizer, and texts split after each of them.
    "Gemma": lambda: sentencepiece(_REPLACE, pre_tokenizers.Split(" ", "merged_with_previous")),
    "Unigram": unigram,
    "Unigram, no words": lambda: unigram(scheme=None),
}
#: Tokenizers that do, and those that change texts.
SPACED = {
    "BPE, leading space": lambda: byte_level(None, pre_tokenizers.ByteLevel()),
    "metaspace": metaspace,
    "legacy Llama": legacy_llama,
    "Unigram, byte fallback, NFKC": lambda: unigram(True, normalizers.NFKC(), "always"),
}
CHANGING = {
    form: lambda form=form: byte_level(getattr(normalizers, form)())
    for form in ("NFC", "NFD", "NFKC", "NFKD")
}
EVERY = PLAIN | SPACED | CHANGING

#: Makers of vocabularies, by the kind: of all that have every byte.
COMPLETE: dict[str, Any] = {
    name: lambda make=make: Vocabulary.from_transformers(make())
    for name, make in EVERY.items()
    if name not in ("Unigram", "Unigram, no words")
} | {
    "tiktoken": lambda: Vocabulary.from_tiktoken(small_tiktoken()),
    "bytes": lambda: Vocabulary.from_bytes([*(bytes([b]) for b in range(256)), b"the", b" t"]),
}
