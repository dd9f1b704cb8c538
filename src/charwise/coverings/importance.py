"""An unbiased estimate of →p(σ), from members of the covering that are drawn at random.

    →p(σ) = Σ_{δ ∈ C(σ)} →p_Δ(δ) = E_{δ ~ q} [ →p_Δ(δ) / q(δ) ]       for any q > 0 where →p_Δ is

(importance sampling; Owen, *Monte Carlo theory, methods and examples*, ch. 9; for marginals over
tokenizations, Cao & Rimell, EMNLP 2021, and Chirkova et al., ACL 2023). A draw goes from left to
right. After a context δ that ends at t it takes a token that spells the next bytes, or ends with
all tokens that begin with the rest of σ, with chances in proportion to

    ( p_Δ(token | δ) · β(t + |token|) )^τ

where β(t) guesses the probability of the rest from t on: by a sum over all tokenizations as if a
context were known by its position alone, each position standing for the heaviest context found
there. With τ = 1 that is nearly the posterior; with τ < 1 it is widened, so that a split that pays
only later, when the text says the same again, is drawn often enough to be noticed. Draws take each
τ alike, and are weighed by the mixture.

No token is left out that can spell the text: the guess says how good the estimate is, never
whether it is right.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.log_sums import log_sum
from charwise.coverings.rows import EvaluatedRows

Floats = NDArray[np.float64]

#: The exponents τ of the mixture that is drawn from.
POWERS = (1.0, 0.5)

#: The guess takes no token that spells the text to be less probable than this.
_LEAST = math.log(1e-9)

#: Bytes of log-probabilities that draws keep at a time; they are drawn in as many turns.
_RETAINED = 2**27


class Ways(NamedTuple):
    """How a text may go on after a context: the tokens that spell its next bytes.

    The last of them is −1: all tokens that begin with the rest, in one.

    >>> Ways(np.array([3, -1]), np.array([1, 2]), np.log([0.5, 0.25])).tokens.tolist()
    [3, -1]
    """

    tokens: NDArray[np.int64]
    ends: NDArray[np.int64]  # positions
    logprobs: Floats  # nats


def ways(evaluated: EvaluatedRows, node: int, text: bytes, position: int, last: bool) -> Ways:
    """How a text may go on from a position, after the context that ends there.

    `last` allows no further context: the rest is one token.

    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> evaluated = EvaluatedRows(lm.tree([2]), SortedVocabulary(vocabulary))
    >>> np.exp(ways(evaluated, 0, b"aa", 0, last=False).logprobs).tolist()  # [a], and no [aa…]
    [0.5, 0.0]
    """
    index, rest = evaluated.index, text[position:]
    tokens = [] if last else index.prefixes(rest)
    masses = evaluated.row(node).in_order
    lo, hi = index.range(rest)
    chosen = [*masses[index.rank[tokens]], masses[lo:hi].sum()]
    ends = [*(position + index.length(token) for token in tokens), len(text)]
    with np.errstate(divide="ignore"):
        logprobs = np.log(np.array(chosen, dtype=np.float64))
    return Ways(np.array([*tokens, -1]), np.array(ends), logprobs)


def log_weights(
    evaluated: EvaluatedRows,
    root: int,
    text: bytes,
    draws: int,
    rng: np.random.Generator,
    *,
    deepest: int | None = None,
) -> Floats:
    """`[draws]` log →p_Δ(δ) / q(δ) of members δ of C(text), drawn from q; −inf for dead ends.

    Args:
        evaluated: whose root is kept, and nothing else.
        deepest: most tokens of a context after the root; →p(σ) is then without longer ones.

    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> evaluated = EvaluatedRows(lm.tree([2]), SortedVocabulary(vocabulary))
    >>> logs = log_weights(evaluated, 0, b"aa", 100, np.random.default_rng(1))
    >>> np.exp(logs).mean().round(9)  # →p = 1/2 · 3/4
    np.float64(0.375)
    """
    guess = rest_by_position(evaluated, root, text, deepest)
    evaluated.keep([root])
    most = max(2, _RETAINED // (8 * evaluated.index.vocabulary.width))
    found = [np.empty(0)]
    for first in range(0, draws, most):
        powers = np.arange(first, min(draws, first + most)) % len(POWERS)
        found.append(_turn(evaluated, root, text, guess, powers, rng, deepest))
        evaluated.keep([root])
    return np.concatenate(found)


def rest_by_position(
    evaluated: EvaluatedRows, root: int, text: bytes, deepest: int | None
) -> Floats:
    """`[n + 1]` log β: a guess at p(text[t:]) after a context that ends at t; −inf where none can.

    One context a position, of all that end there the heaviest among those found so: one call each.

    >>> from charwise.engines.ngram import NgramLM
    >>> from charwise.tokens.index import SortedVocabulary
    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"a", b"ab", None], end_ids=[2], bos_ids=[2])
    >>> lm = NgramLM(vocabulary, 1, {(): [0.5, 0.25, 0.25]})
    >>> evaluated = EvaluatedRows(lm.tree([2]), SortedVocabulary(vocabulary))
    >>> np.exp(rest_by_position(evaluated, 0, b"aa", None)).round(6).tolist()
    [0.375, 0.75, 1.0]
    """
    size = len(text)
    weight = np.full(size + 1, -np.inf)  # of the heaviest context that ends there
    arrived: dict[int, tuple[int, int]] = {}  # by which token, after which context
    weight[0] = 0.0
    after: dict[int, Ways] = {}
    for t in range(size):
        if weight[t] == -np.inf:
            continue
        node = evaluated.extend([arrived[t]])[0] if t else root
        last = deepest is not None and evaluated.tree.depth(node) >= deepest
        after[t] = ways(evaluated, node, text, t, last)
        for token, end, logprob in zip(*after[t], strict=True):
            if token >= 0 and weight[t] + max(logprob, _LEAST) > weight[end]:
                weight[end] = weight[t] + max(logprob, _LEAST)
                arrived[int(end)] = (node, int(token))
    guess = np.full(size + 1, -np.inf)
    guess[size] = 0.0
    for t in sorted(after, reverse=True):
        _, ends, logprobs = after[t]
        guess[t] = log_sum((np.maximum(logprobs, _LEAST) + guess[ends]).tolist())
    return guess


def _turn(
    evaluated: EvaluatedRows,
    root: int,
    text: bytes,
    guess: Floats,
    powers: NDArray[np.int64],
    rng: np.random.Generator,
    deepest: int | None,
) -> Floats:
    """`log_weights` of as many draws as there are powers, side by side, a token at a time."""
    size = len(powers)
    nodes, positions = np.full(size, root), np.zeros(size, dtype=np.int64)
    weights, chances = np.zeros(size), np.zeros((size, len(POWERS)))
    alive = np.ones(size, dtype=bool) & (len(text) > 0)
    depth = 0
    while alive.any():
        edges: dict[tuple[int, int], list[int]] = {}
        for node in np.unique(nodes[alive]).tolist():
            here = np.flatnonzero(alive & (nodes == node))
            at = int(positions[here[0]])
            found = ways(evaluated, node, text, at, deepest is not None and depth >= deepest)
            shares = _shares(found, guess)
            if shares is None:
                weights[here], alive[here] = -np.inf, False
                continue
            for draw in here.tolist():
                chosen = int(rng.choice(len(found.tokens), p=np.exp(shares[powers[draw]])))
                weights[draw] += found.logprobs[chosen]
                chances[draw] += shares[:, chosen]
                positions[draw] = found.ends[chosen]
                token = int(found.tokens[chosen])
                if token < 0:
                    alive[draw] = False
                else:
                    edges.setdefault((node, token), []).append(draw)
        made = evaluated.extend(list(edges)) if edges else []
        for node, drawn in zip(made, edges.values(), strict=True):
            nodes[drawn] = node
        evaluated.keep([root, *made])
        depth += 1
    mixture = np.logaddexp.reduce(chances, axis=1) - math.log(len(POWERS))
    return np.asarray(weights - mixture)


def _shares(found: Ways, guess: Floats) -> Floats | None:
    """`[powers, ways]` log of the chance of each way; None where none leads anywhere."""
    logs = found.logprobs + guess[found.ends]
    if np.max(logs) == -np.inf:
        return None
    logs = np.array(POWERS)[:, None] * logs[None]
    return np.asarray(logs - np.logaddexp.reduce(logs, axis=1, keepdims=True))
