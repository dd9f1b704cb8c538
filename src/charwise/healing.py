"""Token healing: where to cut a prompt, and which tokens may follow the cut.

A prompt that stops inside a token of the text it is about to become puts the model on a token
boundary it never saw in training. Healing gives the last tokens back, as *forced* bytes, and lets
generation reproduce them by whatever tokens the model prefers:

    kept, forced = cut("-> Nod", index)               # ids of "->", and b" Nod"
    left = remaining(forced, generated, vocabulary)   # after every step, from all tokens so far
    ids = allowed_next(left, index)                   # start with `left`, or are a prefix of it

`remaining` is a pure function of the forced bytes and the generated tokens: speculation,
preemption, beam reordering and retries cannot put it out of step.

Masking renormalises at each step, which is not conditioning: a short prefix token is weighed by
its own probability, not by that of what may follow it. `charwise.cursor.drafts` is exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.errors import HealingError, SettingError, shown
from charwise.tokens.canonical import to_bytes
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompt_parts import Prompt, is_text, parts_of
from charwise.tokens.prompts import last_text
from charwise.tokens.vocabulary import Vocabulary

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
        prompt: text and bytes get the start token and the leading space that the tokenizer would
            give them; a list of token ids and texts is taken as it is.
        index: of the model's vocabulary.
        rule: "auto" finds the earliest position, within the munch, from which some token would
            run past the end of the prompt, and cuts at the token boundary at or before it (so
            nothing is cut if no token does). A number gives back that many tokens. "word" gives
            back the last word with the space before it. "off" cuts nothing.

    Special tokens, and ids without bytes, are never given back, nor anything before them, nor
    the very first token: a model needs one to start from.

    Raises:
        SettingError: for an unknown rule.
        TokenizationError: for what is no prompt, or has no tokens.
        HealingError: for an empty prompt, where there is no start token.

    >>> tokens = [b"->", b" ", b"No", b"d", b" Node", b"N", None]
    >>> index = SortedVocabulary(Vocabulary.from_bytes(tokens, bos_ids=[6]))
    >>> cut("-> Nod", index)
    Cut(kept=[6, 0], forced=b' Nod')
    >>> cut([0, 1, 2, 3], index, rule=1)
    Cut(kept=[0, 1, 2], forced=b'd')
    """
    if not isinstance(index, SortedVocabulary):
        raise SettingError(
            f"index is a {type(index).__name__}: make one with SortedVocabulary(vocabulary)."
        )
    ids, rest = _beginning_ids(prompt, index.vocabulary)
    tail = _tail(ids, index.vocabulary)
    most = min(len(tail), len(ids) - 1)
    back = min(_tokens_back(tail, rest, index, rule), most)
    forced = b"".join(tail[len(tail) - back :]) + rest
    while rest and back < most and not index.spellable(forced):
        back += 1  # other tokens than the canonical ones lead on
        forced = tail[-back] + forced
    if rest and not index.spellable(forced):
        prompt_ids(prompt, index.vocabulary)  # raises
    return Cut(ids[: len(ids) - back], forced)


def prompt_ids(prompt: Prompt, vocabulary: Vocabulary) -> list[int]:
    """The ids of a prompt before it is cut; text and bytes with the start token and the lead.

    Raises:
        TokenizationError: for what is no prompt, or has no tokens.
        HealingError: for an empty prompt, where there is no start token.

    >>> vocabulary = Vocabulary.from_bytes([b"a", b"b", None], bos_ids=[2])
    >>> prompt_ids("ab", vocabulary), prompt_ids([0], vocabulary)
    ([2, 0, 1], [0])
    """
    return _nonempty(vocabulary.encode_prompt(_started(prompt, vocabulary)), vocabulary)


def _started(prompt: Prompt, vocabulary: Vocabulary) -> Prompt:
    """A prompt with the start token and the implied space, where it is a text."""
    if is_text(prompt):
        return [*vocabulary.bos_ids, vocabulary.lead + to_bytes(prompt)]
    return prompt


def _beginning_ids(prompt: Prompt, vocabulary: Vocabulary) -> tuple[list[int], bytes]:
    """The ids of a prompt, and the bytes at its end that only begin a token."""
    before, text = last_text(parts_of(_started(prompt, vocabulary)))
    last = vocabulary.encode_beginning(text)
    ids = [*vocabulary.encode_prompt(before), *last]
    return _nonempty(ids, vocabulary), text[len(vocabulary.decode(last)) :]


def _nonempty(ids: list[int], vocabulary: Vocabulary) -> list[int]:
    if not ids:
        raise HealingError(
            "the prompt is empty: there is nothing to continue. Give it at least one token."
            if vocabulary.bos_ids
            else "the prompt is empty and the tokenizer has no start token: there is nothing to "
            "continue. Give it at least one token."
        )
    return ids


def remaining(forced: bytes, generated: Iterable[int], vocabulary: Vocabulary) -> bytes | None:
    """The bytes that are still forced after `generated`, a pure function of both.

    Returns:
        The rest of `forced`; empty once it is reproduced; None if the tokens left the forced
        text (a rejected draft may; a healed generation cannot).

    Raises:
        SettingError: a `forced` that is not bytes, tokens that are no ids, or no vocabulary.

    >>> vocabulary = Vocabulary.from_bytes([b"s", b"weep", b"sw"])
    >>> remaining(b"sw", [0], vocabulary), remaining(b"sw", [0, 1], vocabulary)
    (b'w', b'')
    """
    if not isinstance(forced, bytes) or is_text(generated):
        raise _no_forced_text(forced, generated)
    at = 0
    try:
        for id in generated:
            if at >= len(forced):
                break
            token = vocabulary.tokens[id] if 0 <= id < vocabulary.width else None
            if not token or not (forced.startswith(token, at) or token.startswith(forced[at:])):
                return None
            at += len(token)
    except TypeError:
        raise _no_forced_text(forced, generated) from None
    except AttributeError:  # not looked at before: this runs at every step of every request
        raise SettingError(
            f"vocabulary is a {type(vocabulary).__name__}: give a Vocabulary, as index.vocabulary."
        ) from None
    return forced[at:]


def allowed_next(left: bytes, index: SortedVocabulary) -> NDArray[np.int64]:
    """Return the ids of the tokens that may come next while `left` is forced.

    They start with `left`, or are a proper prefix of it after which the rest can still be
    spelled. End tokens are allowed only when nothing is left; ids without bytes never are.

    Raises:
        HealingError: if the vocabulary cannot spell `left`.
        SettingError: if it is not bytes, such as None for tokens that left the forced text.

    >>> vocabulary = Vocabulary.from_bytes([b"s", b"weep", b"sw", None], end_ids=[3])
    >>> allowed_next(b"sw", SortedVocabulary(vocabulary)).tolist()
    [0, 2]
    >>> allowed_next(b"", SortedVocabulary(vocabulary)).tolist()
    [0, 2, 1, 3]
    """
    if not isinstance(left, bytes):
        raise _no_forced_text(left, ())
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
            f"no token string of this vocabulary spells {shown(left)}, so it cannot be forced. "
            "Shorten the prompt, or check that the vocabulary belongs to the model."
        )
    return np.concatenate((np.array(shorter, dtype=np.int64), index.ids[lo:hi]))


def _no_forced_text(forced: object, generated: object) -> SettingError:
    if isinstance(forced, bytes):
        return SettingError(f"generated tokens are a list of ids, not {shown(generated)}.")
    return SettingError(f"a forced text is bytes, as healing.cut returns, not {shown(forced)}.")


def _tail(ids: Sequence[int], vocabulary: Vocabulary) -> list[bytes]:
    """Bytes of the tokens after the last special token."""
    tail: list[bytes] = []
    for id in reversed(ids):
        token = vocabulary.tokens[id]
        if token is None:
            break
        tail.append(token)
    return tail[::-1]


def unknown_rule(rule: object) -> SettingError:
    """Return the error for a value that is no healing rule.

    >>> str(unknown_rule("sentence"))
    "unknown healing rule 'sentence': use 'auto', 'word', 'off' or a number."
    """
    return SettingError(
        f"unknown healing rule {shown(rule)}: use 'auto', 'word', 'off' or a number."
    )


def _tokens_back(tail: list[bytes], rest: bytes, index: SortedVocabulary, rule: Rule) -> int:
    """How many tokens of `tail`, which `rest` follows, the rule gives back."""
    if not isinstance(rule, str | int):
        raise unknown_rule(rule)
    if rule == "off":
        return 0
    if isinstance(rule, int) and not isinstance(rule, bool):
        if rule < 0:
            raise SettingError(
                f"cannot give back {shown(rule)} tokens: the number must be 0 or more."
            )
        return min(rule, len(tail))
    text = b"".join(tail) + rest
    if rule == "auto":
        start = _earliest_overrun(text, index)
    elif rule == "word":
        word = re.match(rb"\S*(?:\n\r|\s)?", text[::-1])  # backwards: linear however long the word
        start = len(text) - (word.end() if word else 0)
    else:
        raise unknown_rule(rule)
    back, at = 0, len(text) - len(rest)
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
