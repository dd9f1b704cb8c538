"""The sentinels of fill-in-the-middle, as each family of models spells them.

    PSM   <prefix> P <suffix> S <middle> …       prefix, suffix, then the middle is written
    SPM   <prefix> <suffix> S <middle> P …       suffix first: the middle follows the prefix

Some tokenizers list their sentinels as ordinary added tokens, which a text that mentions them
would be read as. Here they are special tokens wherever they occur: ids, and never text.
"""

from __future__ import annotations

from typing import NamedTuple


class Spelling(NamedTuple):
    """How a family of models spells its sentinels.

    Attributes:
        family: the models that have them.
        prefix, suffix, middle: the sentinels; `middle` is None where models know the suffix first
            only, and the prefix stands at the end of the prompt (Codestral).
        ends: tokens that end a middle besides the end of text.
        written: as they are written out in a prompt's text: what comes before the prefix, before
            the suffix and before the middle.

    >>> spelling_of({"<fim_prefix>", "<fim_suffix>", "<fim_middle>"}).family
    'StarCoder, Granite'
    """

    family: str
    prefix: str
    suffix: str
    middle: str | None
    ends: tuple[str, ...] = ()
    written: tuple[str, str, str] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The sentinels, without what ends a middle."""
        return tuple(name for name in (self.prefix, self.suffix, self.middle) if name)

    @property
    def in_text(self) -> tuple[str, str, str]:
        """The sentinels as clients write them out; the last is empty where there is none."""
        return self.written or (self.prefix, self.suffix, self.middle or "")


#: By family; the first whose sentinels a vocabulary has is its own.
SPELLINGS = (
    Spelling("StarCoder, Granite", "<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    Spelling(
        "Qwen2.5-Coder, CodeGemma",
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ends=("<|file_separator|>",),
    ),
    Spelling("DeepSeek-Coder", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    Spelling(
        "Code Llama",
        "▁<PRE>",
        "▁<SUF>",
        "▁<MID>",
        ends=("▁<EOT>",),
        written=("<PRE> ", " <SUF>", " <MID>"),
    ),
    Spelling("Codestral", "[PREFIX]", "[SUFFIX]", None),
)

#: Every sentinel, and every token that ends a middle.
NAMES = frozenset(name for one in SPELLINGS for name in (*one.names, *one.ends))
ENDS = frozenset(name for one in SPELLINGS for name in one.ends)


def spelling_of(names: set[str] | frozenset[str]) -> Spelling | None:
    """The spelling whose sentinels are all among these names of special tokens; None if none is.

    >>> spelling_of({"[PREFIX]", "[SUFFIX]"}).middle is None, spelling_of({"<s>"})
    (True, None)
    """
    return next((one for one in SPELLINGS if set(one.names) <= names), None)
