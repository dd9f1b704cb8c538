"""Many short texts in common batches.

Texts after the same opening are branches of one token tree: their rounds go side by side, and each
model call serves them all. What they have in common, as a minimal pair has its first words, is
evaluated once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

from charwise.coverings.rows import EvaluatedRows
from charwise.errors import SearchLimitError
from charwise.scoring.calls import run_together
from charwise.scoring.effort import Effort, Limits
from charwise.scoring.refinement import PORTION, Refinement
from charwise.scoring.windows import Stretch, Text, gather, plan, score_text
from charwise.surprisal.score import Entropy, Score
from charwise.token_lm import TokenLM
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.known_text import KnownText
from charwise.tokens.prompts import Opening


def score_texts(
    engine: TokenLM,
    index: SortedVocabulary,
    texts: Sequence[Text],
    effort: Effort,
    limits: Limits | None = None,
    *,
    end: bool = False,
    entropy: Entropy | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> list[Score]:
    """`score_text` of several texts; the short ones share model calls.

    In which pack a text is depends on the texts before it, and changes its numbers by no more
    than the order in which a model's floats are summed. `progress` is told after each pack how
    many bytes are scored, and of how many.

    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> index, opening = SortedVocabulary(vocabulary), Opening((2,), b"")
    >>> texts = [Text(opening, b"aa"), Text(opening, b"a")]
    >>> [score.logprobs.shape for score in score_texts(lm, index, texts, Effort(8))]
    [(2,), (1,)]
    """
    scores: dict[int, Score] = {}
    limits = limits or Limits()
    sizes = [len(text.whole) for text in texts]
    for pack in packs(engine, index, texts, limits, end=end):
        alone: Iterable[int] = pack
        if len(pack) > 1:
            # What is too much for one tree may not be for one of its own.
            with contextlib.suppress(SearchLimitError):
                scores |= _score_pack(engine, index, texts, pack, effort, limits, end, entropy)
                alone = ()
        for number in alone:
            text = texts[number]
            scores[number] = score_text(
                engine, index, text, effort, limits, end=end, entropy=entropy
            )
        if progress is not None:
            progress(sum(sizes[number] for number in scores), sum(sizes))
    return [scores[number] for number in range(len(texts))]


def packs(
    engine: TokenLM,
    index: SortedVocabulary,
    texts: Sequence[Text],
    limits: Limits,
    *,
    end: bool = False,
) -> list[dict[int, Stretch]]:
    """Which texts go together: the number of each, with its only window.

    A pack has as many canonical tokens as a portion of a long text. Its log-probabilities are
    kept until it is done. A pack should need no more than the memory for that.

    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", None], end_ids=[1], bos_ids=[1])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.5]})
    >>> texts = [Text(Opening((1,), b""), b"a" * size) for size in (150, 10, 150, 10)]
    >>> [list(pack) for pack in packs(lm, SortedVocabulary(vocabulary), texts, Limits())]
    [[0, 1], [2, 3]]
    """
    # A token has some eight contexts at the default width.
    most = max(1, min(PORTION, limits.memory // (8 * 4 * index.vocabulary.width)))
    done: list[dict[int, Stretch]] = []
    filling: dict[Opening, dict[int, Stretch]] = {}
    for number, text in enumerate(texts):
        stretch = next(plan(engine, index, text.opening, text.whole, through=end))
        size = len(stretch.canonical)
        if stretch.stop < len(text.whole) or size > most:
            done.append({number: stretch})
            continue
        pack = filling.setdefault(text.opening, {})
        if pack and sum(len(part.canonical) for part in pack.values()) + size > most:
            done.append(pack)
            pack = filling[text.opening] = {}
        pack[number] = stretch
    return [*done, *filling.values()]


def _score_pack(
    engine: TokenLM,
    index: SortedVocabulary,
    texts: Sequence[Text],
    pack: dict[int, Stretch],
    effort: Effort,
    limits: Limits,
    end: bool,
    entropy: Entropy | None,
) -> dict[int, Score]:
    """Score the texts of a pack over one tree."""
    ids = texts[min(pack)].opening.ids
    rows = EvaluatedRows(engine.tree(ids), index, retain=True)
    works = {
        number: Refinement(
            rows,
            KnownText.of(texts[number].whole, index),
            stretch.canonical,
            effort,
            limits,
            through=end,
            deepest=None if engine.window is None else engine.window - len(ids),
            distributions=entropy is not None,
        )
        for number, stretch in pack.items()
    }
    run_together(list(works.values()), limits)
    return {
        number: gather(index, texts[number], [(stretch, works[number])], end=end, entropy=entropy)
        for number, stretch in pack.items()
    }
