"""Token healing: where to cut a prompt, and which tokens may follow the cut.

A prompt that stops inside a token of the text it is about to become puts the model on a token
boundary it never saw in training. Healing gives the last tokens back, as *forced* bytes, and lets
generation reproduce them by whatever tokens the model prefers:

    kept, forced = cut(ids, index)                    # "-> Nod"  →  "->" and b" Nod"
    left = remaining(forced, generated, vocabulary)   # after every step, from all tokens so far
    ids = allowed_next(left, index)                   # start with `left`, or are a prefix of it

`remaining` is a pure function of the forced bytes and the generated tokens: speculation,
preemption, beam reordering and retries cannot put it out of step.

Masking renormalises at each step, which is not conditioning: a short prefix token is weighed by
its own probability, not by that of what may follow it. `charwise.cursor.generation` is exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.errors import HealingError, SettingError
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.vocabulary import Prompt, Vocabulary

#: "auto" | "word" | "off", or how many tokens to give back.
Rule = Literal["auto", "word", "off"] | int


class Cut(NamedTuple):
    """A prompt cut in two: the token ids to keep, and the bytes to reproduce after them.

    >>> Cut(kept=[0], forced=b" Nod").forced
    b' Nod'
    """

    kept: list[int]
    forced: bytes


def cut(prompt: Prompt, index: SortedVocabulary, rule: Rule = "auto") -> Cut:
    """Cut a prompt where healing should start.

    Args:
        prompt: token ids, or text, bytes, or a list of texts and special token ids.
        index: of the model's vocabulary.
        rule: "auto" finds the earliest position, within the munch, from which some token would
            run past the end of the prompt, and cuts at the token boundary at or before it (so
            nothing is cut if no token does). A number gives back that many tokens. "word" gives
            back the last word with the space before it. "off" cuts nothing.

    Special tokens, and ids without bytes, are never given back, nor anything before them.

    Raises:
        SettingError: for an unknown rule.
        TokenizationError: if the prompt's text has no tokens.

    >>> vocabulary = Vocabulary.from_bytes([b"->", b" ", b"No", b"d", b" Node", b"N"])
    >>> cut([0, 1, 2, 3], SortedVocabulary(vocabulary))
    Cut(kept=[0], forced=b' Nod')
    >>> cut([0, 1, 2, 3], SortedVocabulary(vocabulary), rule=1)
    Cut(kept=[0, 1, 2], forced=b'd')
    """
    ids = index.vocabulary.encode_prompt(prompt)
    tail = _tail(ids, index.vocabulary)
    back = _tokens_back(tail, index, rule)
    keep = len(ids) - back
    return Cut(ids[:keep], b"".join(tail[len(tail) - back :]))


def remaining(forced: bytes, generated: Iterable[int], vocabulary: Vocabulary) -> bytes | None:
    """The bytes that are still forced after `generated`, a pure function of both.

    Returns:
        The rest of `forced`; empty once it is reproduced; None if the tokens left the forced
        text (a rejected draft may; a healed generation cannot).

    >>> vocabulary = Vocabulary.from_bytes([b"s", b"weep", b"sw"])
    >>> remaining(b"sw", [0], vocabulary), remaining(b"sw", [0, 1], vocabulary)
    (b'w', b'')
    """
    at = 0
    for id in generated:
        if at >= len(forced):
            break
        token = vocabulary.tokens[id] if 0 <= id < vocabulary.width else None
        if not token or not (forced.startswith(token, at) or token.startswith(forced[at:])):
            return None
        at += len(token)
    return forced[at:]


def allowed_next(left: bytes, index: SortedVocabulary) -> NDArray[np.int64]:
    """Ids of the tokens that may come next while `left` is forced.

    They start with `left`, or are a proper prefix of it after which the rest can still be
    spelled. End tokens are allowed only when nothing is left; ids without bytes never are.

    Raises:
        HealingError: if the vocabulary cannot spell `left`.

    >>> vocabulary = Vocabulary.from_bytes([b"s", b"weep", b"sw", None], end_ids=[3])
    >>> allowed_next(b"sw", SortedVocabulary(vocabulary)).tolist()
    [0, 2]
    >>> allowed_next(b"", SortedVocabulary(vocabulary)).tolist()
    [0, 2, 1, 3]
    """
    if not left:
        ends = np.array(index.vocabulary.end_ids, dtype=np.int64)
        return np.concatenate((index.ids, ends))
    if index.vocabulary.byte_complete:
        return index.allowed(left)
    # Some byte has no token: a prefix token may lead where nothing can follow.
    lo, hi = index.range(left)
    tokens = index.vocabulary.tokens
    shorter = [id for id in index.prefixes(left) if index.spellable(left[len(tokens[id] or b"") :])]
    if lo == hi and not shorter:
        raise HealingError(
            f"no token string of this vocabulary spells {left!r}, so it cannot be forced. "
            "Shorten the prompt, or check that the vocabulary belongs to the model."
        )
    return np.concatenate((np.array(shorter, dtype=np.int64), index.ids[lo:hi]))


def _tail(ids: Sequence[int], vocabulary: Vocabulary) -> list[bytes]:
    """Bytes of the tokens after the last special token."""
    tail: list[bytes] = []
    for id in reversed(ids):
        token = vocabulary.tokens[id]
        if token is None:
            break
        tail.append(token)
    return tail[::-1]


def _tokens_back(tail: list[bytes], index: SortedVocabulary, rule: Rule) -> int:
    """How many tokens of `tail` the rule gives back."""
    if rule == "off":
        return 0
    if isinstance(rule, int) and not isinstance(rule, bool):
        if rule < 0:
            raise SettingError(f"cannot give back {rule} tokens: the number must be 0 or more.")
        return min(rule, len(tail))
    text = b"".join(tail)
    if rule == "auto":
        start = _earliest_overrun(text, index)
    elif rule == "word":
        word = re.match(rb"\S*\s?", text[::-1])  # backwards: linear however long the word
        start = len(text) - (word.end() if word else 0)
    else:
        raise SettingError(f"unknown healing rule {rule!r}: use 'auto', 'word', 'off' or a number.")
    back, at = 0, len(text)
    while at > start:
        back += 1
        at -= len(tail[-back])
    return back


def _earliest_overrun(text: bytes, index: SortedVocabulary) -> int:
    """The earliest position from which some token starts with all the rest and is longer.

    Only the last munch − 1 bytes can be: the token must reach beyond the end.
    """
    for start in range(max(0, len(text) - index.vocabulary.munch + 1), len(text)):
        rest = text[start:]
        lo, hi = index.range(rest)
        if lo < hi and len(index.sorted[hi - 1]) > len(rest):
            return start
    return len(text)
