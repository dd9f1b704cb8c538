"""Exact conditioning at a prompt's end: which token strings carry on over it, and how likely.

A mask reproduces a forced text σ token by token, and weighs a short token by its own probability.
Conditioning weighs every member of the covering C(σ) by the probability of the whole of it
(Vieira et al. 2025, Corollary 1):

    P[the member of C(σ) that the text begins with is δ·t]  =  →p_Δ(δ·t) / →p(σ)

`boundary_covering` is the search for the members that weigh something: an engine answers its
queries. `Members` are drawn from, and generation goes on after the member drawn, without any mask:
the paper's `conditional_token_generation` (Proposition 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from charwise.coverings.covering import Covering
from charwise.errors import VocabularyError, check_number
from charwise.healing import allowed_next
from charwise.tokens.index import SortedVocabulary

#: Contexts evaluated for one prompt, at most.
_MOST_CONTEXTS = 512


def boundary_covering(
    index: SortedVocabulary, forced: bytes, *, tolerance: float = 1e-3, room: int | None = None
) -> Covering:
    """Return the covering of a forced text, whose `queries` an engine answers.

    Args:
        index: of the model's vocabulary.
        forced: σ, not empty.
        tolerance: how much of →p(σ) may be left out, as a share.
        room: tokens that a context may have beside the kept ids; None for no limit.

    Raises:
        VocabularyError: a forced text that the vocabulary cannot spell.

    >>> from charwise.tokens.vocabulary import Vocabulary
    >>> vocabulary = Vocabulary.from_bytes([b"s", b"sw", b"swim", b"weep"])
    >>> covering = boundary_covering(SortedVocabulary(vocabulary), b"sw")
    >>> p = {(): {0: 0.6, 1: 0.1, 2: 0.3}, (0,): {3: 0.01}}
    >>> while queries := covering.queries():
    ...     for context, ids in queries:
    ...         covering.answer(context, np.log([p[context][id] for id in ids.tolist()]))
    >>> members = Members(covering)
    >>> [members.token_ids(at) for at in range(3)]
    [(1,), (2,), (0, 3)]
    >>> np.exp(members.logprobs).round(4).tolist(), members.missing
    ([0.1, 0.3, 0.006], 0.0)
    """
    allowed_next(forced, index)  # refuses a text that cannot be spelled
    return Covering(index, forced, tolerance=tolerance, max_contexts=_MOST_CONTEXTS, room=room)


class Members:
    """The members of a covering whose search is over, with their log-probabilities.

    Attributes:
        logprobs: `[n]` float64, log p_Δ of each after the kept ids, nats.
        missing: the most that the others have of the probability of the forced text, a share.

    Raises:
        VocabularyError: the members cannot be found to the tolerance: the text has no probability,
            or takes too many contexts.
    """

    def __init__(self, covering: Covering) -> None:
        bounds = covering.prefix_logprob()
        self.missing = bounds.missing
        if bounds.lower == -math.inf or self.missing > covering.tolerance:
            raise _failure(covering)
        self._index, self._visited = covering.index, covering.visited
        self._ends = np.cumsum([len(visited.logs) for visited in self._visited])
        self.logprobs: NDArray[np.float64] = np.concatenate(
            [visited.log_weight + visited.logs for visited in self._visited]
        )

    def __len__(self) -> int:
        """How many members there are."""
        return len(self.logprobs)

    def token_ids(self, at: int) -> tuple[int, ...]:
        """The tokens of one member."""
        which = int(np.searchsorted(self._ends, at, side="right"))
        context, _, _, lo, logs, *_ = self._visited[which]
        return (*context, int(self._index.ids[lo + at - int(self._ends[which]) + len(logs)]))

    def weights(
        self,
        temperature: float = 1.0,
        *,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
    ) -> NDArray[np.float64]:
        """Return the chance of each to be drawn, `[n]`.

        At temperature 1 without truncation: its probability given the forced text. Otherwise the
        members are treated as the tokens of one step are: probabilities to the power of
        1 / temperature, then the `top_k` likeliest, the likeliest that make up `top_p`, those that
        have at least `min_p` of the likeliest. At temperature 0 the best has it all.

        Raises:
            SettingError: a temperature that is negative or not a number.
        """
        check_number("temperature", temperature, 0.0, math.inf)
        logs = self.logprobs
        if temperature == 0:
            return np.asarray(np.arange(len(logs)) == int(logs.argmax()), dtype=np.float64)
        p = np.exp((logs - logs.max()) / temperature)
        order = np.argsort(-p, kind="stable")
        keep = np.ones(len(p), dtype=bool)  # in order, the likeliest first
        if top_k is not None and top_k > 0:
            keep[top_k:] = False
        if top_p is not None and top_p < 1:
            kept = p[order] * keep
            keep[1:] &= np.cumsum(kept)[:-1] < top_p * kept.sum()
        if min_p is not None and min_p > 0:
            keep[1:] &= p[order][1:] >= min_p
        p[order[~keep]] = 0.0
        return np.asarray(p / p.sum())

    def draw(self, weights: NDArray[np.float64], uniform: Sequence[float]) -> list[tuple[int, ...]]:
        """Return a member for each number, uniform in [0, 1), drawn by these weights."""
        sums = np.cumsum(weights)
        places = np.searchsorted(sums, np.asarray(uniform) * sums[-1], side="right")
        last = int(np.flatnonzero(weights)[-1])
        return [self.token_ids(min(int(at), last)) for at in places]


def _failure(covering: Covering) -> VocabularyError:
    if covering.visited and covering.prefix_logprob().upper == -math.inf:
        return VocabularyError(
            f"the model gives {covering.raw!r} no probability here, so nothing follows it. "
            "Give back fewer tokens, or heal with the mask."
        )
    return VocabularyError(
        f"{covering.contexts} contexts leave out up to {covering.prefix_logprob().missing:.2g} of "
        f"the probability of {covering.raw!r}; {covering.tolerance:.2g} is allowed. Give back "
        "fewer tokens, or heal with the mask."
    )
