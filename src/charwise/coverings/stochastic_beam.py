"""A beam that prunes at random: its sum is an unbiased estimate of →p(σ).

A beam (`beam.py`) keeps the k heaviest bundles after each byte, and its sum is a lower bound. Here
a bundle i of share wᵢ is kept with a chance πᵢ, and its weight divided by that:

    πᵢ = min(1, √wᵢ / c),   c such that Σ πᵢ = k

What is heavy is kept for certain, as by a beam; of the rest some are drawn, systematically, and
stand for those that were not. The expectation of every sum stays what it was, so that of the last
one is →p(σ), whatever k is and whatever was forgotten on the way. This is the resampling of
Fearnhead & Clifford (JRSS B 65, 2003), with √w in place of w, so that a split of small share, which
pays only when the text says the same again, lives to see it more often; the weights are those of
Horvitz & Thompson (1952). Independent beams over one tree say by their spread how good their mean
is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.bundles import (
    Bundle,
    Extension,
    bundle_before,
    extend,
    narrow,
    open_bundles,
)
from charwise.coverings.log_sums import log_sum
from charwise.coverings.rows import EvaluatedRows

Floats = NDArray[np.float64]

#: Contexts that no beam refers to are dropped when so many have been added, for each bundle.
_SPARE = 2


class Draws(NamedTuple):
    """How beams are pruned.

    Attributes:
        beams: how many, independent of each other.
        k: bundles that each keeps.
        rng: what is drawn from.
        deepest: most tokens of a context after the prompt; →p(σ) is then without longer ones.

    >>> Draws(2, 4, np.random.default_rng(1)).k
    4
    """

    beams: int
    k: int
    rng: np.random.Generator
    deepest: int | None = None


def log_estimates(evaluated: EvaluatedRows, text: bytes, draws: Draws) -> Floats:
    """`[beams]` logs of independent unbiased estimates of →p(text) after the root; nats.

    What beams do not refer to is dropped from `evaluated`.

    >>> from charwise.engines.ngram import example_lm
    >>> evaluated = EvaluatedRows.of(example_lm(), [2])
    >>> logs = log_estimates(evaluated, b"aa", Draws(2, 4, np.random.default_rng(1)))
    >>> np.exp(logs).round(9).tolist()  # nothing to prune: →p = 1/2 · 3/4
    [0.375, 0.375]
    """
    after: list[list[Bundle]] = []
    for bundles in _walks(evaluated, text, draws):
        after = bundles
    return np.array([log_sum([bundle.log_p for bundle in beam]) for beam in after])


def _walks(evaluated: EvaluatedRows, text: bytes, draws: Draws) -> Iterator[list[list[Bundle]]]:
    """The bundles of each beam before each byte, and at last those after the text.

    Before a byte, the contexts that end there are bundles too: what `next_byte_masses` says of
    all bundles of a beam is an unbiased estimate of each →p(σ·byte). After the text they are not
    opened.

    >>> from charwise.engines.ngram import example_lm
    >>> evaluated = EvaluatedRows.of(example_lm(), [2])
    >>> steps = _walks(evaluated, b"aa", Draws(1, 4, np.random.default_rng(1)))
    >>> [len(bundles) for [bundles] in steps]  # []; [] and [a]; [a]
    [1, 2, 1]
    """
    beams, k, rng, deepest = draws
    root, size = evaluated.tree.root, evaluated.tree.size
    alive = [[bundle_before(evaluated, root, 0.0, b"")] for _ in range(beams)]
    for byte in text:
        # The contexts that end here are opened for all beams in one call.
        ended = [_ended(evaluated, bundles, deepest) for bundles in alive]
        opened = iter(open_bundles(evaluated, [one for several in ended for one in several]))
        alive = [
            [*bundles, *(next(opened) for _ in several)]
            for bundles, several in zip(alive, ended, strict=True)
        ]
        yield alive
        for n, bundles in enumerate(alive):
            narrowed = (narrow(evaluated, bundle, byte) for bundle in bundles)
            alive[n] = _thinned([bundle for bundle in narrowed if bundle], k, rng)
        if evaluated.tree.size - size > _SPARE * beams * k + 256:
            evaluated.keep([root, *(bundle.node for bundles in alive for bundle in bundles)])
            size = evaluated.tree.size
    yield alive


def _thinned(bundles: Sequence[Bundle], k: int, rng: np.random.Generator) -> list[Bundle]:
    """At most k bundles, each weight divided by the chance that it had to stay.

    >>> bundles = [Bundle(0, 0.0, 1, 0, 1, log_p) for log_p in (-1.0, -2.0, -9.0)]
    >>> kept = _thinned(bundles, 2, np.random.default_rng(1))
    >>> len(kept), kept[0].log_p
    (2, -1.0)
    """
    if len(bundles) <= k:
        return list(bundles)
    roots = np.array([bundle.log_p for bundle in bundles]) / 2
    chances = _inclusion(np.exp(roots - roots.max()), k)
    # Systematic, in a random order: πᵢ is the chance of i, and k or one fewer or more are kept.
    order = rng.permutation(len(bundles))
    edges = np.concatenate(([0.0], np.cumsum(chances[order]))) + rng.random()
    chosen = np.sort(order[np.floor(edges[1:]) > np.floor(edges[:-1])])
    return [_heavier(bundles[i], -math.log(chances[i])) for i in chosen.tolist()]


def _inclusion(sizes: Floats, k: int) -> Floats:
    """`[n]` chances min(1, size / c) that add up to k, of n > k sizes.

    >>> _inclusion(np.array([8.0, 1.0, 1.0]), 2).tolist()
    [1.0, 0.5, 0.5]
    """
    order = np.argsort(-sizes)
    falling = sizes[order]
    rest = np.cumsum(falling[::-1])[::-1]  # of what is no larger
    certain = 0
    while certain < k and falling[certain] * (k - certain) >= rest[certain]:
        certain += 1
    chances = np.ones(len(sizes))
    if certain < k:
        chances[order[certain:]] = falling[certain:] * (k - certain) / rest[certain]
    else:
        chances[order[certain:]] = 0.0
    return chances


def _ended(
    evaluated: EvaluatedRows, bundles: Sequence[Bundle], deepest: int | None
) -> list[Extension]:
    """The contexts that end where the text does so far."""
    found = []
    for bundle in bundles:
        if deepest is None or evaluated.tree.depth(bundle.node) < deepest:
            found += extend(evaluated, bundle)
    return found


def _heavier(bundle: Bundle, by: float) -> Bundle:
    return bundle._replace(log_weight=bundle.log_weight + by, log_p=bundle.log_p + by)
