"""The bundles that cover a text at the cursor: made by refinement, and kept up byte by byte."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.bundles import (
    Bundle,
    Extension,
    extend,
    narrow,
    next_byte_masses,
    open_bundles,
)
from charwise.coverings.log_sums import log, log_sum
from charwise.coverings.rows import EvaluatedRows
from charwise.cursor.shared_tree import SharedTree
from charwise.errors import SearchLimitError, impossible
from charwise.scoring.effort import Effort
from charwise.scoring.lattice import Lattice
from charwise.scoring.refinement import Refinement, run_together
from charwise.scoring.selection import FIRST
from charwise.tokens.known_text import KnownText

#: Bundles lighter than this share of the text's probability are dropped, and counted, unless the
#: effort is exact.
_LIGHT = 1e-12

#: A typed byte keeps this part of the error before it, and adds this part of what is lent at it.
_FADING, _LENT = 0.85, 0.4


class Cover(NamedTuple):
    """The bundles kept of a text's covering.

    >>> Cover((), -1.5, missing=0.375).missing
    0.375
    """

    bundles: tuple[Bundle, ...]
    logprob: float  # log →p(text | what is before the root), nats
    missing: float = 0.0  # share of the probability that was left out since the last refinement
    error: float = 0.0  # of the next byte's distribution, total variation: an estimate
    limited: bool = False  # whether a limit ended the work, or the tolerance was not reached


def covers(
    shared: SharedTree,
    whole: bytes,
    canonical: Sequence[int],
    effort: Effort,
) -> Iterator[Cover]:
    """Covers of a text from the tree's root on: by the effort, then by ever lower thresholds.

    The others are for where too much was left out of the first. That is rare.

    Args:
        shared: the tree; its root is after `shared.start` bytes of the text.
        whole: the text, lead included.
        canonical: the tokens of `whole[shared.start:]`.
        effort: the width and the threshold, or a tolerance: here a total variation.

    Raises:
        ZeroProbabilityError: if nothing spells the text.
        EmptyBeamError: if what may spell it was left out, for a limit.
        SearchLimitError: if the exact sum was asked for and the text has too many token strings.

    >>> import charwise
    >>> from charwise.cursor.shared_tree import Conditions, prefill
    >>> from charwise.tokens.prompts import split
    >>> lm = charwise.load()
    >>> opening, text = split(lm.vocabulary, "import nump")
    >>> shared, rest = prefill(Conditions(lm.engine, lm.index, opening), text)
    >>> next(covers(shared, text, rest, lm.effort)).logprob < -5
    True
    """
    known = KnownText.of(whole[shared.start :], shared.index)
    finer = False
    while True:
        with shared.lock:
            cover, left_out = _summed(shared, whole, known, canonical, effort, finer)
        if cover is not None:
            yield cover
        if effort.exact:
            raise impossible(whole, left_out)
        finer = True
        threshold = min(effort.threshold, 0.5) ** 2
        effort = Effort(math.inf, threshold if threshold > _LIGHT else 0.0)


def _summed(
    shared: SharedTree,
    whole: bytes,
    known: KnownText,
    canonical: Sequence[int],
    effort: Effort,
    finer: bool,
) -> tuple[Cover | None, float]:
    """The cover by one effort, if it reaches the end; and how much was left out on the way."""
    if shared.summed and finer:  # what the sum before needed is dropped
        shared.restart()
    size = shared.evaluated.tree.size
    levels = _Levels(shared.evaluated, known)
    found = Refinement(
        shared.evaluated,
        known,
        canonical,
        effort,
        shared.limits,
        through=True,
        deepest=shared.room,
        respells=shared.start == 0 or shared.summed,  # calls count after a prefill
        keeps=not shared.summed,
        stated=levels.error,
    )
    try:
        run_together([found])
    except SearchLimitError as refused:
        shared.drop(range(size, shared.evaluated.tree.size))
        # Nobody asked for all of them where a coarser sum came first, and found nothing.
        raise (impossible(whole, 1.0) if finer else refused) from None
    left_out = float(found.lattice.missing.sum())
    if not found.lattice.reached:
        return None, left_out
    cover = _cover_of(found.lattice, known, shared, effort)
    if shared.summed:
        shared.settle([bundle.node for bundle in cover.bundles])
    return cover._replace(error=levels.last, limited=found.limited), left_out


class _Levels:
    """By how much each level of a refinement changes the distribution of the next byte.

    Args:
        rows: the evaluated contexts.
        known: the text before the cursor.

    Attributes:
        last: the error as of the last level, a total variation.
    """

    def __init__(self, rows: EvaluatedRows, known: KnownText) -> None:
        self._rows, self._known = rows, known
        self._probs: NDArray[np.float64] | None = None
        self.last = 0.0

    def error(self, lattice: Lattice) -> float:
        """The change since the last level, and the mass without a stand-in."""
        masses = next_byte_masses(self._rows, _bundles_of(lattice, self._known))[0]
        probs = masses / max(float(masses.sum()), 1e-300)
        changed = 0.0 if self._probs is None else float(np.abs(probs - self._probs).sum()) / 2
        self._probs = probs
        self.last = min(1.0, changed + float(lattice.missing[-1]))
        return self.last


def _cover_of(lattice: Lattice, known: KnownText, shared: SharedTree, effort: Effort) -> Cover:
    """The cover of a whole known text, from its finished lattice."""
    logprob = float(lattice.log_prefix[-1])
    # What is missing at the end; before that, candidates without a stand-in lack their share too.
    last = slice(max(0, lattice.n - known.deepest), None)
    missing = min(1.0, float(lattice.missing[last].sum()))
    cover = _without_light(Cover(tuple(_bundles_of(lattice, known)), logprob, missing), effort)
    # An implied leading space is conditioned on: it is not part of the text.
    lead = len(shared.opening.lead) - shared.start
    return _given(cover, float(lattice.log_prefix[lead])) if lead > 0 else cover


def _bundles_of(lattice: Lattice, known: KnownText) -> list[Bundle]:
    """The evaluated contexts of a lattice that cover its text, as bundles."""
    c, n = lattice.contexts, lattice.n
    spelled, part = np.flatnonzero(c.position == n), np.flatnonzero(c.at == n)
    covering = [(context, 1.0) for context in spelled.tolist()]
    covering += zip(c.held[part].tolist(), c.starting[part].tolist(), strict=True)
    found = []
    for context, mass in covering:
        weight, start = float(lattice.weight[context]), int(c.position[context])
        if weight > 0 and mass > 0:
            lo, hi = 0, len(known.index.sorted)
            if start < n:
                lo, hi = int(known.lo[start, n - start - 1]), int(known.hi[start, n - start - 1])
            log_weight = log(weight) + float(lattice.unit[start])
            bundle = Bundle(int(c.node[context]), log_weight, n - start, lo, hi, 0.0)
            found.append(bundle._replace(log_p=log_weight + log(mass)))
    return found


def cover_after(rows: EvaluatedRows, cover: Cover, byte: int, effort: Effort) -> Cover | None:
    """A cover after one more byte: every bundle narrowed, the contexts that end here opened.

    None where refinement does better: the byte is less likely than what was left out, or than the
    error, or no bundle goes on with it; or the error has come to more than the tolerance.

    Args:
        rows: the evaluated contexts.
        cover: of a text.
        byte: the new one.
        effort: which contexts are worth an evaluation, `effort.width` at most.
    """
    kept = [b for b in (narrow(rows, bundle, byte) for bundle in cover.bundles) if b]
    logprob = log_sum([bundle.log_p for bundle in kept])
    # Of a byte that is less likely than the error, too little is known.
    doubt = max(cover.missing, cover.error)
    if logprob == -math.inf or math.exp(logprob - cover.logprob) < doubt:
        return None
    longer = _without_light(cover._replace(bundles=tuple(kept), logprob=logprob), effort)
    ended = sorted((e for b in longer.bundles for e in extend(rows, b)), reverse=True)
    shares = [math.exp(extension.log_weight - logprob) for extension in ended]
    # Only the first context that ends here shows bytes that no other does.
    worth = sum(share * (1.0 if n else FIRST) >= effort.threshold for n, share in enumerate(shares))
    count = int(min(worth, effort.width))
    opened = open_bundles(rows, ended[:count])
    left = math.fsum(shares[count:])
    if not opened:  # nothing to lend it to
        longer = longer._replace(missing=min(1.0, longer.missing + left))
    error = min(1.0, cover.error * _FADING + _LENT * left)
    if effort.tolerance is not None and error > effort.tolerance:
        return None
    return longer._replace(bundles=(*longer.bundles, *_lend(opened, ended)), error=error)


def _lend(opened: Sequence[Bundle], ended: Sequence[Extension]) -> list[Bundle]:
    """The bundles opened at the end of a text, with the weights of the other contexts lent to them.

    To the heaviest with the same last token, or else to the heaviest.
    """
    if not opened:
        return []
    heavy, others = ended[: len(opened)], ended[len(opened) :]
    to = {extension.token: n for n, extension in reversed(list(enumerate(heavy)))}
    logs = [[bundle.log_weight] for bundle in opened]
    for extension in others:
        logs[to.get(extension.token, 0)].append(extension.log_weight)
    weights = [log_sum(some) for some in logs]
    return [
        bundle._replace(log_weight=weight, log_p=bundle.log_p + weight - bundle.log_weight)
        for bundle, weight in zip(opened, weights, strict=True)
    ]


def _without_light(cover: Cover, effort: Effort) -> Cover:
    """The cover with the bundles that weigh something; the others count as left out."""
    floor = cover.logprob + log(min(_LIGHT, effort.threshold))
    kept = tuple(bundle for bundle in cover.bundles if bundle.log_p >= floor)
    light = [math.exp(b.log_p - cover.logprob) for b in cover.bundles if b.log_p < floor]
    missing = min(1.0, cover.missing + math.fsum(light))
    return cover._replace(bundles=kept, missing=missing)


def _given(cover: Cover, condition: float) -> Cover:
    """A cover conditioned on a beginning of its text, of this log-probability."""
    bundles = tuple(
        bundle._replace(log_weight=bundle.log_weight - condition, log_p=bundle.log_p - condition)
        for bundle in cover.bundles
    )
    return cover._replace(bundles=bundles, logprob=cover.logprob - condition)
