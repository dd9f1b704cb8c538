"""Known text: the log-probability of every byte, given all bytes before it.

The text is scored in windows. Each is one token tree: a stretch of canonical tokens to condition
on, a short stretch to warm up (so that alternatives are alive where scoring starts), and the
stretch that counts, over which the rounds run. docs/scoring.md derives the rounds and their cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.log_sums import log_sum
from charwise.coverings.rows import EvaluatedRows
from charwise.errors import ContextLengthError, impossible
from charwise.known_text.calls import first_path
from charwise.known_text.effort import Effort
from charwise.known_text.lattice import Lattice
from charwise.known_text.next_bytes import Floats, distributions
from charwise.known_text.next_bytes import entropies as entropies_of
from charwise.known_text.next_bytes import ranks as ranks_of
from charwise.known_text.ranges import KnownText
from charwise.known_text.rounds import Rounds
from charwise.surprisal.score import Entropy, Score
from charwise.token_lm import TokenLM
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.prompts import Opening

#: Canonical tokens of a window for models whose own window is longer or unbounded.
WINDOW = 1024

#: Canonical tokens evaluated before a stretch that counts, for its alternatives to be alive.
WARM_UP = 16


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
    >>> score = score_text(lm, index, text, Effort(0.0, 1.0))
    >>> np.exp(score.logprobs).round(9).tolist()  # 3/4, then (1/4 + 1/8) / (3/4)
    [0.75, 0.5]
    """
    start = len(text.opening.lead) + text.given
    done = stretches(
        engine,
        index,
        text.opening,
        text.whole,
        effort,
        start=start,
        through=end,
        distributions=entropy is not None,
    )
    return gather(index, text, done, end=end, entropy=entropy)


def gather(
    index: SortedVocabulary,
    text: Text,
    done: Iterable[tuple[Stretch, Rounds]],
    *,
    end: bool,
    entropy: Entropy | None = None,
) -> Score:
    """The score of a text from its finished windows.

    They may be made as they are asked for, one at a time: the lattices of a long text are
    millions of objects.

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
    for stretch, rounds in done:
        lattice, ahead = rounds.lattice, stretch.scored - stretch.begin
        if not np.isfinite(lattice.log_prefix[-1]):
            reached = int(np.isfinite(lattice.log_prefix).sum())
            raise impossible(whole[: stretch.begin + reached], float(lattice.missing.sum()))
        part = slice(stretch.scored, stretch.stop)
        logprobs[part] = np.diff(lattice.log_prefix[ahead:])
        missing[part] = lattice.missing[ahead + 1 :]
        lent[part] = lattice.lent[ahead + 1 :]
        error[part] = lattice.error[ahead + 1 :]
        limited |= rounds.limited
        if end and stretch.stop == len(whole):
            ended = end_logprob(lattice)
        if entropy is not None:
            first = max(skip, stretch.scored)
            rows.append(distributions(lattice)[first - stretch.begin :])
            entropies.append(entropies_of(rows[-1]))
            ranks.append(ranks_of(rows[-1], whole[first : stretch.stop]))
            if entropy == "byte":  # of a long text, they would be many
                rows.clear()
        contexts, calls = contexts + rounds.contexts, calls + rounds.calls
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
    opening: Opening,
    whole: bytes,
    effort: Effort,
    *,
    start: int = 0,
    through: bool = False,
    retain: bool = False,
    distributions: bool = False,
) -> Iterator[tuple[Stretch, Rounds]]:
    """The finished rounds of each window of a text that reaches beyond `start`, in order.

    `through` also evaluates what spells the whole text; `retain` keeps all probabilities;
    `distributions` keeps of each context what `next_bytes.distributions` needs.

    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> index, opening = SortedVocabulary(vocabulary), Opening((2,), b"")
    >>> [rounds.calls for _, rounds in stretches(lm, index, opening, b"aa", Effort(0.0, 1.0))]
    [2]
    """
    known = KnownText.of(whole, index)
    for stretch in plan(engine, index, opening, whole, through=through):
        if stretch.stop <= start and stretch.stop < len(whole):
            continue
        whole_too = through and stretch.stop == len(whole)
        edges = list(enumerate(first_path(stretch.canonical, index, whole_too)))
        tree = engine.tree(stretch.prompt_ids, edges)
        evaluated = EvaluatedRows(tree, index, edges=edges, retain=retain)
        deepest = None if engine.window is None else engine.window - len(stretch.prompt_ids)
        part = known.window(stretch.begin, stretch.stop)
        rounds = Rounds(
            evaluated,
            0,
            part,
            stretch.canonical,
            effort,
            through=whole_too,
            deepest=deepest,
            distributions=distributions,
            score=True,
        )
        rounds.run()
        yield stretch, rounds


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
    warm_up = min(WARM_UP, room // 4)
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
    if size <= room or room >= 4 * WARM_UP:
        return room
    if deepest <= left:
        return size
    if left < 2:
        raise ContextLengthError(
            f"what is before the text ({before} tokens) leaves room for {max(0, left)} tokens in "
            f"the model's window of {window}: too few to slide over a text of {size}."
        )
    return max(2, room)


def end_logprob(lattice: Lattice) -> float:
    """log p(end of text | text), nats: the contexts that spell the text, each with its end.

    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", None], end_ids=[1], bos_ids=[1])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.5]})
    >>> index, opening = SortedVocabulary(vocabulary), Opening((1,), b"")
    >>> effort = Effort(0.0, 1.0)
    >>> [(_, rounds)] = stretches(lm, index, opening, b"a", effort, through=True)
    >>> round(math.exp(end_logprob(rounds.lattice)), 9)
    0.5
    """
    logs = [
        lattice.log_weight(vertex) + math.log(vertex.end)
        for vertex in lattice.at[-1]
        if vertex.end > 0
    ]
    return log_sum(logs) - float(lattice.log_prefix[-1])


def _token_ends(index: SortedVocabulary, whole: bytes, skip: int) -> NDArray[np.int64]:
    """Where the canonical tokens of a text end, counted from `skip`, and where the text does."""
    lengths = list(map(index.length, index.vocabulary.encode_beginning(whole)))
    ends = np.unique(np.append(np.cumsum(lengths, dtype=np.int64), len(whole))) - skip
    return ends[ends > 0]
