"""The vocabulary Δ and its decoder κ: the bytes that each token id adds to the text, or None.

κ is multiplicative (the bytes of a token string are its tokens' bytes, joined) and strict-prefix
monotone (no token is empty), which makes every covering finite (Vieira et al. 2025, §2.4 and
Proposition 1).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from charwise.errors import SettingError, VocabularyError, quote
from charwise.tokens.canonical import Canonical, to_bytes
from charwise.tokens.prompts import Prompt, PromptStart, last_text, parts_of
from charwise.tokens.sentinels import ENDS, TURNS, ControlTokens
from charwise.tokens.utf8 import seam

if TYPE_CHECKING:
    from pathlib import Path

    import tiktoken


class Vocabulary:
    """Token bytes, special tokens, end tokens and the start-of-text rule of one model.

    Attributes:
        tokens: `tokens[id]` is the token's bytes, or None; as long as the output layer is wide.
        special: id → spelling, of the special tokens; inside a text it is ordinary text.
        end_ids: ids that end a text, in rising order.
        bos_ids: ids that the model is conditioned on before any text.
        bos_rule, end_rule: sentences that say where `bos_ids` and `end_ids` came from.
        implied_prefix: bytes that the tokenizer implies before a text: `b" "` in Llama 2's way.
        control: what the tokenizer does around control tokens.
        chat_template: the Jinja template that writes messages as one prompt; None if there is none.

    >>> names = {3: "</s>", 4: "<|im_end|>", 5: "<file_sep>"}
    >>> tokens = [b"a", b"b", b"ab", None, None, None]
    >>> vocabulary = Vocabulary.from_bytes(tokens, end_ids=[3], bos_ids=[3], special=names)
    >>> vocabulary.encode("abb"), vocabulary.decode([2, 1, 3]), vocabulary.encode_prompt([3, "aa"])
    ([2, 1], b'abb', [3, 0, 0])
    >>> vocabulary.max_token_bytes, vocabulary.fertility, vocabulary.counted.tolist()
    (2, 1, [True, True, True, True, False, False])
    >>> vocabulary.stop_ids, vocabulary.closing
    ((3, 4), frozenset({5}))
    """

    def __init__(
        self,
        tokens: Sequence[bytes | None],
        *,
        canonical: Canonical | None = None,
        special: Mapping[int, str] | None = None,
        end_ids: Iterable[int] = (),
        bos_ids: Sequence[int] = (),
        bos_rule: str | None = None,
        end_rule: str = "as given.",
        implied_prefix: bytes = b"",
        width: int | None = None,
        control: ControlTokens | None = None,
        chat_template: str | None = None,
    ) -> None:
        self.special = dict(special or {})
        self.end_ids = tuple(sorted({operator.index(id) for id in end_ids}))
        self.tokens = _checked(tokens, {*self.special, *self.end_ids}, width)
        self.bos_ids = tuple(map(operator.index, bos_ids))
        if bos_rule is None:
            bos_rule = "as given." if self.bos_ids else "no start token: none was given."
        self.bos_rule = bos_rule
        self.end_rule = end_rule
        self.implied_prefix = implied_prefix
        self.control = control or ControlTokens({}, prefix=implied_prefix)
        self.chat_template = chat_template
        for id in (*self.end_ids, *self.bos_ids):
            if not 0 <= id < self.width:
                raise VocabularyError(
                    f"the special token {id} is outside the output layer (width {self.width}). "
                    "Pass width=model.config.vocab_size of the model this tokenizer belongs to."
                )
        self._canonical = canonical or Canonical(self.tokens)

    @classmethod
    def from_bytes(
        cls,
        tokens: Sequence[bytes | None],
        *,
        end_ids: Iterable[int] = (),
        bos_ids: Sequence[int] = (),
        width: int | None = None,
        special: Mapping[int, str] | None = None,
    ) -> Vocabulary:
        """A vocabulary from a plain list of byte strings; its encoder uses the fewest tokens.

        None stands for ids that spell nothing. Raises `VocabularyError` on an empty byte string.
        """
        return cls(tokens, end_ids=end_ids, bos_ids=bos_ids, width=width, special=special)

    @classmethod
    def from_transformers(
        cls,
        tokenizer: Any,
        width: int | None = None,
        *,
        generation_config: Any = None,
        bos_ids: Sequence[int] | None = None,
    ) -> Vocabulary:
        """The vocabulary of a transformers *fast* tokenizer.

        Args:
            tokenizer: byte-level BPE, or SentencePiece-style BPE or Unigram.
            width: of the model's output layer (`model.config.vocab_size`); ids beyond the
                tokenizer's are never allowed and never counted.
            generation_config: of the model; its `eos_token_id` become end tokens, but for words.
            bos_ids: what to condition on before any text, `()` for nothing; by default what the
                tokenizer itself adds, else its start token, else its end-of-text token; no marker
                of turns.

        Raises:
            VocabularyError: for tokenizers of another kind, by name, with what to do instead.

        >>> from charwise.models import EMBEDDED
        >>> from transformers import AutoTokenizer
        >>> vocabulary = Vocabulary.from_transformers(AutoTokenizer.from_pretrained(EMBEDDED))
        >>> vocabulary.decode(vocabulary.encode("def f(x):\\r\\n\\treturn 'é'")).decode()
        "def f(x):\\r\\n\\treturn 'é'"
        """
        from charwise.tokens.tokenizers import read_transformers

        return cls(**read_transformers(tokenizer, width, generation_config, bos_ids))

    @classmethod
    def from_files(cls, files: Mapping[str, Path], name: str) -> Vocabulary:
        """The vocabulary of a `tokenizer.json` and the files beside it, without transformers.

        Args:
            files: file name → its path.
            name: of the model, for errors.

        Raises:
            ModelError: there is no `tokenizer.json`.
            VocabularyError: as `from_transformers`.
        """
        from charwise.tokens.tokenizers import read_files

        return cls(**read_files(files, name))

    @classmethod
    def from_tiktoken(
        cls,
        encoding: tiktoken.Encoding,
        width: int | None = None,
        *,
        end_ids: Iterable[int] | None = None,
        bos_ids: Sequence[int] | None = None,
    ) -> Vocabulary:
        """The vocabulary of a tiktoken `Encoding`; the end token is its `<|endoftext|>`.

        >>> import tiktoken
        >>> ranks = {bytes([n]): n for n in range(256)}
        >>> encoding = tiktoken.Encoding(
        ...     "raw", pat_str=".", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 256}
        ... )
        >>> Vocabulary.from_tiktoken(encoding).end_ids
        (256,)
        """
        from charwise.tokens.tokenizers import read_tiktoken

        return cls(**read_tiktoken(encoding, width, end_ids, bos_ids))

    @property
    def width(self) -> int:
        """The width of the model's output layer: logits are `[…, width]`."""
        return len(self.tokens)

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        """The ids that share the probability, tokens of text and end tokens: `[width]` bool."""
        mask = np.array([token is not None for token in self.tokens], dtype=np.bool_)
        mask[list(self.end_ids)] = True
        mask.setflags(write=False)
        return mask

    @cached_property
    def uncounted(self) -> NDArray[np.int64]:
        """The other ids, in rising order: no text has them."""
        return np.flatnonzero(~self.counted)

    @cached_property
    def closing(self) -> frozenset[int]:
        """The control tokens that end a text: padding, and those that come before another file."""
        return frozenset(id for id, name in self.special.items() if name in ENDS)

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids where generation stops: `end_ids`, and the ends of turns, in rising order."""
        turns = [id for id, name in self.special.items() if name in TURNS]
        return tuple(sorted({*self.end_ids, *turns}))

    @cached_property
    def max_token_bytes(self) -> int:
        """The most bytes that one token adds (Vieira et al. 2025, eq. 27)."""
        return max((len(token) for token in self.tokens if token is not None), default=0)

    @cached_property
    def fertility(self) -> int:
        """The most tokens that share the same bytes (Vieira et al. 2025, eq. 22)."""
        counts = Counter(token for token in self.tokens if token is not None)
        return max(counts.values(), default=0)

    @cached_property
    def byte_complete(self) -> bool:
        """Whether every byte has a token, so that every text has an encoding."""
        present = {token for token in self.tokens if token is not None and len(token) == 1}
        return len(present) == 256

    def encode(self, text: str | bytes) -> list[int]:
        """The canonical token ids of a text, whose bytes concatenate to exactly that text.

        No character is read as a special token, and neither normalizers nor `implied_prefix`
        apply. Bytes that are not UTF-8 are valid where the vocabulary can spell them.

        Raises:
            VocabularyError: what has no token, at which byte, and what to do.
        """
        return self._canonical(to_bytes(text))

    def encode_beginning(self, data: bytes) -> list[int]:
        """Return the canonical ids of `data`, or of its longest beginning that has an encoding.

        Raises:
            VocabularyError: if what is left could not be the beginning of one token.

        >>> Vocabulary.from_bytes([b"a", b"bc"]).encode_beginning(b"aab")
        [0, 0]
        """
        data = to_bytes(data)
        end = len(data)
        while True:
            try:
                return self.encode(data[:end])
            except VocabularyError as error:
                if len(data) - error.position >= self.max_token_bytes or error.position >= end:
                    raise
                end = error.position

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Return the ids of a prompt (text, bytes, or a list of texts and ids), no start token.

        Raises:
            VocabularyError: for what is no prompt, or what no token spells.
        """
        return self._ids(parts_of(prompt))

    def split_prompt(self, *prompts: Prompt) -> tuple[PromptStart, bytes]:
        """Return the start of a prompt, and its text, which the implied prefix begins.

        The start is all up to the last token id, after the start token where it does not begin
        with a special one. Several prompts are read one after the other.

        Raises:
            VocabularyError: for what is no prompt, or what no token spells before the last id.
            SettingError: for a model with neither a start nor an end token, and no id given.

        >>> vocabulary = Vocabulary.from_bytes([b"a", b"b", None], end_ids=[2], bos_ids=[2])
        >>> vocabulary.split_prompt("ab"), vocabulary.split_prompt([2, "a", 0], "b")[0].ids
        ((PromptStart(ids=(2,), implied_prefix=b''), b'ab'), (2, 0, 0))
        """
        before, text = last_text([part for prompt in prompts for part in parts_of(prompt)])
        ids = self._ids(before)
        implied_prefix = self.control.prefix if ids else self.implied_prefix
        if not ids or self.tokens[ids[0]] is not None:
            ids = [*self.bos_ids, *ids]
        if not ids:
            raise SettingError(
                "this model has no start token and no end token, so nothing to condition an "
                "empty context on. Begin the prompt with a token id: [id, 'text']."
            )
        # The tokenizer implies its leading space at the start of a text only.
        if tuple(ids) != self.bos_ids:
            implied_prefix = b""
        return PromptStart(tuple(ids), implied_prefix), implied_prefix + text

    def _ids(self, parts: Iterable[str | bytes | int]) -> list[int]:
        ids: list[int] = []
        width = self.width
        for part in parts:
            if not isinstance(part, int):
                ids += self.encode(part)
            elif 0 <= part < width:
                ids.append(part)
            else:
                raise self._no_id(part)
        return ids

    def decode(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of a token string (κ); special tokens and unused ids add none.

        Raises:
            VocabularyError: for a number that is no id of the output layer.
        """
        out = []
        for id in ids:
            if not 0 <= id < self.width:
                raise self._no_id(id)
            out.append(self.tokens[id] or b"")
        return b"".join(out)

    def seam(self, ids: Sequence[int], places: range) -> int:
        """Return the best of these places to cut a token string: a number of tokens.

        The rule is `utf8.seam`'s: after a line, else before a space, else between characters.

        >>> vocabulary = Vocabulary.from_bytes([b"a", b"b", b" ", b"b\\n"])
        >>> vocabulary.seam([0, 3, 0, 2, 1], range(1, 5)), vocabulary.seam([0, 2, 1], range(3))
        (2, 1)
        """
        offsets = [0, *accumulate(len(self.tokens[id] or b"") for id in ids)]
        offset = seam(self.decode(ids), [offsets[at] for at in places])
        return next(at for at in places if offsets[at] == offset)

    def _no_id(self, id: int) -> VocabularyError:
        return VocabularyError(f"{quote(id)} is not a token id: the width is {self.width}.")

    def __len__(self) -> int:
        """How many tokens have bytes."""
        return sum(token is not None for token in self.tokens)

    def __repr__(self) -> str:
        return (
            f"Vocabulary({len(self)} tokens, width={self.width}, "
            f"max_token_bytes={self.max_token_bytes}, "
            f"fertility={self.fertility}, end_ids={self.end_ids}, bos_ids={self.bos_ids})"
        )


def _checked(
    tokens: Sequence[bytes | None], without_bytes: set[int], width: int | None
) -> tuple[bytes | None, ...]:
    """Token bytes, as many as the output layer is wide; None for special and end tokens."""
    checked = [None if id in without_bytes else token for id, token in enumerate(tokens)]
    if b"" in checked:
        raise VocabularyError(
            f"token {checked.index(b'')} has no bytes. A token of text must add at least one byte "
            "(κ must be strict-prefix monotone): pass None for ids that spell nothing."
        )
    if width is not None:
        if any(token is not None for token in checked[width:]):
            raise VocabularyError(
                f"the tokenizer has tokens beyond the model's output layer (width {width}): the "
                "two do not belong together. Load the tokenizer that was saved with the model."
            )
        checked = checked[:width] + [None] * (width - len(checked))
    if not any(token is not None for token in checked):
        raise VocabularyError("the vocabulary has no token of text: give the bytes of one or more.")
    return tuple(checked)
