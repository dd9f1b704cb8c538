"""Completions from the returned tokens: the heaviest, or draws."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from charwise.bounded.covering import BoundedCovering
from charwise.bounded.rows import PartialRow
from charwise.coverings.log_sums import log_sum
from charwise.cursor.completion import whole_characters
from charwise.cursor.options import GenerationOptions
from charwise.errors import SettingError, zero_probability
from charwise.partial_lm import PartialLM
from charwise.tokens.index import SortedVocabulary
from charwise.tokens.stops import Stops


@dataclass(frozen=True)
class BoundedCompletion:
    """A completion drawn from the tokens that the server returned.

    Attributes:
        raw: its bytes, without the prompt's.
        token_ids: the tokens that it was drawn as, the prompt's last ones among them.
        ended: whether the model ended the text.
        missing: the most probability, of all that could have been drawn at some step, that was
            not told. At temperature 0 only that of the first step, the choice of a token string
            that covers the prompt, can matter: later steps are told their best token.

    >>> BoundedCompletion(b"y ", (7,), False, 0.0).text
    'y '
    """

    raw: bytes
    token_ids: tuple[int, ...]
    ended: bool
    missing: float

    @property
    def text(self) -> str:
        """The text of `raw`, with U+FFFD for bytes that are no character."""
        return self.raw.decode("utf-8", "replace")


def draw(
    engine: PartialLM, covering: BoundedCovering, options: GenerationOptions
) -> BoundedCompletion:
    """A completion of a covering's text; options and errors are those of `BoundedLM.complete`.

    >>> from charwise.bounded.lm import BoundedLM
    >>> from charwise.engines.ngram import NgramLM
    >>> from top_k_lm import TopK
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> engine = TopK(NgramLM(vocabulary, 1, {(): [0.2, 0.5, 0.3]}), 2, prices=False)
    >>> drawn = draw(engine, BoundedLM(engine).covering("a"), GenerationOptions(max_new_bytes=3))
    >>> drawn.text, drawn.token_ids, round(drawn.missing, 9)
    ('bab', (1, 1), 0.285714286)
    """
    if options.temperature not in (0, 1):
        raise SettingError(
            f"temperature is {options.temperature}: from what is told one can go on greedily (0), "
            "or draw as the model does (1)."
        )
    most, stops = options.max_new_bytes, Stops(options.stop)
    rng = np.random.default_rng(options.seed) if options.temperature else None
    index = SortedVocabulary.of(engine.vocabulary)
    ids, raw, missing = _member(covering, index, rng)
    before, drawn, ended = len(ids), list[int](), False
    while len(raw) < most and stops.first(raw) is None:
        if engine.window is not None and len(ids) + len(drawn) >= engine.window:
            break
        [best] = engine.best([(*ids, *drawn)], [False])
        row = PartialRow(best, index, engine.rounding)
        masses = np.append(row.masses, row.end.told)
        at = _pick(masses, rng)
        if rng is not None:
            missing = max(missing, 1 - float(row.bounds(masses.sum(), 0)[0]))
        if at is None or at == len(row.ranks):
            ended = at is not None
            break
        drawn.append(int(index.ids[row.ranks[at]]))
        raw += index.sorted[row.ranks[at]]
    found = stops.first(raw)
    cut = found is not None or len(raw) > most
    raw = raw if found is None else raw[: found[0]]
    if len(raw) > most:
        raw = whole_characters(b"", raw[:most])
    last = before - len(covering.contexts[0].ids)
    tokens = (*ids[before - last :], *drawn) if last else tuple(drawn)
    return BoundedCompletion(raw, tokens, ended and not cut, missing)


def _member(
    covering: BoundedCovering, index: SortedVocabulary, rng: np.random.Generator | None
) -> tuple[tuple[int, ...], bytes, float]:
    """A token string that covers the text, what it spells beyond, and what was not told."""
    text = covering.raw
    if not text:
        return covering.contexts[0].ids, b"", 0.0
    members: list[tuple[tuple[int, ...], bytes]] = []
    logs: list[float] = []
    for context in covering.contexts:
        rest = text[context.position :]
        if rest and context.log_least > -math.inf:
            lo, hi = index.range(rest)
            for rank, mass in zip(context.row.ranks, context.row.masses, strict=True):
                if lo <= rank < hi and mass > 0:
                    members.append(
                        ((*context.ids, int(index.ids[rank])), index.sorted[rank][len(rest) :])
                    )
                    logs.append(context.log_least + math.log(mass))
    if not members:
        raise zero_probability(text)
    weights = np.exp(np.array(logs) - max(logs))
    at = _pick(weights, rng)
    assert at is not None
    told = log_sum(logs) - covering.prefix_logprob().upper
    return *members[at], max(0.0, -math.expm1(told))


def _pick(masses: NDArray[np.float64], rng: np.random.Generator | None) -> int | None:
    """The heaviest, or one that is drawn; None where there is none."""
    total = float(masses.sum())
    if not total > 0:
        return None
    if rng is None:
        return int(masses.argmax())
    return int(rng.choice(len(masses), p=masses / total))
