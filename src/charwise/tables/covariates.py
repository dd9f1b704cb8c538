"""Length and frequency of words: what a regression on reading times needs beside surprisal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from charwise.errors import MissingExtraError, SettingError, needs, quote

#: The columns, and their types.
COVARIATES: dict[str, type] = {
    "length": int,
    "log_frequency": float,
    "previous_length": int,
    "previous_log_frequency": float,
}


def check_language(language: str) -> None:
    """Refuse a language whose words wordfreq does not have."""
    with needs("covariates", "the frequencies of words are not installed"):
        import wordfreq

    known = wordfreq.available_languages()
    if language not in known:
        raise SettingError(
            f"{quote(language)} is no language of wordfreq: it has {', '.join(sorted(known))}."
        )
    try:
        wordfreq.word_frequency("a", language)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"words of {language!r} need a package of their own: pip install 'wordfreq[cjk]'. "
            f"({error})"
        ) from error


def covariates(words: Sequence[str], language: str) -> list[dict[str, Any]]:
    """Return the covariates of each word of a text; a stretch of whitespace has none.

    Args:
        words: with the whitespace that belongs to them.
        language: a code of wordfreq, such as "en".

    Returns:
        For each word its length in characters, without whitespace; the natural logarithm of its
        share of all words, None of a word that wordfreq does not know; and both of the word before.
    """
    import wordfreq

    rows, last = list[dict[str, Any]](), {"length": None, "log_frequency": None}
    for word in map(str.strip, words):
        own: dict[str, Any] = {"length": None, "log_frequency": None}
        if word:
            share = wordfreq.word_frequency(word, language)
            own = {"length": len(word), "log_frequency": math.log(share) if share else None}
        rows.append(own | {f"previous_{name}": value for name, value in last.items() if word})
        last = own if word else last
    return rows
