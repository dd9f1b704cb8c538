"""Prompts cut where healing should start, as every host does it; pure, on token ids.

At the other end, a middle may end only with the bytes that the suffix gave up:

    new bytes, ending  →  what is still missing           fim.missing_suffix
    missing            →  the end is not allowed, and its probability goes to what is missing

A model that would end the middle before that has said that it is over; all that is missing then
is what the suffix begins with. Like the mask at the beginning, this is read off the token ids at
every call. The end itself is never forced: a model that goes on past the ending may do so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.errors import SettingError, VocabularyError, shown
from charwise.healing import Rule, cut, prompt_ids, remaining
from charwise.healing.fim import Template, missing_suffix, missing_suffix_tokens, request
from charwise.healing.fim_text import cut_template, with_sentinels
from charwise.tokens.canonical import to_bytes
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Prompt
from charwise.tokens.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

    Row = torch.Tensor | NDArray[np.floating[Any]]


class HealedPrompt(NamedTuple):
    """A prompt cut in two, and how many of its tokens were given back.

    Attributes:
        kept: token ids of the prompt.
        forced: bytes that the completion must begin with.
        given_back: tokens of the prompt that were taken off.
        ending: bytes that a middle must end with (`healing.fim`): the beginning of the suffix.
        until: a longer beginning of the suffix; a middle that writes it has ended before it.

    >>> HealedPrompt(kept=[0], forced=b" Nod", given_back=2).most_again
    4
    """

    kept: list[int]
    forced: bytes
    given_back: int
    ending: bytes = b""
    until: bytes = b""

    @property
    def most_again(self) -> int:
        """Most tokens that write the forced text again: one for each byte.

        An engine that counts tokens itself is asked for so many more than the caller wants.
        `Continuation` cuts off the surplus.
        """
        return len(self.forced)

    def regex(self) -> str:
        r"""The regular expression of all texts that begin with the forced bytes.

        Under it, an engine's guided decoding allows the tokens of `healing.allowed_next`.

        Raises:
            VocabularyError: the forced bytes are not whole characters, or have a NUL.

        >>> HealedPrompt([0], b" f(", 2).regex()
        ' f\\((.|\\n)*'
        """
        return re.sub(r"([\\^$.|?*+()\[\]{}/-])", r"\\\1", self._forced_text()) + "(.|\\n)*"

    def gbnf(self) -> str:
        r"""The same as a grammar of llama.cpp.

        Raises:
            VocabularyError: the forced bytes are not whole characters, or have a NUL.

        >>> HealedPrompt([0], 'x = "é'.encode(), 2).gbnf()
        'root ::= "x = \\u0022\\u00E9" .*'
        """
        literal = "".join(
            character
            if character.isascii() and (character.isalnum() or character in " _=.,:;()+-*/")
            else f"\\u{ord(character):04X}"
            if ord(character) < 0x10000
            else f"\\U{ord(character):08X}"
            for character in self._forced_text()
        )
        return f'root ::= "{literal}" .*'

    def lookalikes(self, vocabulary: Vocabulary) -> list[int]:
        """Ids of control tokens that a grammar may take for forced text, by their spelling.

        A `<|im_start|>` would do for a forced `<`.
        """
        text = self.forced.decode("utf-8", "replace")
        ends = [text[at:] for at in range(len(text))]
        return [
            id
            for id, name in vocabulary.special.items()
            if name and any(end.startswith(name) or name.startswith(end) for end in ends)
        ]

    def _forced_text(self) -> str:
        try:
            text = self.forced.decode()
        except UnicodeDecodeError:
            raise VocabularyError(
                f"{shown(self.forced)} is not whole characters: an expression over characters "
                "cannot force it. Give back one token more."
            ) from None
        if "\0" in text:
            raise VocabularyError("a NUL cannot be forced: no grammar lets it through.")
        return text


def heal_prompt(prompt: Prompt, index: SortedVocabulary, rule: Rule = "auto") -> HealedPrompt:
    """Return `healing.cut`, and the number of tokens given back; raises the same errors.

    A prompt that holds a whole template of fill-in-the-middle, as ids or written out in its text,
    is cut where the prefix inside it ends: see `charwise.healing.fim_text`.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"->", b" ", b"No", b"d", b" Node"]))
    >>> heal_prompt("-> Nod", index)
    HealedPrompt(kept=[0], forced=b' Nod', given_back=3, ending=b'', until=b'')
    """
    if not isinstance(index, SortedVocabulary):
        raise SettingError(
            f"index is a {type(index).__name__}: make one with SortedVocabulary(vocabulary)."
        )
    if isinstance(prompt, str):
        prompt = with_sentinels(prompt, index.vocabulary)
    ids = prompt_ids(prompt, index.vocabulary)
    kept, forced = cut_template(ids, index, rule) or cut(ids, index, rule)
    return HealedPrompt(kept, forced, len(ids) - len(kept))


def heal_characters(prompt: Prompt, index: SortedVocabulary, rule: Rule = "auto") -> HealedPrompt:
    """Return `heal_prompt`, cut earlier where that would be inside a character.

    Expressions force characters, not bytes.
    """
    healed = heal_prompt(prompt, index, rule)
    while healed.forced and healed.forced[0] & 0xC0 == 0x80:
        earlier = heal_prompt(prompt, index, healed.given_back + 1)
        if earlier.given_back == healed.given_back:
            break
        healed = earlier
    return healed


def heal_middle(
    prefix: str | bytes,
    suffix: str | bytes,
    index: SortedVocabulary,
    rule: Rule = "auto",
    *,
    right: Rule = "auto",
    most: int | None = None,
    template: Template | None = None,
) -> HealedPrompt:
    """The model's own template around two texts, both of which are cut where healing should start.

    Args:
        prefix, suffix: texts, or bytes.
        index: of the model's vocabulary.
        rule: where to cut the prefix, as for `healing.cut`.
        right: where to cut the suffix, by the same rule, mirrored; "off" where nothing can see to
            it that the middle ends with what is cut off.
        most: tokens that fit; what is too long is cut at the far ends.
        template: its sentinels, where the special tokens do not show them.

    Raises:
        SettingError: a model that is not known to fill in the middle.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> names = {3: "<fim_prefix>", 4: "<fim_suffix>", 5: "<fim_middle>"}
    >>> tokens = [b"a", b"ab", b"c", None, None, None]
    >>> heal_middle("ca", "c", SortedVocabulary(Vocabulary.from_bytes(tokens, special=names)))
    HealedPrompt(kept=[3, 2, 4, 2, 5], forced=b'a', given_back=1, ending=b'', until=b'c')
    """
    template = Template.of(index.vocabulary) if template is None else template
    asked = request(prefix, suffix, template, index, left=rule, right=right, most=most)
    given_back = len(index.vocabulary.encode(asked.forced))
    until = _beginning(to_bytes(suffix))
    return HealedPrompt(asked.ids, asked.forced, given_back, asked.ending, until)


def _beginning(suffix: bytes) -> bytes:
    """Return the lines of a suffix that show that a middle goes on into it.

    They end with the first line by which there are eight bytes besides spaces; where the suffix
    has fewer, they are all of it, and none where it has only spaces.

    >>> _beginning(b")\\n    return total\\n\\nprint()"), _beginning(b"\\n")
    (b')\\n    return total\\n', b'')
    """
    end = 0
    for line in suffix.splitlines(keepends=True):
        end += len(line)
        if len(b"".join(suffix[:end].split())) >= 8:
            break
    return suffix[:end] if suffix[:end].strip() else b""


def hold_end_of_(
    row: Row,
    forced: bytes,
    ending: bytes,
    generated: Sequence[int],
    index: SortedVocabulary,
) -> bool:
    """`_hold_end_` for a row whose tokens since the cut are given: all of them.

    While the forced text is not reproduced there is nothing to do: its mask allows no end. Later
    only as many tokens are read as the ending has bytes.

    >>> from charwise import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"y", b"ex", None], end_ids=[2]))
    >>> row = np.zeros(3)
    >>> hold_end_of_(row, b"y", b"ex", [0, 0], index), row.round(4)
    (True, array([0.    , 0.6931,   -inf]))
    >>> hold_end_of_(row, b"y", b"ex", [0, 1], index)
    False
    """
    if not ending:
        return False
    new: bytes | None
    if len(generated) >= len(forced) + len(ending):  # each token has a byte at least
        new = index.vocabulary.decode(generated[-len(ending) :])
    else:
        new = new_bytes(generated, forced, index)
    return new is not None and _hold_end_(row, new, ending, index)


def new_bytes(ids: Sequence[int], forced: bytes, index: SortedVocabulary) -> bytes | None:
    """Return the new bytes beyond the forced text; None while, or if, tokens do not have it.

    >>> from charwise import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"in", b"index", b"d"]))
    >>> new_bytes([1], b"ind", index), new_bytes([0], b"ind", index)
    (b'ex', None)
    """
    if remaining(forced, ids, index.vocabulary) != b"":
        return None
    return index.vocabulary.decode(ids)[len(forced) :]


def end_ids(vocabulary: Vocabulary) -> list[int]:
    """Return the tokens that end a middle: ends of texts, of turns and of files.

    >>> from charwise import Vocabulary
    >>> end_ids(Vocabulary.from_bytes([b"y", None, None], end_ids=[1], special={2: "<file_sep>"}))
    [1, 2]
    """
    return sorted({*vocabulary.stop_ids, *vocabulary.closing})


def _hold_end_(row: Row, new: bytes, ending: bytes, index: SortedVocabulary) -> bool:
    """Take the end tokens out of a row of scores, in place, where the middle may not end.

    Args:
        row: `[columns]` scores, of torch or numpy, of which softmax makes probabilities.
        new: the bytes written beyond the forced text.
        ending: what the middle must end with.
        index: of the model's vocabulary.

    Returns:
        Whether anything was changed.

    >>> from charwise import Vocabulary
    >>> index = SortedVocabulary(Vocabulary.from_bytes([b"y", b"ex", b"e", None], end_ids=[3]))
    >>> row = np.log([0.25, 0.25, 0.25, 0.25])
    >>> _hold_end_(row, b"ind", b"ex", index), np.exp(row).round(4)
    (True, array([0.25, 0.5 , 0.25, 0.  ]))
    >>> _hold_end_(row, b"index", b"ex", index)
    False
    """
    if not missing_suffix(new, ending):
        return False
    ends = end_ids(index.vocabulary)
    heir = next(iter(missing_suffix_tokens(new, ending, index)), None)
    if heir is not None:
        scores: list[float] = row[[heir, *ends]].tolist()
        most = max(scores)
        if most > -math.inf:
            row[heir] = most + math.log(sum(math.exp(score - most) for score in scores))
    row[ends] = -math.inf
    return True
