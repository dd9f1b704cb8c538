"""Fill in the middle: the template of a model, the request, and where the middle may end.

The rule of healing holds on the left, and mirrored on the right: bytes that a token of the middle
could reach are taken from the suffix, and the middle must end with them.

    prefix   "    return numbers[ind"       kept "…numbers[",  forced b"ind"
    suffix   "ex + 1]"                      ending b"ex",      kept " + 1]"
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from charwise.errors import LimitError, SettingError, quote
from charwise.healing.forced import HealedPrompt, Rule, cut, remaining
from charwise.tokens.canonical import to_bytes
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Prompt
from charwise.tokens.sentinels import SPELLINGS, spelling_of
from charwise.tokens.utf8 import first_bytes, last_bytes
from charwise.tokens.vocabulary import Vocabulary

#: How one names the sentinels of a model whose special tokens do not show them.
IN_PYTHON = "template=Template.named(vocabulary, prefix, suffix, middle), of charwise.healing.fim"

#: Prefix, suffix, middle; or suffix, prefix, middle.
Order = Literal["psm", "spm"]

#: Whether the start of the suffix is healed.
Side = Literal["auto", "off"]

if TYPE_CHECKING:
    import torch

    Row = torch.Tensor | NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Template:
    """The sentinels of a model, as token ids.

    Attributes:
        prefix, suffix: come before the two.
        middle: comes before the middle; None for models that take the suffix first, and whose
            prefix ends the prompt.
        family: the models that have these sentinels.
        suffix_first: whether a model with a sentinel of the middle takes the suffix first, too.

    >>> vocabulary = Vocabulary.from_bytes(
    ...     [b"a", None, None, None], special={1: "<PRE>", 2: "<SUF>", 3: "<MID>"}
    ... )
    >>> Template.named(vocabulary, "<PRE>", "<SUF>", "<MID>")
    Template(prefix=1, suffix=2, middle=3, family='given', suffix_first=False)
    """

    prefix: int
    suffix: int
    middle: int | None
    family: str = "given"
    suffix_first: bool = False

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Template:
        """The template that a vocabulary's special tokens show.

        Raises:
            SettingError: they are of no family in the table (`tokens.sentinels`).

        >>> names = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
        >>> Template.of(Vocabulary.from_bytes([None] * 3 + [b"a"], special=dict(enumerate(names))))
        Template(prefix=0, suffix=1, middle=2, family='StarCoder, Granite', suffix_first=False)
        """
        spelling = spelling_of(set(vocabulary.special.values()))
        if spelling is None:
            raise SettingError(
                "this model has no sentinels of fill-in-the-middle that are known: its special "
                f"tokens are those of none of {'; '.join(one.family for one in SPELLINGS)}. If it "
                f"was trained to fill in, name its sentinels: {IN_PYTHON}."
            )
        return cls.named(
            vocabulary,
            *spelling.sentinels,
            family=spelling.family,
            suffix_first=spelling.suffix_first,
        )

    @classmethod
    def named(
        cls,
        vocabulary: Vocabulary,
        prefix: str,
        suffix: str,
        middle: str | None = None,
        family: str = "given",
        *,
        suffix_first: bool = False,
    ) -> Template:
        """A template by the spelling of its special tokens; `SettingError` if one is missing."""
        ids = {name: id for id, name in vocabulary.special.items()}
        for name in (prefix, suffix, middle):
            if name is not None and name not in ids:
                raise SettingError(
                    f"there is no special token {quote(name)}: those of this model are "
                    f"{', '.join(map(repr, list(ids)[:20])) or 'none'}."
                )
        last = None if middle is None else ids[middle]
        return cls(ids[prefix], ids[suffix], last, family, suffix_first)

    def order(self, order: Order | None) -> Order:
        """The order of a request: the one asked for, if the model knows it; PSM by default."""
        if order not in (None, "psm", "spm"):
            raise SettingError(f"order is {quote(order)}: choose 'psm' or 'spm'.")
        if order == "psm" and self._only_spm:
            raise SettingError(
                f"{self.family} takes the suffix first: leave the order out, or ask for "
                "order='spm'."
            )
        return order or ("spm" if self._only_spm else "psm")

    @property
    def _only_spm(self) -> bool:
        return self.suffix_first or self.middle is None

    def layout(self, prefix: Sequence[int], suffix: Sequence[int], order: Order) -> list[int]:
        """The ids of a prompt, after whose last one the middle comes."""
        middle = [] if self.middle is None else [self.middle]
        if self._only_spm:
            return [self.suffix, *suffix, self.prefix, *prefix, *middle]
        if order == "spm":  # the prefix ends the prompt
            return [self.prefix, self.suffix, *suffix, *middle, *prefix]
        return [self.prefix, *prefix, self.suffix, *suffix, *middle]


def request(
    prefix: str | bytes,
    suffix: str | bytes,
    template: Template,
    index: SortedVocabulary,
    *,
    order: Order | None = None,
    left: Rule = "auto",
    right: Side = "auto",
    opening: Prompt = (),
    most: int | None = None,
) -> HealedPrompt:
    """The request for the middle between two texts, either of which may be empty.

    Args:
        prefix, suffix: any text or bytes; a sentinel's name in them is text.
        template: of the model.
        index: of its vocabulary.
        order: "psm" or "spm"; by default PSM where the model knows it.
        left: where to cut, as for `healing.cut`.
        right: "auto" is the same rule, mirrored; "off" leaves the suffix whole.
        opening: what comes before the template in place of the start token, such as the ids of
            other files.
        most: tokens that fit the window. What is too long is cut at the far ends: the suffix to
            half the room, or what the prefix leaves of it, then the prefix; at a line or a word if
            one is near.

    Raises:
        SettingError: an order that the model does not know, or another word for `right`.
        VocabularyError: a text that no token string spells.
        LimitError: where `most` leaves no room for the sentinels.

    >>> tokens = [b"a", b"b", b"ab", b"c", b"bc", None, None, None]
    >>> index = SortedVocabulary(Vocabulary.from_bytes(tokens, special={5: "", 6: "", 7: ""}))
    >>> request("ca", "ca", Template(5, 6, 7), index)[:4]
    ([5, 3, 6, 0, 7], b'a', 1, b'c')
    """
    vocabulary = index.vocabulary
    order = template.order(order)
    if right not in ("auto", "off"):
        raise SettingError(f"right is {quote(right)}: choose 'auto' or 'off'.")
    start = vocabulary.encode_prompt(opening) or list(vocabulary.bos_ids)
    text, right_text = to_bytes(prefix), to_bytes(suffix)
    first, stop, implied_prefix = 0, len(right_text), vocabulary.implied_prefix
    if most is not None:  # what no window holds is not even encoded
        longest = most * vocabulary.max_token_bytes
        first, stop = last_bytes(text, longest), first_bytes(right_text, longest)
    if first:
        implied_prefix = b""
    canonical = vocabulary.encode(implied_prefix + text[first:])
    [_, *before], forced = cut([template.prefix, *canonical], index, left)
    after = vocabulary.encode(right_text[:stop])
    ending, after = (b"", after) if right == "off" else _cut_suffix(after, index)
    prefix_cut, suffix_cut = first, len(right_text) - stop
    room = len(before) + len(after) if most is None else most - len(start) - 3
    if room < 0:
        raise LimitError(
            f"the sentinels do not fit: the window has {-room} tokens too few. Ask for a shorter "
            "middle."
        )
    if len(before) + len(after) > room:
        keep = min(len(after), max(room // 2, room - len(before)))
        lost = len(before) - (room - keep)
        if keep < len(after):
            keep = vocabulary.seam(after, range(keep, keep * 3 // 4 - 1, -1))
        if lost:
            most_lost = lost + (len(before) - lost) // 4
            lost = vocabulary.seam(before, range(lost, most_lost + 1))
        # The implied space is no byte of the prefix.
        prefix_cut += max(0, len(vocabulary.decode(before[:lost])) - len(implied_prefix))
        suffix_cut += len(vocabulary.decode(after[keep:]))
        before, after = before[lost:], after[:keep]
    ids = [*start, *template.layout(before, after, order)]
    last = len(ids) if ids[-1] == template.middle else len(ids) - len(before)
    removed = len(vocabulary.encode(forced))
    return HealedPrompt(ids, forced, removed, ending, text[-3:], last, prefix_cut, suffix_cut)


def _cut_suffix(ids: Sequence[int], index: SortedVocabulary) -> tuple[bytes, list[int]]:
    """The bytes that leave the start of a suffix, and the ids that stay: `healing.cut`, mirrored.

    A token from before the suffix reaches k bytes into it if it ends with those and is longer. The
    cut is at the token boundary at or after the greatest k.
    """
    text, count, size = index.vocabulary.decode(ids), 0, 0
    backwards = _backwards.get(index)
    if backwards is None:
        backwards = _backwards[index] = sorted(token[::-1] for token in index.sorted)
    for reach in range(min(index.vocabulary.max_token_bytes - 1, len(text)), 0, -1):
        end = text[:reach][::-1]
        at = bisect_left(backwards, end + b"\0")  # the first that is longer, if it starts so
        if at < len(backwards) and backwards[at].startswith(end):
            while size < reach:
                size += index.length(ids[count])
                count += 1
            break
    return text[:size], list(ids[count:])


#: The tokens read backwards, sorted.
_backwards: WeakKeyDictionary[SortedVocabulary, list[bytes]] = WeakKeyDictionary()


def missing_suffix(new: bytes | bytearray, ending: bytes) -> bytes:
    """Return the part of the ending that bytes beyond the forced text lack.

    The middle may end only where it is empty.
    """
    sizes = range(len(ending), 0, -1)
    return ending[next((size for size in sizes if new.endswith(ending[:size])), 0) :]


def hold_end_(
    row: Row, forced: bytes, ending: bytes, generated: Sequence[int], index: SortedVocabulary
) -> None:
    """Take the end tokens out of a row `[columns]` of scores, in place, where no middle may end.

    A model that would end it there has said that the middle is over: what the suffix begins with
    is then all that is missing, and gets the probability of the end. The end itself is never
    forced. Before the forced text is reproduced, its mask allows no end.
    """
    vocabulary = index.vocabulary
    if not ending or remaining(forced, generated, vocabulary) != b"":
        return
    if len(generated) >= len(forced) + len(ending):  # each token has a byte at least
        new = vocabulary.decode(generated[-len(ending) :])
    else:
        new = vocabulary.decode(generated)[len(forced) :]
    missing = missing_suffix(new, ending)
    if not missing:
        return
    ends = end_ids(vocabulary)
    lo, hi = index.same_bytes(missing)
    substitute = next(iter([*index.ids[lo:hi].tolist(), *index.prefixes(missing)]), None)
    if substitute is not None:
        scores: list[float] = row[[substitute, *ends]].tolist()
        most = max(scores)
        if most > -math.inf:
            row[substitute] = most + math.log(sum(math.exp(score - most) for score in scores))
    row[ends] = -math.inf


def end_ids(vocabulary: Vocabulary) -> list[int]:
    """Return the tokens that end a middle: ends of texts, of turns and of files."""
    return sorted({*vocabulary.stop_ids, *vocabulary.closing})


def middles(new: bytes, ending: bytes, ended: bool) -> list[bytes]:
    """Return every middle that new bytes may stand for, the likeliest first by where they stop.

    If the model did not end it by itself, each of the eight places of the ending that are first or
    last may be the end, the last ones first. A model may have written on past it, too.
    """
    if not ending:
        return [new]
    places = [at for at in range(len(new)) if new.startswith(ending, at)]
    likely = places[-8:][::-1]
    if ended:
        sizes = range(len(ending), 0, -1)
        likely = [len(new) - size for size in sizes if new.endswith(ending[:size])]
    return list(dict.fromkeys(new[:at] for at in [*likely, len(new), *places[:8]]))
