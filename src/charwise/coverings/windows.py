"""Windows: token trees that cover a text which is longer than a model's context.

A window has canonical tokens to condition on, some tokens to warm up (so that alternatives are
alive where its own part starts), and the part that counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from charwise.engine import TokenLM
from charwise.errors import LimitError
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import PromptStart

#: Canonical tokens of a window for models whose own window is longer or unbounded.
WINDOW = 1024

#: Canonical tokens that a window is warmed up with.
WARM_UP = 16


class Window(NamedTuple):
    """A part of a text, bytes [begin, stop), with its own tree; those from `scored` on count."""

    prompt_ids: list[int]  # the opening, and canonical tokens to condition on
    canonical: list[int]  # of the bytes [begin, stop)
    begin: int
    scored: int
    stop: int

    @classmethod
    def plan(
        cls,
        engine: TokenLM,
        index: SortedVocabulary,
        opening: PromptStart,
        whole: bytes,
        *,
        through: bool = True,
    ) -> Iterator[Window]:
        """Cut a text into windows; the first covers as much as it can, the others half of that.

        With `through`, the context that spells the whole text is needed too. LimitError if the
        opening leaves little room, and the text is longer.
        """
        canonical = index.vocabulary.encode_beginning(whole)
        if engine.window is None and index.vocabulary.max_token_bytes == 1:  # no alternatives
            yield cls([*opening.ids], canonical, begin=0, scored=0, stop=len(whole))
            return
        offsets = np.cumsum([0, *map(index.length, canonical)]).tolist()
        size = len(canonical)
        # Whether the last token makes a context to evaluate.
        last = through or offsets[-1] < len(whole)
        room = _room(engine.window, len(opening.ids), size, size if last else size - 1)
        scored = 0
        while True:
            stop = min(size, scored + (room if scored == 0 else room // 2))
            start = max(0, stop - room)
            first = max(0, scored - WARM_UP)
            yield cls(
                prompt_ids=[*opening.ids, *canonical[start:first]],
                canonical=canonical[first:stop],
                begin=offsets[first],
                scored=offsets[scored],
                stop=len(whole) if stop == size else offsets[stop],
            )
            if stop == size:
                return
            scored = stop


def _room(window: int | None, before: int, size: int, deepest: int) -> int:
    """Canonical tokens of a window after `before` tokens; the longest context needs `deepest`.

    Alternatives may need more tokens than the canonical tokenization: a fifth is left free. Where
    that leaves little to slide over, a text that fits without is not cut, and a longer one refused:
    its bytes might be off by a nat, which no error states.
    """
    if window is None:
        return WINDOW
    free = window - before
    room = min(WINDOW, free * 4 // 5)
    if size <= room or room >= 4 * WARM_UP:
        return room
    if deepest <= free:
        return size
    raise LimitError(
        f"what is before the text ({before} tokens) leaves room for {max(0, free)} tokens in the "
        f"model's window of {window}: too few to slide over a text of {size}. Use less text, or a "
        f"window of {before + 5 * WARM_UP} tokens."
    )
