"""Windows: the log-probability of every byte of a text, however long the text is.

A window is one token tree: canonical tokens to condition on, some tokens to warm up (so that
alternatives are alive where scoring starts), and the stretch that counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.rows import EvaluatedRows
from charwise.errors import ContextLengthError, impossible
from charwise.scoring.calls import most_in_call, run_together
from charwise.scoring.contexts import Floats
from charwise.scoring.effort import Effort, Limits
from charwise.scoring.refinement import Refinement, base_path, portion_of
from charwise.scoring.selection import LOOKAHEAD
from charwise.surprisal.entropies import entropies as entropies_of
from charwise.surprisal.entropies import ranks as ranks_of
from charwise.surprisal.score import Entropy, Score
from charwise.token_lm import TokenLM
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.known_text import KnownText
from charwise.tokens.prompts import Opening

#: Canonical tokens of a window for models whose own window is longer or unbounded.
WINDOW = 1024


class Stretch(NamedTuple):
    """One window of a text: one token tree.

    The bytes [begin, stop) are in the lattice; those from `scored` on count.

    >>> Stretch([2], [0, 1], begin=0, scored=0, stop=3).stop
    3
    """

    prompt_ids: list[int]  # the opening, and canonical tokens to condition on
    canonical: list[int]  # of the bytes [begin, stop)
    begin: int
    scored: int
    stop: int


class Text(NamedTuple):
    """A text to score after an opening; its first `given` bytes are conditioned on only.

    >>> Text(Opening((2,), b""), b"aa").given
    0
    """

    opening: Opening
    whole: bytes  # begins with the opening's lead
    given: int = 0


def score_text(
    engine: TokenLM,
    index: SortedVocabulary,
    text: Text,
    effort: Effort,
    limits: Limits | None = None,
    *,
    end: bool = False,
    entropy: Entropy | None = None,
) -> Score:
    """Score a text; see `CharLM.score`. Of the entropies, those of characters are not filled in.

    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> index, text = SortedVocabulary(vocabulary), Text(Opening((2,), b""), b"aa")
    >>> score = score_text(lm, index, text, Effort(8))
    >>> np.exp(score.logprobs).round(9).tolist()  # 3/4, then (1/4 + 1/8) / (3/4)
    [0.75, 0.5]
    """
    start = len(text.opening.lead) + text.given
    done = stretches(
        engine,
        index,
        text,
        effort,
        limits,
        start=start,
        through=end,
        distributions=entropy is not None,
    )
    return gather(index, text, done, end=end, entropy=entropy)


def gather(
    index: SortedVocabulary,
    text: Text,
    done: Iterable[tuple[Stretch, Refinement]],
    *,
    end: bool,
    entropy: Entropy | None = None,
) -> Score:
    """The score of a text from its finished windows, which may be made one at a time.

    Raises:
        ZeroProbabilityError: if nothing spells the text.
        EmptyBeamError: if what may spell it was left out.
    """
    whole, skip = text.whole, len(text.opening.lead) + text.given
    logprobs, missing, lent, error = (np.zeros(len(whole)) for _ in range(4))
    limited = False
    ended = None
    contexts = calls = 0
    rows, entropies, ranks = list[Floats](), list[Floats](), list[NDArray[np.int64]]()
    for stretch, found in done:
        lattice, ahead = found.lattice, stretch.scored - stretch.begin
        if not lattice.reached:
            reached = int(np.isfinite(lattice.log_prefix).sum())
            raise impossible(whole[: stretch.begin + reached], float(lattice.missing.sum()))
        part = slice(stretch.scored, stretch.stop)
        logprobs[part] = np.diff(lattice.log_prefix[ahead:])
        missing[part] = lattice.missing[ahead + 1 :]
        lent[part] = lattice.on_loan[ahead + 1 :]
        error[part] = found.error[ahead + 1 :]
        limited |= found.limited
        if end and stretch.stop == len(whole):
            ended = lattice.end_logprob()
        if entropy is not None:
            first = max(skip, stretch.scored)
            rows.append(lattice.distributions()[first - stretch.begin :])
            entropies.append(entropies_of(rows[-1]))
            ranks.append(ranks_of(rows[-1], whole[first : stretch.stop]))
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
        token_ends=_token_ends(index, whole, skip),
        entropies=np.concatenate(entropies) if entropies else None,
        ranks=np.concatenate(ranks) if ranks else None,
        distributions=np.concatenate(rows) if rows else None,
    )


def stretches(
    engine: TokenLM,
    index: SortedVocabulary,
    text: Text,
    effort: Effort,
    limits: Limits | None = None,
    *,
    start: int = 0,
    through: bool = False,
    distributions: bool = False,
) -> Iterator[tuple[Stretch, Refinement]]:
    """The finished windows of a text that reach beyond `start`, in order.

    `through` also evaluates what spells the whole text; `distributions` keeps of each context what
    `Lattice.distributions` needs.

    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> index, text = SortedVocabulary(vocabulary), Text(Opening((2,), b""), b"aa")
    >>> [found.calls for _, found in stretches(lm, index, text, Effort(8))]
    [2]
    """
    whole, opening, limits = text.whole, text.opening, limits or Limits()
    known = KnownText.of(whole, index)
    for stretch in plan(engine, index, opening, whole, through=through):
        if stretch.stop <= start and stretch.stop < len(whole):
            continue
        part = known.window(stretch.begin, stretch.stop)
        to_end = through and stretch.stop == len(whole)
        # The base path of the first portion goes with the root, in one call.
        path = base_path(stretch.canonical, part, to_end)
        most = min(portion_of(path, LOOKAHEAD), most_in_call(index, limits))
        edges = list(enumerate(path[:most]))
        found = Refinement(
            EvaluatedRows(engine.tree(stretch.prompt_ids, edges), index, edges=edges),
            part,
            stretch.canonical,
            effort,
            limits,
            through=to_end,
            deepest=None if engine.window is None else engine.window - len(stretch.prompt_ids),
            distributions=distributions,
        )
        run_together([found], limits)
        yield stretch, found


def plan(
    engine: TokenLM,
    index: SortedVocabulary,
    opening: Opening,
    whole: bytes,
    *,
    through: bool = True,
) -> Iterator[Stretch]:
    """Cut a text into windows; the first covers as much as it can, the others half of that.

    Args:
        through: whether the context that spells the whole text is needed too.

    Raises:
        ContextLengthError: if the opening leaves no room to slide over the text.

    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> index, opening = SortedVocabulary(vocabulary), Opening((2,), b"")
    >>> list(plan(lm, index, opening, b"aab"))
    [Stretch(prompt_ids=[2], canonical=[0, 1], begin=0, scored=0, stop=3)]
    """
    canonical = index.vocabulary.encode_beginning(whole)
    offsets = np.cumsum([0, *map(index.length, canonical)]).tolist()
    size = len(canonical)
    last = through or offsets[-1] < len(whole)  # whether the last token makes a context to evaluate
    room = _room(engine.window, len(opening.ids), size, size if last else size - 1)
    warm_up = min(LOOKAHEAD, room // 4)
    scored = 0
    while True:
        stop = min(size, scored + (room if scored == 0 else room // 2))
        given = max(0, stop - room)
        first = max(0, scored - warm_up)
        yield Stretch(
            prompt_ids=[*opening.ids, *canonical[given:first]],
            canonical=canonical[first:stop],
            begin=offsets[first],
            scored=offsets[scored],
            stop=len(whole) if stop == size else offsets[stop],
        )
        if stop == size:
            return
        scored = stop


def _room(window: int | None, before: int, size: int, deepest: int) -> int:
    """Canonical tokens of a window, after `before` tokens, for a text of `size`.

    `deepest` is how many of them the longest context needs.

    Alternatives may need more tokens than the canonical tokenization: a fifth is left free. Where
    that leaves little to slide over, a text that fits without is not cut.
    """
    if window is None:
        return WINDOW
    left = window - before
    room = min(WINDOW, left * 4 // 5)
    if size <= room or room >= 4 * LOOKAHEAD:
        return room
    if deepest <= left:
        return size
    if left < 2:
        raise ContextLengthError(
            f"what is before the text ({before} tokens) leaves room for {max(0, left)} tokens in "
            f"the model's window of {window}: too few to slide over a text of {size}."
        )
    return max(2, room)


def _token_ends(index: SortedVocabulary, whole: bytes, skip: int) -> NDArray[np.int64]:
    """Where the canonical tokens of a text end, counted from `skip`, and where the text does."""
    lengths = list(map(index.length, index.vocabulary.encode_beginning(whole)))
    ends = np.unique(np.append(np.cumsum(lengths, dtype=np.int64), len(whole))) - skip
    return ends[ends > 0]
