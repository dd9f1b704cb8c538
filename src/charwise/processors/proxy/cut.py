"""Prompts cut as text: the server behind tokenizes what is kept, as it would the whole prompt.

Not every cut between two tokens will do. What is kept must become the same tokens without its end;
what is forced must be whole characters, since grammars and answers are text. Where a cut is not
fit, one more token is given back.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from charwise.errors import HealingError
from charwise.healing import Rule
from charwise.processors.new_text import HealedPrompt, heal_prompt
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.vocabulary import Vocabulary

#: So many tokens more are given back to find a fit cut.
_TRIES = 8


class CutText(NamedTuple):
    """A prompt's text to keep, the text to reproduce after it, and the cut between tokens.

    >>> CutText("->", " Nod", HealedPrompt([0], b" Nod", 2)).forced
    ' Nod'
    """

    kept: str
    forced: str
    healed: HealedPrompt


def most_forced(vocabulary: Vocabulary) -> int:
    """Most bytes that are forced: a grammar keeps a state for each.

    >>> most_forced(Vocabulary.from_bytes([b"a"]))
    256
    """
    return max(256, 4 * vocabulary.munch)


def cut_text(
    prompt: str, index: SortedVocabulary, rule: Rule = "auto", *, starts: bool = False
) -> CutText:
    """Cut a prompt where healing should start, between two characters.

    Special tokens in the text are taken for themselves, as these servers do; only what comes
    after the last of them is cut.

    Args:
        prompt: its text.
        index: of the model's vocabulary.
        rule: where to cut, as for `healing.cut`.
        starts: whether nothing need be kept, since the server starts from a token of its own.

    Raises:
        HealingError: no fit cut near where the rule would have it, or too much to reproduce.
        SettingError: an unknown rule.

    >>> vocabulary = Vocabulary.from_bytes([b"->", b" ", b"No", b"d", b" Node", b"N"])
    >>> cut_text("-> Nod", SortedVocabulary(vocabulary))[:2]
    ('->', ' Nod')
    """
    head, tail = _after_specials(prompt, index.vocabulary)
    parts = _parts(head, tail, index.vocabulary, starts)
    healed = heal_prompt(parts, index, rule)
    for more in range(_TRIES):
        if more:
            back = healed.given_back + 1
            healed = heal_prompt(parts, index, back)
            if healed.given_back < back:
                break
        found = _as_text(head, tail, healed, index.vocabulary, starts)
        if found is not None:
            most = most_forced(index.vocabulary)
            if len(healed.forced) > most:
                raise HealingError(
                    f"{len(healed.forced)} bytes would be forced; at most {most} may be. Give "
                    "back fewer tokens, or leave it to the rule 'auto'."
                )
            return found
    raise HealingError(
        "the prompt cannot be cut near its end so that what is kept becomes the same tokens, and "
        "the rest is whole characters."
    )


def _as_text(
    head: str, tail: str, healed: HealedPrompt, vocabulary: Vocabulary, starts: bool
) -> CutText | None:
    """The cut in the text itself; None if it is not fit."""
    try:
        forced = healed.forced.decode()
    except UnicodeDecodeError:
        return None
    if not forced:
        return CutText(head + tail, "", healed)
    if "\0" in forced:
        return None  # no grammar lets it through
    lead = vocabulary.lead.decode()
    if forced == lead + tail and not head and vocabulary.bos_ids and starts:
        return CutText("", forced, healed)  # all but the start token
    if not tail.endswith(forced) or len(forced) >= len(tail) > 0 == len(head):
        return None
    kept = tail[: len(tail) - len(forced)]
    if head and not kept and lead:
        return None  # the server adds the lead to text after a special token, if there is any
    ids = list(vocabulary.encode_prompt(_parts(head, kept, vocabulary, starts)))
    return CutText(head + kept, forced, healed) if ids == healed.kept else None


def _parts(head: str, tail: str, vocabulary: Vocabulary, starts: bool) -> list[int | bytes]:
    """A prompt as ids and bytes: what comes before the last special token does not matter here."""
    before: list[int | bytes] = list(vocabulary.bos_ids) if starts else []
    if head:
        texts = {text: id for id, text in vocabulary.special.items()}
        before = [next(texts[text] for text in sorted(texts, key=len)[::-1] if head.endswith(text))]
    return [*before, vocabulary.lead + tail.encode()] if tail else before


def _after_specials(prompt: str, vocabulary: Vocabulary) -> tuple[str, str]:
    """The prompt up to the end of its last special token, and the rest."""
    pattern = _specials(tuple(sorted(vocabulary.special.values())))
    end = 0
    for found in pattern.finditer(prompt) if pattern else ():
        end = found.end()
    return prompt[:end], prompt[end:]


@lru_cache(maxsize=4)
def _specials(texts: tuple[str, ...]) -> re.Pattern[str] | None:
    longest_first = sorted((re.escape(text) for text in texts if text), key=len, reverse=True)
    return re.compile("|".join(longest_first)) if longest_first else None
