"""Scores of texts: long ones window by window, many short ones in common batches.

Short texts after the same opening are branches of one token tree. Their rounds go side by side, so
each model call serves them all. What they have in common, as a minimal pair has its first words,
is evaluated once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.rows import EvaluatedRows
from charwise.coverings.windows import Window, plan
from charwise.errors import SearchLimitError, impossible
from charwise.scoring.calls import run_together
from charwise.scoring.contexts import Floats
from charwise.scoring.effort import Effort, Limits
from charwise.scoring.refinement import PORTION, Refinement, base_path, portion_of
from charwise.surprisal.entropies import entropies as entropies_of
from charwise.surprisal.entropies import ranks as ranks_of
from charwise.surprisal.score import Entropy, Score, canonical_ends
from charwise.token_lm import TokenLM
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.known_text import KnownText
from charwise.tokens.prompts import Opening


class Text(NamedTuple):
    """A text to score after an opening; its first `given` bytes are conditioned on only.

    >>> Text(Opening((2,), b""), b"aa").given
    0
    """

    opening: Opening
    whole: bytes  # begins with the opening's lead
    given: int = 0


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
    """Score texts; see `CharLM.scores`. Of the entropies, those of characters are not filled in.

    In which pack a text is depends on the texts before it. It changes numbers by no more than the
    order in which a model sums its floats does, unless memory ends the work on a pack.

    >>> import charwise
    >>> lm = charwise.load()
    >>> texts = [Text(Opening(lm.vocabulary.bos_ids, b""), text) for text in (b"import", b"os")]
    >>> [score.text for score in score_texts(lm.engine, lm.index, texts, lm.effort)]
    ['import', 'os']
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
            done = windows(
                engine,
                index,
                texts[number],
                effort,
                limits,
                through=end,
                distributions=entropy is not None,
            )
            scores[number] = _gather(index, texts[number], done, end, entropy)
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
) -> list[dict[int, Window]]:
    """Which texts go together: the number of each, with its only window.

    A pack has as many canonical tokens as a portion of a long text. Its log-probabilities are
    kept until it is done. A pack should need no more than the memory for that.

    >>> import charwise
    >>> lm = charwise.load()
    >>> opening = Opening(lm.vocabulary.bos_ids, b"")
    >>> texts = [Text(opening, b"x = 1; " * n) for n in (30, 2, 30, 2)]
    >>> [list(pack) for pack in packs(lm.engine, lm.index, texts, Limits())]
    [[0, 1], [2, 3]]
    """
    # A token has some eight contexts at the default width.
    most = max(1, min(PORTION, limits.memory // (8 * 4 * index.vocabulary.width)))
    done: list[dict[int, Window]] = []
    filling: dict[Opening, dict[int, Window]] = {}
    for number, text in enumerate(texts):
        window = next(plan(engine, index, text.opening, text.whole, through=end))
        size = len(window.canonical)
        if window.stop < len(text.whole) or size > most:
            done.append({number: window})
            continue
        pack = filling.setdefault(text.opening, {})
        if pack and sum(len(part.canonical) for part in pack.values()) + size > most:
            done.append(pack)
            pack = filling[text.opening] = {}
        pack[number] = window
    return [*done, *filling.values()]


def _score_pack(
    engine: TokenLM,
    index: SortedVocabulary,
    texts: Sequence[Text],
    pack: dict[int, Window],
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
            window.canonical,
            effort,
            limits,
            through=end,
            deepest=None if engine.window is None else engine.window - len(ids),
            distributions=entropy is not None,
        )
        for number, window in pack.items()
    }
    run_together(list(works.values()))
    return {
        number: _gather(index, texts[number], [(window, works[number])], end, entropy)
        for number, window in pack.items()
    }


def windows(
    engine: TokenLM,
    index: SortedVocabulary,
    text: Text,
    effort: Effort,
    limits: Limits | None = None,
    *,
    through: bool = False,
    distributions: bool = False,
) -> Iterator[tuple[Window, Refinement]]:
    """The finished windows of a text that reach beyond what is given, in order.

    `through` also evaluates what spells the whole text; `distributions` keeps of each context what
    `Lattice.distributions` needs.

    >>> import charwise
    >>> lm = charwise.load()
    >>> text = Text(Opening(lm.vocabulary.bos_ids, b""), b"import os")
    >>> [found.limited for _, found in windows(lm.engine, lm.index, text, lm.effort)]
    [False]
    """
    whole, opening, limits = text.whole, text.opening, limits or Limits()
    start = len(opening.lead) + text.given
    known = KnownText.of(whole, index)
    for window in plan(engine, index, opening, whole, through=through):
        if window.stop <= start and window.stop < len(whole):
            continue
        part = known.window(window.begin, window.stop)
        to_end = through and window.stop == len(whole)
        # The base path of the first portion goes with the root, in one call.
        path = base_path(window.canonical, part, to_end)
        most = min(portion_of(path), limits.in_call(index.vocabulary.width))
        edges = list(enumerate(path[:most]))
        found = Refinement(
            EvaluatedRows(engine.tree(window.prompt_ids, edges), index, edges=edges),
            part,
            window.canonical,
            effort,
            limits,
            through=to_end,
            deepest=None if engine.window is None else engine.window - len(window.prompt_ids),
            distributions=distributions,
        )
        run_together([found])
        yield window, found


def _gather(
    index: SortedVocabulary,
    text: Text,
    done: Iterable[tuple[Window, Refinement]],
    end: bool,
    entropy: Entropy | None,
) -> Score:
    """The score of a text from its finished windows, which may be made one at a time."""
    whole, skip = text.whole, len(text.opening.lead) + text.given
    logprobs, missing, lent, error = (np.zeros(len(whole)) for _ in range(4))
    limited, contexts, calls, ended = False, 0, 0, None
    rows, entropies, ranks = list[Floats](), list[Floats](), list[NDArray[np.int64]]()
    for window, found in done:
        lattice, ahead = found.lattice, window.scored - window.begin
        if not lattice.reached:
            reached = int(np.isfinite(lattice.log_prefix).sum())
            raise impossible(whole[: window.begin + reached], float(lattice.missing.sum()))
        part = slice(window.scored, window.stop)
        # A model sums its floats with an error, so that a sure byte may come to more than 1.
        logprobs[part] = np.minimum(np.diff(lattice.log_prefix[ahead:]), 0.0)
        missing[part] = lattice.missing[ahead + 1 :]
        lent[part] = lattice.on_loan[ahead + 1 :]
        error[part] = found.error[ahead + 1 :]
        limited |= found.limited
        if end and window.stop == len(whole):
            ended = lattice.end_logprob()
        if entropy is not None:
            first = max(skip, window.scored)
            rows.append(lattice.distributions()[first - window.begin :])
            entropies.append(entropies_of(rows[-1]))
            ranks.append(ranks_of(rows[-1], whole[first : window.stop]))
            if entropy == "byte":  # of a long text, they would be many
                rows.clear()
        contexts, calls = contexts + found.contexts, calls + found.calls
    return Score(
        whole[skip:],
        logprobs[skip:],
        missing[skip:],
        lent[skip:],
        contexts,
        calls,
        error[skip:],
        limited,
        ended,
        token_ends=canonical_ends(index, whole, skip),
        entropies=np.concatenate(entropies) if entropies else None,
        ranks=np.concatenate(ranks) if ranks else None,
        distributions=np.concatenate(rows) if rows else None,
    )
