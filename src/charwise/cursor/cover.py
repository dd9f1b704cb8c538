"""The bundles that cover a text at the cursor: made in rounds, and kept up byte by byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from charwise.coverings.bundles import Bundle, Extension, extend, narrow, open_bundles
from charwise.coverings.log_sums import log, log_sum
from charwise.coverings.rows import EvaluatedRows
from charwise.cursor.shared_tree import SharedTree
from charwise.errors import impossible
from charwise.known_text.effort import Effort
from charwise.known_text.lattice import Lattice
from charwise.known_text.ranges import KnownText
from charwise.known_text.rounds import Rounds

#: Bundles lighter than this share of the text's probability are dropped, and counted, unless
#: the effort is to drop nothing (θ = 0).
_LIGHT = 1e-12


class Cover(NamedTuple):
    """The bundles kept of a text's covering.

    >>> Cover((), -1.5, missing=0.0).logprob
    -1.5
    """

    bundles: tuple[Bundle, ...]
    logprob: float  # log →p(text | what is before the root), nats
    missing: float  # share of the probability that was left out


def cover_in_rounds(
    shared: SharedTree, whole: bytes, canonical: Sequence[int], effort: Effort
) -> Cover:
    """The cover of a text from the tree's root on, in rounds.

    Args:
        shared: the tree; its root is after `shared.start` bytes of the text.
        whole: the text, lead included.
        canonical: the tokens of `whole[shared.start:]`.
        effort: how much to spend.

    Raises:
        ZeroProbabilityError, EmptyBeamError: if nothing spells the text, or nothing that was kept.

    >>> import charwise
    >>> from charwise.cursor.shared_tree import prefill
    >>> from charwise.tokens.prompts import split
    >>> lm = charwise.load()
    >>> opening, text = split(lm.vocabulary, "import nump")
    >>> shared, rest = prefill(lm.engine, lm.index, opening, text)
    >>> cover_in_rounds(shared, text, rest, lm.effort).logprob < -5
    True
    """
    known = KnownText.of(whole[shared.start :], shared.index)
    with shared.lock:
        rounds = Rounds(
            shared.evaluated, 0, known, canonical, effort, through=True, deepest=shared.room
        )
        lattice = rounds.run()
    size, missing = len(known.text), float(lattice.missing.sum())
    logprob = float(lattice.log_prefix[size])
    if logprob == -math.inf:
        raise impossible(whole, missing)
    cover = _without_light(bundles_at(lattice, known, size), logprob, missing, effort)
    # An implied leading space is conditioned on: it is not part of the text.
    lead = len(shared.opening.lead) - shared.start
    return _given(cover, float(lattice.log_prefix[lead])) if lead > 0 else cover


def bundles_at(lattice: Lattice, known: KnownText, position: int) -> list[Bundle]:
    """The evaluated contexts of a lattice that cover `known.text[:position]`, as bundles.

    >>> import charwise
    >>> from charwise.known_text.windows import stretches
    >>> from charwise.tokens.prompts import split
    >>> lm, text = charwise.load(), b"import os"
    >>> opening, _ = split(lm.vocabulary, "")
    >>> [(_, rounds)] = stretches(lm.engine, lm.index, opening, text, lm.effort)
    >>> {bundle.depth for bundle in bundles_at(rounds.lattice, rounds.known, 2)} <= {0, 1, 2}
    True
    """
    deepest = known.lo.shape[1]
    found = []
    for start in range(max(0, position - deepest), position + 1):
        depth = position - start
        for vertex in lattice.at[start]:
            weight = lattice.log_weight(vertex)
            if depth == 0:
                lo, hi, log_p = 0, len(known.index.sorted), weight
            elif depth <= len(vertex.starting):
                lo, hi = int(known.lo[start, depth - 1]), int(known.hi[start, depth - 1])
                log_p = weight + log(vertex.starting[depth - 1])
            else:
                continue
            if log_p > -math.inf:
                found.append(Bundle(vertex.node, weight, depth, lo, hi, log_p))
    return found


def cover_after(rows: EvaluatedRows, cover: Cover, byte: int, effort: Effort) -> Cover | None:
    """A cover after one more byte: every bundle narrowed, the contexts that end here opened.

    None if no bundle goes on with the byte.
    """
    kept = [b for b in (narrow(rows, bundle, byte) for bundle in cover.bundles) if b]
    logprob = log_sum([bundle.log_p for bundle in kept])
    if logprob == -math.inf:
        return None
    longer = _without_light(kept, logprob, cover.missing, effort)
    ended = [extension for bundle in longer.bundles for extension in extend(rows, bundle)]
    heavy, left_out = _worth_opening(ended, logprob, effort)
    bundles = (*longer.bundles, *open_bundles(rows, heavy))
    return Cover(bundles, logprob, min(1.0, longer.missing + left_out))


def _worth_opening(
    ended: list[Extension], logprob: float, effort: Effort
) -> tuple[list[Extension], float]:
    """The contexts that weigh enough to be evaluated, and the share of the others."""
    ended = sorted(ended, reverse=True)
    shares = [math.exp(extension.log_weight - logprob) for extension in ended]
    least = min(effort.theta, effort.first)  # no context was evaluated here before
    count = sum(share >= least for share in shares)
    while math.fsum(shares[count:]) > 0.5:
        count += 1  # whatever θ is, the better part is never left out
    return ended[:count], math.fsum(shares[count:])


def _without_light(
    bundles: Sequence[Bundle], logprob: float, missing: float, effort: Effort
) -> Cover:
    """The cover of the bundles that weigh something; the others count as left out."""
    floor = logprob + log(min(_LIGHT, effort.theta))
    dropped = [math.exp(b.log_p - logprob) for b in bundles if b.log_p < floor]
    kept = tuple(bundle for bundle in bundles if bundle.log_p >= floor)
    return Cover(kept, logprob, min(1.0, missing + math.fsum(dropped)))


def _given(cover: Cover, condition: float) -> Cover:
    """A cover conditioned on a beginning of its text, of this log-probability."""
    bundles = tuple(
        bundle._replace(log_weight=bundle.log_weight - condition, log_p=bundle.log_p - condition)
        for bundle in cover.bundles
    )
    return Cover(bundles, cover.logprob - condition, cover.missing)
